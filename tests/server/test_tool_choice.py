"""Which calls of tools a model makes, in every protocol: those that must come, one at most, strict ones, none.

Covers: karat.server.tools, karat.server.preparing.
"""

import json
from typing import Any

import pytest

from karat.server.fields import CHAT, COUNT, INPUT_TOKENS, MESSAGES, RESPONSES
from tests.server.conftest import Running
from tests.server.tool_cases import BODIES, PARAMETERS, call, chat_body, response_body

FORCED = [  # for each protocol: a call of any tool, and of one
    (CHAT, {"tool_choice": "required"}),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}),
    (RESPONSES, {"tool_choice": "required"}),
    (RESPONSES, {"tool_choice": {"type": "function", "name": "get_weather"}}),
    (MESSAGES, {"tool_choice": {"type": "any"}}),
    (MESSAGES, {"tool_choice": {"type": "tool", "name": "get_weather"}}),
]


def calls_in(route: str, answer: Any) -> list[tuple[str, Any]]:
    if route == CHAT:
        made = [each["function"] for each in answer["choices"][0]["message"].get("tool_calls", [])]
        return [(each["name"], json.loads(each["arguments"])) for each in made]
    if route == RESPONSES:
        made = [item for item in answer["output"] if item["type"] == "function_call"]
        return [(each["name"], json.loads(each["arguments"])) for each in made]
    return [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize(("route", "choice"), FORCED)
def test_calls_that_must_come_come_whatever_the_model_would_say(
    scripted: Running, route: str, choice: dict[str, Any]
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    for said in ("I would rather not.", call("other"), call(arguments='{"city": 5}')):
        ((name, arguments),) = calls_in(route, scripted.ask(route, BODIES[route](said, **choice)).json)
        jsonschema.validate(arguments, PARAMETERS[name])
        assert name == "get_weather" or "name" not in str(choice)
    two = scripted.ask(route, BODIES[route](f"{call()}\n{call()}", **choice)).json
    assert calls_in(route, two) == [("get_weather", {"city": "Oslo", "days": 2})] * 2


@pytest.mark.parametrize(
    ("route", "single"),
    [
        (CHAT, {"parallel_tool_calls": False}),
        (RESPONSES, {"parallel_tool_calls": False}),
        (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
def test_one_call_at_most(scripted: Running, route: str, single: dict[str, Any]) -> None:
    said = f"<think>Hm.</think>Ok.\n{call()}\n{call()}"
    assert len(calls_in(route, scripted.ask(route, BODIES[route](said)).json)) == 2
    assert len(calls_in(route, scripted.ask(route, BODIES[route](said, **single)).json)) == 1
    assert calls_in(route, scripted.ask(route, BODIES[route]("Hello.", **single)).json) == []


@pytest.mark.parametrize("route", BODIES)
def test_strict_tools_are_kept_to_their_schema_where_the_model_calls_by_itself(scripted: Running, route: str) -> None:
    body = BODIES[route](call(arguments='{"city": 5, "x": 1}'))
    ((_, arguments),) = calls_in(route, scripted.ask(route, body).json)
    assert arguments == {"city": 5, "x": 1}
    for tool in body["tools"]:
        (tool["function"] if route == CHAT else tool)["strict"] = True
    ((_, arguments),) = calls_in(route, scripted.ask(route, body).json)
    assert arguments.keys() == {"city", "days"} and isinstance(arguments["city"], str)


@pytest.mark.parametrize("route", BODIES)
def test_none_makes_no_calls_and_names_the_tools(scripted: Running, route: str) -> None:
    choice: Any = {"type": "none"} if route == MESSAGES else "none"
    answer = scripted.ask(route, BODIES[route](call(), tool_choice=choice))
    assert answer.headers["karat-without-effect"] == "tools.get_weather, tools.clock"
    assert calls_in(route, answer.json) == [] and call() in json.loads(json.dumps(answer.json)).__str__().replace(
        "\\n", "\n"
    )


@pytest.mark.parametrize("route", BODIES)
def test_a_model_without_tools_says_so(server: Running, route: str) -> None:
    body = BODIES[route]("Hello", max_tokens=4) if route != RESPONSES else response_body("Hello", max_output_tokens=4)
    for stream in (False, True):
        answer = server.ask(route, body | {"stream": stream})
        assert answer.status == 400 and "no place for tools" in answer.json["error"]["message"]
    choice: Any = {"type": "none"} if route == MESSAGES else "none"
    assert server.ask(route, body | {"tool_choice": choice}).status == 200
    if route != CHAT:
        counted = {name: value for name, value in body.items() if not name.startswith("max_")}
        assert server.ask(COUNT if route == MESSAGES else INPUT_TOKENS, counted).status == 400


@pytest.mark.parametrize("route", BODIES)
def test_a_call_that_is_cut(scripted: Running, route: str) -> None:
    length = "max_output_tokens" if route == RESPONSES else "max_tokens"
    before = scripted.ask(route, BODIES[route](call(), **{length: 50})).json
    assert '{"name": "get_weather"' in str(before).replace('\\"', '"'), "no argument has begun: it is text"
    choice: Any = {"type": "any"} if route == MESSAGES else "required"
    for given in ({}, {"tool_choice": choice}):
        made = scripted.ask(route, BODIES[route](call(), **given, **{length: 70})).json
        if route == CHAT:
            (cut,) = made["choices"][0]["message"]["tool_calls"]
            assert cut["function"]["arguments"].startswith('{"city')
            assert made["choices"][0]["finish_reason"] == "length"
        elif route == RESPONSES:
            assert made["status"] == made["output"][0]["status"] == "incomplete"
            assert made["output"][0]["arguments"].startswith('{"city')
        else:
            assert made["stop_reason"] == "max_tokens" and made["content"] == []


def test_a_schema_that_cannot_be_kept_to(scripted: Running) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}
    body = chat_body("Hello", tools=[{"type": "function", "function": function}])
    assert scripted.ask(CHAT, body).status == 200
    answer = scripted.ask(CHAT, body | {"tool_choice": "required"})
    assert answer.status == 400 and "not" in answer.json["error"]["message"]


def test_tools_beside_a_form_of_the_answer(scripted: Running) -> None:
    form = {"response_format": {"type": "json_object"}}
    assert scripted.ask(CHAT, chat_body("Hello", **form)).json["error"]["param"] == "tools"
    assert scripted.ask(CHAT, chat_body("Hello", tool_choice="none", **form)).status == 200
