"""Requests of /v1/responses made into the inner form."""

import json
import re
from typing import Any

import pytest

from karat.server.errors import ApiError
from karat.server.fields import INPUT_TOKENS, RESPONSES
from karat.server.openai.response_requests import ResponseRequest, read_response


def read(route: str = RESPONSES, **given: Any) -> ResponseRequest:
    return read_response(json.dumps({"input": "PLACEHOLDER", **given}).encode(), route)


def refused(**given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**given)
    assert caught.value.status == 400
    return caught.value


def test_the_conversation_becomes_that_of_templates() -> None:
    assert read().chat.messages == [{"role": "user", "content": "PLACEHOLDER"}]
    asked = read(
        instructions="be kind",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "user", "content": "b"},
            # what the openai package makes of an answer, sent back
            {
                "id": "msg-1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "phase": None,
                "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "d"}, {"type": "input_text", "text": "e"}]},
        ],
    )
    assert asked.chat.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d\ne"},
    ]


def test_what_is_sampled_and_given_back() -> None:
    asked = read(max_output_tokens=5, seed=7, stop="x", temperature=0.5, metadata={"a": "b"}, instructions="c")
    assert asked.chat.given == {"max_tokens": 5, "seed": 7, "stop": "x", "temperature": 0.5}
    assert asked.echo.metadata == {"a": "b"} and asked.echo.max_output_tokens == 5 and asked.echo.instructions == "c"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call", "name": "a", "arguments": "{}", "call_id": "b"}, "input[0].type"),
        ({"type": "reasoning", "summary": []}, "input[0].type"),
        ({"type": ["message"]}, "input[0].type"),
        ({"content": "a"}, "input[0].role"),
        ({"role": "tool", "content": "a"}, "input[0].role"),
        ({"role": ["user"], "content": "a"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": []}, "input[0].content"),
        ({"role": "user", "content": ["a"]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}]}, "input[0].content[0].x"),
        ({"role": "user", "content": "a", "x": 1}, "input[0].x"),
    ],
)
def test_items_that_are_no_text_are_refused_by_name(item: dict[str, Any], param: str) -> None:
    assert refused(input=[item]).param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("previous_response_id", "resp-1"),
        ("conversation", "PLACEHOLDER"),
        ("background", True),
        ("input", []),
        ("max_output_tokens", 0),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "name": "PLACEHOLDER"}),
        ("text", {"format": {"type": "json_schema"}}),
        ("truncation", "auto"),
        ("include", ["message.output_text.logprobs"]),
        ("top_logprobs", 2),
        ("n", 2),
        ("max_tokens", 2),
        ("messages", []),
        ("other", 1),
    ],
)
def test_what_is_refused(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert re.split(r"[.\[]", error.param or "")[0] == name and name in error.message


def test_what_changes_nothing_is_named_and_so_is_every_tool() -> None:
    given = {
        "store": False,
        "background": False,
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": True,
        "prompt_cache_key": "PLACEHOLDER",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "tool_choice": "auto",
        "stream_options": {"include_obfuscation": False},
    }
    tools = [{"type": "function", "name": "shell"}, {"type": "web_search"}, {"type": "a b"}]
    names = ("tools.shell", "tools.web_search", "tools[2]")
    assert read(tools=tools, **given).without_effect == (*given, *names)
    assert read(text={"verbosity": "medium", "format": {"type": "text"}}).without_effect == ("text.verbosity",)
    assert read(INPUT_TOKENS, tools=tools).without_effect == names
