"""What a chat in the terminal keeps of an answer in channels.

Covers: karat.cli.answer_text.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from karat import LLM
from karat.cli.chat_session import ChatSession
from karat.cli.conversation import Conversation
from tests.support.scripted import Scripted, script, write_scripted
from tests.text.tools.models import HARMONY, MESSAGES, PLAIN

SAID = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."


@pytest.fixture(params=[HARMONY, PLAIN], ids=["channels", "plain"])
def llm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    folder = write_scripted(tmp_path, request.param, special=MESSAGES if request.param == HARMONY else ())
    with LLM(folder, max_model_len=1024) as llm:
        Scripted(llm)
        yield llm


@pytest.mark.parametrize("quiet", [False, True])
def test_analysis_is_shown_and_not_kept(llm: LLM, quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(None, {"max_tokens": 200})
    ChatSession(llm, talk, quiet=quiet, interactive=False).handle(script(SAID))
    shown, in_channels = capsys.readouterr(), "<|channel|>" in (llm.tokenizer.template_source or "")
    assert shown.out == ("Yes.\n" if in_channels else f"{SAID}\n")
    assert talk.messages()[-1]["content"] == shown.out[:-1]
    assert ("Hm.\n" in shown.err) == (in_channels and not quiet)
