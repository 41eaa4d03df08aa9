"""Contents of several parts become the prompt that transformers makes of them, wherever the template reads parts."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from karat.text.content_parts import joined, roles_with_parts
from tests.text.tools.models import PLAIN, byte_tokenizer

ALL = {"system", "user", "assistant", "tool"}
# Released templates that read parts, and the roles of which they do.
READING = {
    "Apriel-1.6-15b-Thinker-fixed": {"user"},
    "Cohere2MoE": ALL,
    "GLM-4.6": ALL - {"tool"},
    "Kimi-K2-Instruct": ALL - {"tool"},
    "Kimi-K2-Thinking": ALL - {"tool"},
    "LFM2.5-8B-A1B": ALL,
    "MiniMax-M1": ALL - {"system"},
    "MiniMax-M3": ALL,
    "Mistral-Small-3.2-24B-Instruct-2506": {"user", "assistant"},  # of a system's parts it prints the first alone
    "Qwen3.5-4B": ALL,
    "Spark2.5": ALL - {"tool"},
    "StepFun3.5-Flash": ALL,
    "google-gemma-4-31B-it": ALL - {"system"},
    "google-gemma-4-31B-it-interleaved": ALL - {"system"},
    "ibm-granite-granite-4.0": ALL,
    "ibm-granite-granite-4.1": ALL,
    "mistralai-Ministral-3-14B-Reasoning-2512": ALL - {"tool"},
    "muse-glimmer": ALL,
    "tencent-Hy3": ALL,
    "unsloth-Apriel-1.5": {"user"},
}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.slow
def test_parts_are_those_of_transformers(data_dir: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    found = {}
    for file in sorted((data_dir / "templates").glob("*.jinja")):
        template = file.read_text(encoding="utf-8")
        tokenizer = byte_tokenizer(template)
        if roles := roles_with_parts(tokenizer, tools=False):
            found[file.stem] = set(roles)
        if "user" not in roles:
            continue
        talk = [{"role": "user", "content": parts("One.", " Two.", "Three")}]
        if "assistant" in roles:
            talk += [{"role": "assistant", "content": parts("Four", "five")}, {"role": "user", "content": "Six"}]
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}
        expected = theirs.apply_chat_template(talk, chat_template=template, **options)
        assert tokenizer.render_chat(joined(talk, roles)) == expected, file.stem
    assert found == READING


def test_a_template_that_prints_contents_gets_them_joined() -> None:
    as_json = PLAIN.replace("message.content", "message.content | tojson")
    first = PLAIN.replace("message.content", "message.content[0].text if message.content is not string else ''")
    for template in (PLAIN, as_json, first, "{{ messages[0].content + '' }}", "{{ messages[0].role }}"):
        assert roles_with_parts(byte_tokenizer(template), tools=True) == frozenset()
    assert roles_with_parts(byte_tokenizer(), tools=False) == frozenset()
    messages = [{"role": "user", "content": parts("a", "b")}, {"role": "user", "content": "c"}, {"role": "tool"}]
    assert joined(messages, frozenset()) == [{"role": "user", "content": "a\nb"}, *messages[1:]]
    assert joined(messages, frozenset({"user"})) == messages
