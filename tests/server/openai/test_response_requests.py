"""Requests of /v1/responses made into the inner form."""

import re
from typing import Any

import pytest

from karat.server.asking.asked import ChatRequest
from karat.server.asking.variables import Effort
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import INPUT_TOKENS, RESPONSES, fields_of
from karat.server.openai.response_requests import read_response
from karat.server.openai.response_schema import AllowedTools, FunctionChoice, FunctionTool


def read(route: str = RESPONSES, **given: Any) -> ChatRequest:
    return read_response(judge({"input": "PLACEHOLDER", **given}, fields_of(route)))


def refused(**given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**given)
    assert caught.value.status == 400
    return caught.value


def test_the_conversation_becomes_that_of_templates() -> None:
    assert read().messages == [{"role": "user", "content": "PLACEHOLDER"}]
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
    assert asked.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
    ]


def test_what_is_sampled_and_given_back() -> None:
    asked = read(max_output_tokens=5, seed=7, stop="x", temperature=0.5, metadata={"a": "b"}, instructions="c")
    assert asked.given == {"max_tokens": 5, "seed": 7, "stop": "x", "temperature": 0.5}
    assert asked.echo.metadata == {"a": "b"} and asked.echo.max_output_tokens == 5 and asked.echo.instructions == "c"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call"}, "input[0].type"),
        ({"type": "function_call", "name": "a", "arguments": {}, "call_id": "b"}, "input[0].arguments"),
        ({"type": "function_call", "name": "a", "arguments": "{}", "call_id": "b", "files": [1]}, "input[0].files"),
        ({"type": "function_call_output", "call_id": "b"}, "input[0].output"),
        ({"type": "function_call_output", "call_id": "b", "output": "c"}, "messages"),
        ({"type": "reasoning", "content": "a"}, "input[0].content"),
        ({"type": "reasoning", "summary": [{"text": 1}]}, "input[0].summary.text"),
        ({"type": ["message"]}, "input[0].type"),
        ({"content": "a"}, "input[0].role"),
        ({"role": "tool", "content": "a"}, "input[0].role"),
        ({"role": ["user"], "content": "a"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": ["a"]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a", "image_url": "x"}]},
            "input[0].content[0].image_url",
        ),
        ({"role": "user", "content": "a", "audio": {"id": "x"}}, "input[0].audio"),
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
        ("max_tokens", "a"),
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
        "prompt_cache_key": "PLACEHOLDER",
        "stream_options": {"include_obfuscation": False},
    }
    assert read(**given).unused == tuple(given)
    tools = [{"type": "function", "name": "shell"}, {"type": "web_search"}, {"type": "a b"}]
    names = ("tools.web_search", "tools[2]")
    for route in (RESPONSES, INPUT_TOKENS):
        assert read(route, tools=tools).tools.dropped == names
        assert read(route, tools=tools, tool_choice="none").tools.dropped == ("tools.shell", *names)


def test_tools_and_what_the_answer_says_of_them() -> None:
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": True}]
    asked = read(tools=tools, tool_choice={"type": "function", "name": "shell"}, parallel_tool_calls=False)
    assert asked.tools.calling.must_call and asked.tools.calling.single and asked.tools.functions[0].strict
    assert asked.echo.tool_choice == FunctionChoice("shell") and not asked.echo.parallel_tool_calls
    assert asked.echo.tools == (FunctionTool("shell", {"type": "object"}, True),)
    some: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "shell"}]}
    allowed = read(tools=tools, tool_choice=some)
    assert allowed.tools.calling.must_call and allowed.echo.tool_choice == AllowedTools("required", some["tools"])
    assert read().echo.tools == () and read(tools=tools).echo.tool_choice == "auto"
    assert refused(tools=[{"type": "function", "function": {"name": "a"}}]).param == "tools[0].function"


def test_calls_results_and_reasoning_go_back() -> None:
    def call(number: int) -> dict[str, Any]:
        made = {"type": "function_call", "id": f"fc-{number}", "call_id": f"call_{number}", "status": "completed"}
        return made | {"name": "shell", "arguments": "{}"}

    thought = {"type": "reasoning", "id": "rs-1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]}
    result = {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "done"}]}
    other = {"type": "function_call_output", "call_id": "call_2", "output": "none"}
    user = {"role": "user", "content": "PLACEHOLDER"}
    first, said, one, two, again, last = read(
        input=[user, thought, answer, call(1), call(2), result, other, call(3), user]
    ).messages
    assert (first, last) == (user, user)
    assert said["reasoning_content"] == "Hm." and said["content"] == "Let me see."
    assert [made["id"] for made in said["tool_calls"]] == ["call_1", "call_2"]
    assert one == {"role": "tool", "tool_call_id": "call_1", "content": "done", "name": "shell"}
    assert two["content"] == "none" and again["content"] == "" and len(again["tool_calls"]) == 1


def test_reasoning_effort() -> None:
    asked = read(reasoning={"effort": "high", "summary": "auto"})
    assert asked.efforts == (Effort("reasoning.effort", "high"),)
    assert asked.unused == ("reasoning.summary",) and read(reasoning={}).efforts == ()
    assert refused(reasoning={"mood": "good"}).param == "reasoning.mood"
    assert read(text={"verbosity": "medium", "format": {"type": "text"}}).unused == ("text.verbosity",)
