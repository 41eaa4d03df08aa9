"""OpenAI's requests made into the inner form."""

from typing import Any

import pytest

from karat.server.asking.asked import ChatRequest, TextRequest
from karat.server.asking.terms import MAX_DRAWN_SEED, drawn_seed
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import CHAT, TEXT, fields_of
from karat.server.openai.requests import read_chat, read_text

USER = {"role": "user", "content": "PLACEHOLDER"}


def chat(**given: Any) -> ChatRequest:
    return read_chat(judge({"messages": [USER], **given}, fields_of(CHAT)))


def text(**given: Any) -> TextRequest:
    return read_text(judge({"prompt": "PLACEHOLDER", **given}, fields_of(TEXT)))


def refused(make: Any, **given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make(**given)
    assert caught.value.status == 400
    return caught.value


def test_roles_and_contents_become_those_of_templates() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    sent = [parts[0], {**parts[1], "annotations": None, "citations": []}]
    asked = chat(
        messages=[
            {"role": "developer", "content": "be kind", "name": "PLACEHOLDER"},
            {"role": "user", "content": sent},
            # what the openai package makes of an answer, sent back
            {
                "role": "assistant",
                "content": "c",
                "refusal": None,
                "annotations": [],
                "audio": None,
                "tool_calls": None,
            },
        ]
    )
    assert asked.messages == [
        {"role": "system", "content": "be kind", "name": "PLACEHOLDER"},
        {"role": "user", "content": parts},  # the template reads them, or gets them joined
        {"role": "assistant", "content": "c"},
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "a"}, "messages[0].role"),
        ({"role": "<|im_end|>", "content": "a"}, "messages[0].role"),
        ({"role": "function", "content": "a", "name": "b"}, "messages[0].role"),
        ({"role": "tool", "content": "a", "tool_call_id": 1}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "a", "tool_call_id": "b"}, "messages"),
        ({"role": "user", "content": "a", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "assistant", "content": 1}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0]"),
        ({"role": "user", "content": "a", "name": 1}, "messages[0].name"),
        ({"role": "user", "content": "a", "images": ["x"]}, "messages[0].images"),
        ({"role": "assistant", "tool_calls": "a"}, "messages[0].tool_calls"),
        ({"role": "assistant", "content": "a", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {}, "id": 1}]}, "messages[0].tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "b", "file": 1}}]}, None),
        ({"role": "assistant", "content": "a", "reasoning": 1}, "messages[0].reasoning"),
    ],
)
def test_messages_that_are_no_text_are_refused_by_name(message: dict[str, Any], param: str | None) -> None:
    assert refused(chat, messages=[message]).param == param or param is None


TOOLS = [
    {"type": "function", "function": {"name": "clock", "description": "a", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "read_file", "parameters": {}, "strict": True}},
]


def test_tools() -> None:
    tools = chat(tools=TOOLS).tools
    assert tools.rendered() == [TOOLS[0], {"type": "function", "function": {"name": "read_file", "parameters": {}}}]
    assert (
        not tools.calling.single
        and not tools.calling.must_call
        and [each.strict for each in tools.functions] == [False, True]
    )
    assert chat(tools=TOOLS, parallel_tool_calls=False).tools.calling.single
    assert chat(tools=TOOLS, tool_choice="required").tools.calling.must_call
    assert chat(tools=TOOLS, tool_choice="any").tools == chat(tools=TOOLS, tool_choice="required").tools
    named = chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "clock"}}).tools
    assert [each.name for each in named.functions] == ["clock"] and named.calling.must_call
    some = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    allowed = chat(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": some}).tools
    assert len(allowed.functions) == 2 and [each.name for each in allowed.calling.offers] == ["clock"]
    assert allowed.calling.is_part and not allowed.calling.must_call
    assert chat(tools=TOOLS, tool_choice="none").tools.dropped == ("tools.clock", "tools.read_file")
    others = [*TOOLS, {"type": "web_search", "web_search": {"name": "x"}}, {}]
    assert chat(tools=others).tools.dropped == ("tools.web_search", "tools[3]")
    assert refused(chat, tools=others, tool_choice="required").param == "tools"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "input_schema": {"a": 1}}}]},
            "tools[0].function.input_schema",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "often"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "clock"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
    ],
)
def test_tools_that_are_refused(given: dict[str, Any], param: str) -> None:
    assert refused(chat, **given).param == param


def test_calls_results_and_reasoning_go_back() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    user, answer, result, last = chat(
        messages=[
            USER,
            # what the openai package makes of a streamed answer, sent back
            {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [{**call, "index": 0}]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
            USER,
        ]
    ).messages
    assert (user, last) == (USER, USER)
    assert answer == {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]}
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "noon", "name": "clock"}


def test_the_newer_name_of_max_tokens() -> None:
    assert chat(max_completion_tokens=5).given["max_tokens"] == 5
    assert chat(max_completion_tokens=5, max_tokens=5).given["max_tokens"] == 5
    assert refused(chat, max_completion_tokens=5, max_tokens=6).param == "max_tokens"


def test_logprobs_of_a_chat() -> None:
    assert "logprobs" not in chat(logprobs=False).given
    assert chat(logprobs=True).given["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=3).given["logprobs"] == 3
    assert refused(chat, top_logprobs=3).param == "top_logprobs"


@pytest.mark.parametrize(
    "name", ["messages", "max_tokens", "chat_template", "now", "sanitize_control_tokens", "self", "a b"]
)
def test_variables_of_the_template_replace_nothing_of_its_own(name: str) -> None:
    assert refused(chat, chat_template_kwargs={name: False}).param == "chat_template_kwargs"
    assert chat(chat_template_kwargs={"enable_thinking": False}).variables == {
        "enable_thinking": False,
        "add_generation_prompt": True,
    }


def test_prompts() -> None:
    assert text().prompts == ["PLACEHOLDER"]
    assert text(prompt=["a", "b"]).prompts == ["a", "b"]
    assert text(prompt=[1, 2]).prompts == [(1, 2)]
    assert text(prompt=[[1], [2, 3]]).prompts == [(1,), (2, 3)]
    assert refused(text, prompt=["a", 1]).param == "prompt"
    assert refused(text, prompt=["a"] * 129).param == "prompt"


def test_no_tokens_are_for_an_echo_alone() -> None:
    asked = text(max_tokens=0, echo=True, logprobs=2)
    assert asked.form.no_answer and asked.given == {"max_tokens": 1, "logprobs": 2, "prompt_logprobs": 2}
    assert refused(text, max_tokens=0).param == "max_tokens"


def test_stream_options() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).form.include_usage
    assert chat(stream=True, stream_options={"continuous_usage_stats": True}).form.continuous_usage
    assert refused(chat, stream=True, stream_options={"x": 1}).param == "stream_options.x"
    assert refused(chat, stream_options={"include_usage": True}).param == "stream_options"


def test_drawn_seeds_differ_and_fit_any_reader() -> None:
    seeds = {drawn_seed() for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= seed < MAX_DRAWN_SEED for seed in seeds)
