"""Messages: LLM and the server take the same of them, and make the same prompt of it.

Covers: karat.engine.requests.passed.
"""

import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.engine.model_loading.defaults import GenerationDefaults
from karat.engine.requests.messages import CONTINUING, linked
from karat.engine.requests.request_making import RequestMaker
from karat.errors import RequestError, TemplateError
from karat.server.asking.asked import ChatRequest
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import CHAT, fields_of
from karat.server.openai.requests import read_chat
from tests.engine.tiny import GREEDY
from tests.text.tools.models import HARMONY, HERMES, MESSAGES, byte_tokenizer

USER = {"role": "user", "content": "Hi"}


def maker(template: str = HERMES) -> RequestMaker:
    special = MESSAGES if template is HARMONY else ()
    tokenizer = byte_tokenizer(template, special=special)
    return RequestMaker(tokenizer, GenerationDefaults(GREEDY, frozenset(), None), max_model_len=5000, seed=0)


def over_http(messages: Any) -> ChatRequest | ApiError:
    try:
        return read_chat(judge({"messages": messages}, fields_of(CHAT)))
    except ApiError as refusal:
        return refusal


MAKERS = {name: maker(template) for name, template in (("hermes", HERMES), ("harmony", HARMONY))}
CONTENTS: Any = st.sampled_from(
    ["", "a", None, [], ["a"], [{"type": "text", "text": "b"}, "c"], 5, [{"type": "image"}]]
)
CALLS: Any = st.sampled_from(
    [
        None,
        [],
        [{"id": "1", "function": {"name": "clock", "arguments": {"a": 1}}}],
        [{"id": "1", "type": None, "index": 0, "function": {"name": "clock", "arguments": '{"a": 1}', "x": 1}}],
        [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": None}, "extra_content": {"a": 1}}],
    ]
)
EXTRA: Any = st.dictionaries(
    st.sampled_from(
        ["foo", "images", "audio", "createdAt", "name", "refusal", "reasoning", "thinking", "cache_control"]
    ),
    st.sampled_from([None, [], "", "a", 1, {"a": 1}]),
    max_size=2,
)
TURNS: Any = st.one_of(
    st.builds(lambda content, extra: {"role": "user", "content": content} | extra, CONTENTS, EXTRA),
    st.builds(
        lambda content, calls, extra: {"role": "assistant", "content": content, "tool_calls": calls} | extra,
        CONTENTS,
        CALLS,
        EXTRA,
    ),
    st.builds(
        lambda content, of, extra: {"role": "tool", "content": content} | of | extra,
        CONTENTS,
        st.sampled_from([{"tool_call_id": "1"}, {}, {"tool_call_id": None}, {"name": "clock"}]),
        EXTRA,
    ),
    st.builds(
        lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "developer"]), CONTENTS
    ),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(MAKERS)), st.lists(TURNS, min_size=1, max_size=4))
def test_python_and_http_take_the_same_and_make_the_same_prompt(name: str, messages: list[dict[str, Any]]) -> None:
    asked = over_http(messages)
    if isinstance(asked, ApiError):
        with pytest.raises(RequestError) as caught:
            MAKERS[name].chat_prompt(messages, {})
        assert caught.value.param == asked.param
        return
    try:
        expected = MAKERS[name].chat_prompt(asked.messages, {})
    except TemplateError:
        with pytest.raises(TemplateError):
            MAKERS[name].chat_prompt(messages, {})
        return
    assert MAKERS[name].chat_prompt(messages, {}) == expected


def test_a_result_without_an_id_is_of_the_first_call_that_waits() -> None:
    def call(name: str, **more: str) -> dict[str, Any]:
        return {"function": {"name": name, "arguments": {}}, **more}

    made = {"role": "assistant", "content": "", "tool_calls": [call("a", id="1"), call("b", id="2"), call("c")]}
    first, second, third, more = ({"role": "tool", "content": text} for text in "1234")
    assert linked([USER, made, {**first, "name": "b"}, second, third, more]) == [
        USER,
        made,
        {**first, "name": "b", "tool_call_id": "2"},
        {**second, "name": "a", "tool_call_id": "1"},
        {**third, "name": "c"},
        more,
    ]
    assert linked([made, {**first, "tool_call_id": "1"}, second])[2] == {**second, "name": "b", "tool_call_id": "2"}
    assert linked([USER, first]) == [USER, first]


def test_an_answer_without_a_content_is_empty() -> None:
    empty = maker().chat_prompt([USER, {"role": "assistant", "content": ""}, USER], {})
    for answer in ({"content": None}, {}, {"content": []}, {"tool_calls": None}, {"content": None, "tool_calls": []}):
        assert maker().chat_prompt([USER, {"role": "assistant", **answer}, USER], {}) == empty


def test_what_no_model_is_shown_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    made = maker()
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "karat"):
            assert made.chat_prompt([{**USER, "foo": 1}], {}) == made.chat_prompt([USER], {})
    (record,) = caplog.records
    assert record.getMessage().startswith("messages.foo: ")
    with pytest.raises(RequestError, match=r"messages\[0\] has 'images'=\['a'\]"):
        made.chat_prompt([{**USER, "images": ["a"]}], {})


def test_calls_and_results_need_no_ids() -> None:
    """As in the examples of transformers."""
    call = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "x"}}}
    result = {"role": "tool", "name": "clock", "content": "noon"}
    made = maker().chat_prompt([USER, {"role": "assistant", "tool_calls": [call]}, result], {}).text
    assert '{"name": "clock", "arguments": {"zone": "x"}}' in made and "noon" in made


@pytest.mark.parametrize("key", CONTINUING)
def test_an_answer_goes_on_with_a_message_that_says_so(key: str) -> None:
    messages = [USER, {"role": "assistant", "content": "It is", key: True}]
    made = maker().chat_prompt(messages, {"add_generation_prompt": True})
    assert made.begun == "It is" and made.text.endswith("It is")
    asked = over_http(messages)
    assert isinstance(asked, ChatRequest) and asked.continues and not asked.variables["add_generation_prompt"]
