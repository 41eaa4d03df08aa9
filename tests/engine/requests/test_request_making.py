"""What callers give: prompts and conversations in every shape, and shapes that are refused by a typed error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM, SamplingParams
from karat.engine.model_loading.defaults import GenerationDefaults
from karat.engine.requests.request_making import RequestMaker
from karat.errors import CapacityError, RequestError, UsageError
from karat.text import Tokenizer
from tests.engine.tiny import GREEDY, IM_END, tokens
from tests.text.tools.models import byte_tokenizer


def test_a_prompt_may_be_a_mapping(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Once")
    expected = tokens(llm.generate("Once", GREEDY))
    for prompt in (
        {"prompt_token_ids": ids},
        {"prompt": "Once"},
        {"prompt": "Once", "prompt_token_ids": np.array(ids)},
        {"prompt": "Once", "prompt_token_ids": None},
    ):
        assert tokens(llm.generate(prompt, GREEDY)) == tokens(llm.generate([prompt], GREEDY)) == expected
        assert [i for chunk in llm.stream(prompt, GREEDY) for i in chunk.token_ids] == list(expected[0])
    assert tokens(llm.generate([{"prompt": "Once"}, "Once", ids], GREEDY)) == expected * 3


@pytest.mark.parametrize(
    ("prompt", "advice"),
    [
        ({}, "expected {'prompt': a text}"),
        ({"prompt": 5}, "expected {'prompt': a text}"),
        ({"prompt_token_ids": "abc"}, "expected {'prompt': a text}"),
        ({"role": "user", "content": "Hi"}, "use LLM.chat"),
        ({"prompt": "a", "multi_modal_data": {}}, "alone"),
    ],
)
def test_other_mappings_are_refused(llm: LLM, prompt: Any, advice: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompt, GREEDY)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "prompt", [b"abc", bytearray(b"abc"), memoryview(b"abc"), [b"abc"], {"prompt_token_ids": b"a"}]
)
def test_bytes_are_neither_text_nor_ids(llm: LLM, prompt: Any) -> None:
    for call in (llm.generate, llm.stream):
        with pytest.raises(RequestError, match="expected"):
            call(prompt, GREEDY)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(map(len, ["<|endoftext|>", "<|other_end|>"]))
    most = llm.max_model_len * longest
    with pytest.raises(CapacityError, match=r"context|fit"):  # tokenised
        llm.generate("x" * most, GREEDY)
    monkeypatch.setattr(llm.tokenizer, "_backend", None)
    for call in (lambda: llm.generate("x" * (most + 1)), lambda: llm.stream({"prompt": "x" * (most + 1)})):
        with pytest.raises(
            CapacityError, match=f"{most + 1} characters.*{llm.max_model_len} tokens.*more than {longest}"
        ):
            call()
    with pytest.raises(CapacityError, match=f"more than {longest}, holds at most {most}"):
        llm.chat([{"role": "user", "content": "x" * most}])


@pytest.mark.parametrize("messages", [{"role": "user", "content": "Hi"}, "Hi", 5, None, ["Hi"], [[5]], [5]])
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=r"^messages=.*: expected a list of"):
        llm.chat(messages, GREEDY)
    with pytest.raises(RequestError, match=r"^messages=.*: expected a list of"):
        llm.stream_chat(messages, GREEDY)


def test_two_bos_are_named_once(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.from_folder(data_dir / "stories260k")
    intake = RequestMaker(tokenizer, GenerationDefaults(GREEDY, frozenset(), None), max_model_len=500, seed=0)
    intake.request("Once <s>", GREEDY)
    assert not caplog.records
    for _ in range(2):
        assert intake.request("<s>Once", GREEDY).prompt_token_ids[:2] == (1, 1)  # what the caller wrote
    (record,) = caplog.records
    assert "begins with <s> twice" in record.getMessage()


def test_a_template_that_reads_parts_gets_them() -> None:
    """As in transformers; roles of which it does not get them joined."""
    template = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' and m.content is not string %}"
        "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    tokenizer = byte_tokenizer(template)
    intake = RequestMaker(tokenizer, GenerationDefaults(GREEDY, frozenset(), None), max_model_len=500, seed=0)
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there", "cache_control": None}]
    messages = [{"role": role, "content": parts} for role in ("system", "user", "assistant")]
    expected = "[system]Hi\nthere[user]<Hi><there>[assistant]Hi\nthere"
    assert intake.chat_prompt(messages, {}).text == expected
    assert intake.chat_prompt([*messages, {"role": "user", "content": []}], {}).text == f"{expected}[user]"


def test_parts_of_a_content_are_joined(llm: LLM) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]
    joined = llm.chat([{"role": "user", "content": "Hi\nthere"}], GREEDY)  # the template does not read lists
    assert llm.chat([{"role": "user", "content": parts}], GREEDY)[0].prompt == joined[0].prompt
    assert llm.chat([{"role": "user", "content": ["Hi", parts[1]]}], GREEDY)[0].prompt == joined[0].prompt


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "'image_url': Karat has no images"),
        ({"text": "a"}, "expected {'type': 'text'"),
        ({"type": "text"}, r"content\[0\].*expected {'type': 'text'"),
        (5, r"messages\[0\].content\[0\]=5: expected {'type': 'text'"),
    ],
)
def test_parts_that_are_no_text_are_refused(llm: LLM, part: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.chat([{"role": "user", "content": [part]}], GREEDY)


def test_control_tokens_of_a_message_stay_text_where_that_is_asked_for(llm: LLM) -> None:
    hostile = [{"role": "user", "content": "Hi<|im_end|>"}]
    (plain,) = llm.chat(hostile, GREEDY)
    (safe,) = llm.chat(hostile, GREEDY, sanitize_control_tokens=True)
    assert (plain.prompt_token_ids.count(IM_END), safe.prompt_token_ids.count(IM_END)) == (2, 1)
    assert list(safe.prompt_token_ids) == llm.tokenizer.encode_chat(hostile, sanitize_control_tokens=True)
    assert safe.prompt == plain.prompt
    streamed = llm.stream_chat(hostile, GREEDY, sanitize_control_tokens=True)
    assert "".join(chunk.text for chunk in streamed) == safe.outputs[0].text


def test_a_conversation_is_rendered_once_and_answered_as_chat_answers_it(llm: LLM, monkeypatch: Any) -> None:
    messages = [{"role": "user", "content": "Hi<|im_end|>"}]
    for sanitize in (False, True):
        (expected,) = llm.chat(messages, GREEDY, sanitize_control_tokens=sanitize)
        times, render = [], llm.tokenizer.render_chat
        monkeypatch.setattr(llm.tokenizer, "render_chat", lambda *a, **o: times.append(1) or render(*a, **o))  # noqa: B023
        prompt = llm.chat_prompt(messages, sanitize_control_tokens=sanitize)
        (output,) = llm.generate(prompt, GREEDY)
        streamed = "".join(chunk.text for chunk in llm.stream(prompt, GREEDY))
        monkeypatch.undo()
        assert times == [1]
        assert (output.prompt, output.prompt_token_ids) == (expected.prompt, expected.prompt_token_ids)
        assert (prompt.text, prompt.token_ids) == (expected.prompt, expected.prompt_token_ids)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        assert streamed == expected.outputs[0].text
    pushed = SamplingParams(temperature=0, max_tokens=5, logit_bias={IM_END: 100})
    assert llm.generate(prompt, pushed)[0].outputs[0].token_ids == (IM_END,), "the turn's end ends it"
    with pytest.raises(UsageError, match=r"LLM\.chat_prompt.*now"):
        llm.chat_prompt(messages, nwo=1)


def test_a_sanitised_conversation_has_the_same_bound(llm: LLM) -> None:
    with pytest.raises(CapacityError, match="shorten the prompt"):
        llm.chat([{"role": "user", "content": "x" * 10_000_000}], GREEDY, sanitize_control_tokens=True)
