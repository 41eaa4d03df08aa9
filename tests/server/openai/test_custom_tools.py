"""Custom tools of chats: what the model is shown, what becomes of their calls, and histories with them.

Covers: karat.server.openai.deltas.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.engine.requests.passed import Passed
from karat.errors import RequestError
from karat.server.errors import ApiError
from karat.server.fields import CHAT, RENDER
from karat.server.openai.custom_tools import arguments_of, custom_tool, text_of
from karat.server.openai.messages import read_messages
from karat.server.openai.tools import read_tools
from tests.server.conftest import Running
from tests.server.tool_cases import call
from tests.support.scripted import script

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def of_grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def custom(name: str = "patch", **given: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **given}}


GRAMMAR = of_grammar("regex", "[+-][a-z]{1,9}")
LARK = of_grammar("lark", 'start: "a" /b+/')
TOOLS = [LOOK, custom(description="Change files.", format=GRAMMAR), custom("say", format={"type": "text"})]


def chat(said: str, **given: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": script(said)}], "tools": TOOLS, **given}


def test_the_model_is_shown_functions_alone() -> None:
    tools, customs = read_tools({"tools": [*TOOLS, {"type": "web_search"}]}, Passed())
    shown = [each["function"] for each in tools.rendered() or ()]
    assert [each["name"] for each in shown] == ["look", "patch", "say"] and customs == {"patch", "say"}
    assert shown[1]["description"] == "Change files." and "[+-][a-z]{1,9}" in str(shown[1]["parameters"])
    assert tools.dropped == ("tools.web_search",)
    for choice in (custom(), {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [custom()]}}):
        chosen, _ = read_tools({"tools": TOOLS, "tool_choice": choice}, Passed())
        assert [each.name for each in chosen.calling.offers] == ["patch"] and chosen.calling.must_call


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "tools[0]"),
        ({"type": "custom", "function": {"name": "a"}}, "tools[0]"),
        ({"type": "custom", "custom": {"name": "a", "parameters": {"a": 1}}}, "tools[0].custom.parameters"),
        (custom("a", format={"type": "grammar", "grammar": "a"}), "tools[0].custom.format"),
        (custom("a", format=of_grammar("peg", "a")), "tools[0].custom.format"),
        (custom("a", format=of_grammar("regex", "")), "tools[0].custom.format"),
    ],
)
def test_tools_of_a_wrong_form(tool: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_tools({"tools": [tool]}, Passed())
    assert caught.value.param == param


@pytest.mark.parametrize(
    "choice", [{"type": "custom"}, {"type": "custom", "function": {"name": "patch"}}, custom("other")]
)
def test_a_choice_of_a_wrong_form(choice: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read_tools({"tools": TOOLS, "tool_choice": choice}, Passed())
    assert caught.value.param == "tool_choice"


@given(st.text())
def test_a_text_is_what_its_arguments_say(text: str) -> None:
    assert text_of(arguments_of(text)) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    whole = arguments_of(text)
    for length in range(len(whole)):
        assert text.startswith(text_of(whole[:length]).removesuffix("\ufffd")), "the text of a call that is cut"


def test_the_grammar_may_stand_as_in_responses() -> None:
    assert custom_tool({"name": "a"}, {"type": "grammar", **GRAMMAR["grammar"]}, "", Passed()) == custom_tool(  # type: ignore[dict-item]
        {"name": "a"}, GRAMMAR, "", Passed()
    )


CALLS = {
    "custom": (call("patch", '{"input": "+abc"}'), [("patch", "+abc")]),
    "three": (
        call("say", '{"input": "a \\"b\\"\\né"}') + call("look", "{}") + call("patch", '{"input": "-x"}'),
        [("say", 'a "b"\né'), ("look", None), ("patch", "-x")],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_comes_as_the_tool_was_given_and_is_a_valid_next_turn(scripted: Running, name: str) -> None:
    chats = pytest.importorskip("openai", reason="openai is not installed (requirements/clients.txt)").types.chat
    said, expected = CALLS[name]
    answer = scripted.ask(CHAT, chat(said))
    assert answer.status == 200 and "tools" not in answer.headers.get("karat-without-effect", "")
    (choice,) = chats.ChatCompletion.model_validate_json(answer.content).choices
    assert choice.finish_reason == "tool_calls"
    made = [
        (each.custom.name, each.custom.input) if each.type == "custom" else (each.function.name, None)
        for each in choice.message.tool_calls
    ]
    assert made == expected
    message = answer.json["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "done"} for each in message["tool_calls"]]
    turn = [*chat(said)["messages"], message, *results]
    shown = scripted.ask(RENDER, {"messages": turn, "tools": TOOLS})
    assert shown.status == 200, shown.content
    assert json.dumps({"input": expected[0][1]}, ensure_ascii=False) in shown.json["prompt"], "as the model writes it"
    assert _gathered(scripted, chat(said, stream=True)) == [
        {"name": name} if text is None else {"name": name, "input": text} for name, text in expected
    ]


def test_the_package_streams_them(scripted: Running) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed (requirements/clients.txt)")
    client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="-")
    said, expected = CALLS["three"]
    texts: dict[int, str] = {}
    for chunk in client.chat.completions.create(model="scripted", stream=True, **chat(said)):
        for each in chunk.choices[0].delta.tool_calls or ():
            if each.type == "custom" or each.index in texts:
                texts[each.index] = texts.get(each.index, "") + each.custom["input"]
    assert texts == {0: expected[0][1], 2: expected[2][1]}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(CALLS)), st.integers(1, 90))
def test_an_answer_that_is_cut_is_a_valid_next_turn(scripted: Running, name: str, length: int) -> None:
    body = chat(CALLS[name][0], max_tokens=length)
    message = scripted.ask(CHAT, body).json["choices"][0]["message"]
    inputs = [each["custom"]["input"] for each in message.get("tool_calls", ()) if each["type"] == "custom"]
    streamed = _gathered(scripted, body | {"stream": True})
    assert [each["input"] for each in streamed if "input" in each] == inputs
    again = scripted.ask(CHAT, body | {"messages": [*body["messages"], message, *body["messages"]]})
    assert again.status == 200, again.content


def _gathered(server: Running, body: Any) -> list[dict[str, Any]]:
    """The tools called in a stream, each with its input if it is a custom one."""
    found: dict[int, dict[str, Any]] = {}
    for line in server.ask(CHAT, body).content.decode().split("\n\n"):
        if line.startswith("data: {"):
            for each in json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("tool_calls", ()):
                kind = each.get("type")
                if kind is not None:
                    found[each["index"]] = {"name": each[kind]["name"]}
                if "custom" in each:
                    assert "function" not in each
                    made = found[each["index"]]
                    made["input"] = made.get("input", "") + each["custom"]["input"]
    return [found[index] for index in sorted(found)]


def test_the_text_keeps_to_its_grammar(scripted: Running) -> None:
    tools = [custom(format=GRAMMAR), custom("write", format=LARK)]
    for choice, name in (("auto", "patch"), (custom(), "patch"), ("required", "write"), (custom("write"), "write")):
        body = chat(call(name, '{"input": "XYZ"}'), tools=tools, tool_choice=choice)
        (made,) = scripted.ask(CHAT, body).json["choices"][0]["message"]["tool_calls"]
        text = made["custom"]["input"]
        assert made["custom"]["name"] == name
        assert text[0] in "+-" and text[1:].islower() if name == "patch" else text.startswith("ab"), text


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"type": "custom"}, ""),
        ({"type": "custom", "custom": {"name": "a", "image": "b", "input": ""}}, ".custom.image"),
        ({"type": "custom", "custom": {"name": "a"}}, ".custom.input"),
        ({"type": "custom", "function": {"name": "a", "arguments": "{}"}}, ""),
    ],
)
def test_calls_of_a_wrong_form_in_a_history(given: Any, place: str) -> None:
    with pytest.raises((ApiError, RequestError)) as caught:
        read_messages([{"role": "assistant", "content": None, "tool_calls": [{"id": "1", **given}]}], Passed())
    assert caught.value.param == f"messages[0].tool_calls[0]{place}"
