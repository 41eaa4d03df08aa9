"""Tools that are made functions for the model, and what becomes of their calls: namespaces, custom tools, searches.

Covers: karat.server.openai.response_items.
"""

import json
from typing import Any

import pytest

from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import INPUT_TOKENS, RESPONSES, fields_of
from karat.server.openai.response_requests import read_response
from tests.server.conftest import Running
from tests.server.openai.test_responses import events_of
from tests.server.tool_cases import call
from tests.support.scripted import script
from tests.text.test_json_lark import PATCH as LARK_OF_PATCHES

FUNCTION = {
    "type": "function",
    "name": "list",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [FUNCTION]}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[+-][a-z]{1,9}"},
}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": {"type": "object"}}
LARK = {**PATCH, "name": "write", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a" /b+/'}}
TOOLS = [FUNCTION, SPACE, PATCH, SEARCH, LARK]


def read(**given: Any) -> Any:
    return read_response(judge({"input": "Hello", **given}, fields_of(RESPONSES)))


def refused(**given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**given)
    return caught.value


def test_the_model_is_shown_functions_alone() -> None:
    asked = read(tools=TOOLS)
    rendered = asked.tools.rendered()
    assert [each["function"]["name"] for each in rendered] == [
        "list",
        "mcp__files__list",
        "apply_patch",
        "tool_search",
        "write",
    ]
    told = rendered[2]["function"]["parameters"]
    assert told["required"] == ["input"] and "[+-][a-z]{1,9}" in told["properties"]["input"]["description"]
    assert asked.tools.dropped == () and len(asked.echo.tools) == 5
    one = read(tools=TOOLS, tool_choice={"type": "function", "name": "list", "namespace": "mcp__files"})
    assert [each.name for each in one.tools.calling.offers] == ["mcp__files__list"]
    custom = read(tools=TOOLS, tool_choice={"type": "custom", "name": "apply_patch"})
    assert custom.tools.calling.must_call and custom.echo.tool_choice.name == "apply_patch"
    kept = read(tools=[SPACE, {"type": "web_search"}]).tools
    assert kept.dropped == ("tools.web_search",) and len(kept.functions) == 1


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}],
        [{"type": "namespace", "tools": []}],
        [{**PATCH, "format": {"type": "grammar", "syntax": "peg", "definition": "a"}}],
        [{**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": ""}}],
        [FUNCTION, FUNCTION | {"description": "another"}],
    ],
)
def test_tools_of_a_wrong_form(tools: Any) -> None:
    assert (refused(tools=tools).param or "").startswith("tools")


