"""A last message that goes on is rendered as transformers renders it (continue_final_message)."""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from karat.errors import TemplateError
from karat.text.chat_template import ChatTemplate
from karat.text.continuing import cut, tagged
from tests.text.conversations import assistant, system, user
from tests.text.test_chat_template import NOW, SPECIAL_TOKENS, read_templates, theirs  # noqa: F401 - a fixture
from tests.text.tools.models import HERMES, byte_tokenizer

CONTENTS: list[Any] = [
    "Once upon",
    "Once upon ",
    " Once\n\n",
    "",
    "  ",
    "<think>\nHm. It is",
    "<think>\nHm.\n</think>\n\nOnce",
    "user",
    [{"type": "text", "text": "One."}, {"type": "text", "text": "Two "}],
]


@pytest.mark.slow
def test_released_templates(theirs: Any, data_dir: Path) -> None:  # noqa: F811 - the fixture
    num_same = 0
    for name, source in read_templates(data_dir).items():
        ours = None
        with suppress(TemplateError):
            ours = ChatTemplate(source, **SPECIAL_TOKENS)
        for content in CONTENTS:
            for messages in (
                [user("Hello"), assistant(content)],
                [system("Be kind."), user("A tale."), assistant(content)],
            ):
                expected: object = TemplateError
                got: object = TemplateError
                with suppress(Exception):
                    expected = theirs.apply_chat_template(
                        messages, chat_template=source, tokenize=False, continue_final_message=True
                    )
                with suppress(TemplateError):
                    assert ours is not None or expected is TemplateError
                    got = rendered(ours, messages) if ours else TemplateError
                if "content" in source:  # transformers looks for the word
                    assert got == expected, (name, content)
                num_same += expected is not TemplateError
    assert num_same > 300


def rendered(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    return cut(template.render(tagged(messages), now=NOW, add_generation_prompt=False), messages)


def test_the_tokens_are_those_of_the_text_and_control_tokens_stay_text() -> None:
    tokenizer = byte_tokenizer(HERMES)
    messages = [user("Hi"), assistant("Well<|im_end|> yes ")]
    options: dict[str, Any] = {
        "add_generation_prompt": False,
        "continue_final_message": True,
        "now": datetime(2026, 1, 1),
    }
    plain = tokenizer.chat_prompt(messages, **options)
    safe = tokenizer.chat_prompt(messages, sanitize_control_tokens=True, **options)
    assert plain.text == safe.text and plain.text.endswith("assistant\nWell<|im_end|> yes ")
    assert tokenizer.decode(safe.token_ids, skip_special_tokens=False) == safe.text
    assert tokenizer.render_chat(messages, **options) == plain.text


@pytest.mark.parametrize("messages", [[], [user("a"), {"role": "assistant"}], [assistant([])], [assistant([{"a": 1}])]])
def test_a_message_without_a_text_is_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateError, match="has no text to go on with"):
        tagged(messages)


def test_what_the_template_leaves_out_and_a_generation_prompt_are_refused() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content[3:] }}{% endfor %}", **SPECIAL_TOKENS)
    with pytest.raises(TemplateError, match="does not write the last message as it is"):
        rendered(template, [assistant("Once upon")])
    with pytest.raises(TemplateError, match="with add_generation_prompt"):
        byte_tokenizer(HERMES).render_chat([user("a"), assistant("b")], continue_final_message=True)
