"""Anthropic's requests made into the inner form."""

from typing import Any

import pytest

from karat.server.anthropic.requests import read_message
from karat.server.asking.asked import ChatRequest
from karat.server.asking.variables import Effort
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import COUNT, MESSAGES, fields_of

USER = {"role": "user", "content": "PLACEHOLDER"}


def read(**given: Any) -> ChatRequest:
    return read_message(judge({"messages": [USER], "max_tokens": 5, **given}, fields_of(MESSAGES)))


def refused(**given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**given)
    assert caught.value.status == 400
    assert caught.value.param and caught.value.param.split("[")[0] in caught.value.message
    return caught.value


@pytest.mark.parametrize("parts", [1, 2])
def test_claude_codes_line_of_accounting_is_left_out_and_named(parts: int) -> None:
    """It has other numbers in each request, so no prefix would be shared."""
    line, told = "x-anthropic-billing-header: cc_version=2.1.197; cch=36ee5;", "be kind"
    system: Any = f"{line}\n{told}" if parts == 1 else [{"type": "text", "text": text} for text in (line, told)]
    asked = read(system=system)
    assert asked.messages[0] == {"role": "system", "content": told}
    assert asked.unused == ("system.x-anthropic-billing-header",)
    assert read(system=line).messages == [USER]
    later = read(system=f"{told}\n{line}")
    assert later.messages[0]["content"] == f"{told}\n{line}" and later.unused == ()


def test_the_conversation_becomes_that_of_templates() -> None:
    mark = {"type": "ephemeral"}
    asked = read(
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "kind", "cache_control": mark}],
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            # what the anthropic package makes of an answer, sent back
            {"role": "assistant", "content": [{"type": "text", "text": "c", "citations": None}]},
            {"role": "user", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
            {"role": "user", "content": [{"type": "text", "text": "f"}, {"type": "text", "text": "g"}]},
        ],
    )
    assert asked.messages == [
        {"role": "system", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        # blocks are parts, which the template reads or gets joined; a line break parts messages
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("d", "e\nf", "g")]},
    ]
    assert asked.unused == ("cache_control",)


def test_what_is_sampled() -> None:
    asked = read(stop_sequences=["x"], temperature=0.5, top_k=3, seed=7, stream=True)
    assert asked.given == {"max_tokens": 5, "stop": ["x"], "temperature": 0.5, "top_k": 3, "seed": 7}
    assert asked.form.stream and asked.unused == ()


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "a"}, "messages[0].role"),
        ({"role": "developer", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": "a", "images": ["b"]}, "messages[0].images"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "messages[0].content[0].tool_use_id"),
        ({"role": "user", "content": [{"type": "tool_use"}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}, "messages[0].content[0].name"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]},
            "messages[0].content[0].input",
        ),
        ({"role": "user", "content": [{"type": "redacted_thinking"}]}, "messages[0].content[0].type"),
        ({"role": "system", "content": [{"type": "thinking", "thinking": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "source": {"data": "x"}}]},
            "messages[0].content[0].source",
        ),
    ],
)
def test_messages_that_are_no_text_are_refused_by_name(message: dict[str, Any], param: str | None) -> None:
    assert refused(messages=[message]).param == param or param is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool", "name": "PLACEHOLDER"}),
        ("tool_choice", "any"),
        ("tool_choice", "often"),
        ("output_config", {"effort": 1}),
        ("output_config", {"format": {"type": "text"}}),
        ("output_config", {"other": 1}),
        ("output_format", {"type": "json_schema"}),
        ("tool_choice", {"type": ["auto"]}),
        ("tool_choice", {"type": "auto", "name": "a"}),
        ("tool_choice", {"type": "any", "disable_parallel_tool_use": 1}),
        ("thinking", {"type": "often"}),
        ("tools", [{}]),
        ("tools", [{"name": "a\r\nSet-Cookie: b"}]),
        ("tools", [{"name": "a", "input_schema": []}]),
        ("tools", [{"name": "a", "parameters": {"type": "object"}}]),
        ("tools", [{"name": "a"}, {"name": "a"}]),
        ("service_tier", "priority"),
        ("stop", [1]),
        ("n", 2),
        ("logprobs", 1),
        ("system", 1),
        ("stop_sequences", "a"),
        ("other", 1),
    ],
)
def test_what_is_refused(name: str, value: Any) -> None:
    assert (refused(**{name: value}).param or "").split("[")[0].partition(".")[0] == name