HISTORY: list[dict[str, Any]] = [
    {"type": "message", "id": "m1", "role": "user", "content": "Hello"},
    {"type": "compaction", "id": "c1", "encrypted_content": "abc"},
    {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
    {"type": "function_call", "call_id": "1", "namespace": "mcp__files", "name": "list", "arguments": '{"a": "b"}'},
    {"type": "function_call_output", "call_id": "1", "output": "none"},
    {
        "type": "custom_tool_call",
        "id": "ct",
        "call_id": "2",
        "name": "apply_patch",
        "input": '+a\n"b"',
        "status": "completed",
    },
    {"type": "custom_tool_call_output", "call_id": "2", "output": "done"},
    {
        "type": "tool_search_call",
        "call_id": "3",
        "execution": "client",
        "arguments": {"query": "x"},
        "status": "completed",
    },
    {"type": "tool_search_output", "call_id": "3", "execution": "client", "status": "completed", "tools": [SPACE]},
    {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
    {"type": "item_reference", "id": "m1"},
]


def test_a_history_of_all_these() -> None:
    asked = read(input=HISTORY)
    messages = asked.messages
    calls = [
        (c["function"]["name"], json.loads(c["function"]["arguments"]))
        for m in messages
        for c in m.get("tool_calls", ())
    ]
    assert calls == [
        ("mcp__files__list", {"a": "b"}),
        ("apply_patch", {"input": '+a\n"b"'}),
        ("tool_search", {"query": "x"}),
    ]
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["none", "done", 'Tools: ["mcp__files"]']
    assert [function.name for function in asked.tools.functions] == ["list", "mcp__files__list"], "tools found"
    assert "input.encrypted_content" in asked.unused
    assert "no answer is kept" in refused(input=[{"type": "item_reference", "id": "other"}]).message
    assert refused(input=[{"type": "compaction", "encrypted_content": "abc"}]).param == "input"


CALLS = {
    "namespace": (
        call("mcp__files__list", '{"a": "b"}'),
        {"type": "function_call", "name": "list", "namespace": "mcp__files", "arguments": '{"a": "b"}'},
    ),
    "custom": (
        call("apply_patch", '{"input": "+abc"}'),
        {"type": "custom_tool_call", "name": "apply_patch", "input": "+abc"},
    ),
    "search": (
        call("tool_search", '{"query": "a"}'),
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "a"}},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_comes_as_the_tool_was_given_and_is_a_valid_next_turn(scripted: Running, name: str) -> None:
    said, expected = CALLS[name]
    body = {"input": [{"role": "user", "content": script(said)}], "tools": TOOLS}
    answer = scripted.ask(RESPONSES, body)
    assert answer.status == 200 and "tools" not in answer.headers.get("karat-without-effect", "")
    (item,) = answer.json["output"]
    assert {key: item[key] for key in expected} == expected and item["status"] == "completed"
    assert [tool["type"] for tool in answer.json["tools"]] == [
        "function",
        "namespace",
        "custom",
        "tool_search",
        "custom",
    ]
    events = events_of(scripted.ask(RESPONSES, {**body, "stream": True}))
    last = events[-1]["response"]["output"][0]
    assert {key: last[key] for key in expected} == expected
    if name == "custom":
        kinds = [event["type"] for event in events if "custom_tool_call_input" in event["type"]]
        assert kinds == ["response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"]
    output = {"type": f"{item['type'].removesuffix('_call')}_call_output", "call_id": item["call_id"], "output": "done"}
    if name == "search":
        output = {"type": "tool_search_output", "call_id": item["call_id"], "tools": [FUNCTION]}
    turn = [*body["input"], item, output]
    assert scripted.ask(INPUT_TOKENS, {"input": turn, "tools": TOOLS}).status == 200


def test_the_text_of_a_custom_tool_keeps_to_its_grammar(scripted: Running) -> None:
    for choice in ("auto", {"type": "custom", "name": "apply_patch"}):
        body = {"input": script(call("apply_patch", '{"input": "XYZ"}')), "tools": [PATCH], "tool_choice": choice}
        (item,) = scripted.ask(RESPONSES, body).json["output"]
        assert item["type"] == "custom_tool_call" and item["input"][0] in "+-" and item["input"][1:].islower()


def test_a_patch_keeps_to_the_grammar_of_codex_in_json(scripted: Running) -> None:
    tool = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": LARK_OF_PATCHES}}
    patch = '*** Begin Patch\n*** Update File: a "b".py\n@@ def f():\n-\tprint("\\n")\n+\tpass\n*** End Patch'
    said = call("apply_patch", json.dumps({"input": patch}))
    for choice in ("auto", "required", {"type": "custom", "name": "apply_patch"}):
        body = {"input": script(said), "tools": [tool], "tool_choice": choice}
        (item,) = scripted.ask(RESPONSES, body).json["output"]
        assert item["type"] == "custom_tool_call" and item["status"] == "completed" and item["input"] == patch
    wrong = script(call("apply_patch", json.dumps({"input": patch.replace("*** Update", "+++ Update")})))
    cut = scripted.ask(RESPONSES, {"input": wrong, "tools": [tool], "max_output_tokens": 90}).json["output"][0]
    assert cut["type"] == "custom_tool_call" and cut["input"].startswith("*** Begin Patch\n*** ")


@pytest.mark.parametrize("definition", ['start: %json {"type": "string"}', "start: /a(?=b)/", "start: <|end|>"])
def test_a_grammar_that_cannot_be_kept_to_is_refused(scripted: Running, definition: str) -> None:
    tool = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": definition}}
    answer = scripted.ask(RESPONSES, {"input": "Hello", "tools": [tool]})
    assert answer.status == 400 and "the text of the tool apply_patch" in answer.json["error"]["message"]


def test_the_openai_package_reads_them(scripted: Running) -> None:
    types = pytest.importorskip("openai.types.responses", reason="openai is not installed")
    for said, _ in CALLS.values():
        whole = scripted.ask(RESPONSES, {"input": script(said), "tools": TOOLS})
        types.Response.model_validate_json(whole.content, strict=True)
