"""Anthropic's requests made into the inner form."""

import json
from typing import Any

import pytest

from karat.server.anthropic.requests import MessageRequest, read_message
from karat.server.errors import ApiError
from karat.server.fields import COUNT, MESSAGES

USER = {"role": "user", "content": "PLACEHOLDER"}


def read(**given: Any) -> MessageRequest:
    return read_message(json.dumps({"messages": [USER], "max_tokens": 5, **given}).encode(), MESSAGES)


def refused(**given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**given)
    assert caught.value.status == 400
    assert caught.value.param and caught.value.param.split("[")[0] in caught.value.message
    return caught.value


def test_the_conversation_becomes_that_of_templates() -> None:
    mark = {"type": "ephemeral"}
    asked = read(
        system=[{"type": "text", "text": "be"}, {"type": "text", "text": "kind", "cache_control": mark}],
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            # what the anthropic package makes of an answer, sent back
            {"role": "assistant", "content": [{"type": "text", "text": "c", "citations": None}]},
            {"role": "user", "content": "d"},
        ],
    )
    assert asked.chat.messages == [
        {"role": "system", "content": "be\nkind"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert asked.without_effect == ("cache_control",)


def test_what_is_sampled() -> None:
    asked = read(stop_sequences=["x"], temperature=0.5, top_k=3, seed=7, stream=True)
    assert asked.chat.given == {"max_tokens": 5, "stop": ["x"], "temperature": 0.5, "top_k": 3, "seed": 7}
    assert asked.chat.form.stream and asked.without_effect == ()


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "a"}, "messages[0].role"),
        ({"role": "developer", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "assistant", "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": "a", "name": "b"}, "messages[0].name"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "messages[0].content[0].x"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1}]}, None),
        ({"role": "user", "content": [{"type": "text", "text": "a", "citations": [{}]}]}, None),
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
        ("tool_choice", "auto"),
        ("thinking", {"type": "enabled", "budget_tokens": 1024}),
        ("output_config", {"effort": "low"}),
        ("output_config", {"format": {"type": "text"}}),
        ("output_config", {"other": 1}),
        ("output_format", {"type": "json_schema"}),
        ("service_tier", "priority"),
        ("stop", ["a"]),
        ("n", 2),
        ("logprobs", 1),
        ("system", 1),
        ("stop_sequences", "a"),
        ("other", 1),
    ],
)
def test_what_is_refused(name: str, value: Any) -> None:
    assert (refused(**{name: value}).param or "").partition(".")[0] == name


def test_fields_that_change_nothing_are_named() -> None:
    given = {
        "metadata": {"user_id": "PLACEHOLDER"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    assert read(**given).without_effect == (
        *(name for name in given if name != "output_config"),
        "output_config.effort",
    )
    assert read(thinking={"type": "adaptive", "display": "omitted"}).without_effect == ("thinking",)


@pytest.mark.parametrize("choice", [{}, {"tool_choice": {"type": "auto"}}, {"tool_choice": {"type": "none"}}])
def test_every_tool_that_is_dropped_is_named(choice: dict[str, Any]) -> None:
    tools = [
        {"name": "read_file", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "a\r\nSet-Cookie: b"},
        {},
    ]
    named = ("tools.read_file", "tools.web_search", "tools[2]", "tools[3]")
    assert read(tools=tools, **choice).without_effect == (*choice, *named)
    assert read(tools=[{"name": "t"}] * 70).without_effect[63:] == ("tools.t", "tools[64..69]")


def test_a_count_needs_no_length() -> None:
    asked = read_message(json.dumps({"messages": [USER], "system": "a"}).encode(), COUNT)
    assert [message["role"] for message in asked.chat.messages] == ["system", "user"]
    with pytest.raises(ApiError, match="max_tokens"):
        read_message(json.dumps({"messages": [USER], "max_tokens": 1}).encode(), COUNT)
    with pytest.raises(ApiError, match="max_tokens is missing"):
        read_message(json.dumps({"messages": [USER]}).encode(), MESSAGES)