def test_fields_that_change_nothing_are_named() -> None:
    given = {
        "metadata": {"user_id": "PLACEHOLDER"},
        "service_tier": "auto",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    asked = read(**given)
    assert asked.unused == tuple(name for name in given if name != "output_config")
    assert asked.efforts == (Effort("output_config.effort", "high", switches=False),)
    assert read(thinking={"type": "adaptive", "display": "omitted"}).unused == ("thinking.display",)


TOOLS = [
    {"name": "read_file", "description": "a", "input_schema": {"type": "object"}, "strict": True},
    {"type": "custom", "name": "clock", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True},
]
OTHERS = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "a\r\nSet-Cookie: b"}]


def test_tools() -> None:
    tools = read(tools=TOOLS).tools
    assert [function.name for function in tools.functions] == ["read_file", "clock"]
    assert not tools.calling.single and not tools.calling.must_call and tools.functions[0].strict
    rendered = tools.rendered()
    assert rendered is not None and rendered[0] == {
        "type": "function",
        "function": {"name": "read_file", "description": "a", "parameters": {"type": "object"}},
    }
    assert read(tools=TOOLS).unused == ("tools.eager_input_streaming", "cache_control")
    assert read(tools=TOOLS, tool_choice={"type": "any"}).tools.calling.must_call
    for word, meant in (
        ("any", {"type": "any"}),
        ("required", {"type": "any"}),
        ("auto", None),
        ("none", {"type": "none"}),
    ):
        assert read(tools=TOOLS, tool_choice=word).tools == read(tools=TOOLS, tool_choice=meant).tools
    single = read(tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}).tools
    assert not single.calling.must_call and single.calling.single
    named = read(tools=TOOLS, tool_choice={"type": "tool", "name": "clock"}).tools
    assert [function.name for function in named.functions] == ["clock"] and named.calling.must_call
    assert read().tools.rendered() is None


def test_every_tool_that_is_dropped_is_named() -> None:
    named = ("tools.web_search", "tools[3]")
    assert read(tools=[*TOOLS, *OTHERS]).tools.dropped == named
    none = read(tools=[*TOOLS, *OTHERS], tool_choice={"type": "none"}).tools
    assert none.dropped == ("tools.read_file", "tools.clock", *named) and not none.functions
    many = read(tools=[{"type": "web_search"}] * 70).tools.dropped
    assert many[63:] == ("tools.web_search", "tools[6 more]")
    for choice in ({"type": "any"}, {"type": "tool", "name": "clock"}):
        assert "no function" in refused(tools=[*TOOLS, *OTHERS], tool_choice=choice).message
    assert "not among tools" in refused(tools=TOOLS, tool_choice={"type": "tool", "name": "other"}).message


def test_calls_results_and_reasoning_go_back() -> None:
    asked = read(
        messages=[
            USER,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {"zone": "é"}},
                ],
            },
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "noon"}]},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True, "content": "none"},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ]
    )
    user, answer, first, second, last = asked.messages
    assert user == USER and last == {"role": "user", "content": "Go on."}
    assert answer["content"] == "Let me see." and answer["reasoning_content"] == "Hm."
    assert [call["function"] for call in answer["tool_calls"]] == [
        {"name": "clock", "arguments": '{"zone":"é"}'},
        {"name": "read_file", "arguments": "{}"},
    ]
    assert first == {"role": "tool", "tool_call_id": "toolu_1", "content": "noon", "name": "clock"}
    assert second == {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: none", "name": "read_file"}
    lost = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9"}]}
    with pytest.raises(ApiError, match="toolu_9"):
        read(messages=[USER, lost])


@pytest.mark.parametrize(
    ("thinking", "level", "names"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, "on", ("thinking.budget_tokens",)),
        ({"type": "disabled"}, "none", ()),
        ({"type": "adaptive"}, None, ()),
    ],
)
def test_thinking(thinking: dict[str, Any], level: str | None, names: tuple[str, ...]) -> None:
    asked = read(thinking=thinking)
    assert [effort.level for effort in asked.efforts] == ([] if level is None else [level])
    assert asked.unused == names


def test_a_count_needs_no_length() -> None:
    asked = read_message(judge({"messages": [USER], "system": "a"}, fields_of(COUNT)))
    assert [message["role"] for message in asked.messages] == ["system", "user"]
    with pytest.raises(ApiError, match="max_tokens"):
        judge({"messages": [USER], "max_tokens": 1}, fields_of(COUNT))
    with pytest.raises(ApiError, match="max_tokens is missing"):
        judge({"messages": [USER]}, fields_of(MESSAGES))
