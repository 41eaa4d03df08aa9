"""Which calls of tools a model makes, in every protocol: those that must come, one at most, strict ones, none.

Covers: karat.server.asking.tools, karat.server.answers.preparing.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.engine.requests.tool_calls import calling
from karat.server.answers.preparing import prepare
from karat.server.bodies import judge
from karat.server.fields import CHAT, COUNT, INPUT_TOKENS, MESSAGES, RESPONSES, fields_of
from karat.server.openai.requests import read_chat
from karat.text import ChatPrompt
from karat.text.tools.dialect import Dialect
from karat.text.tools.registry import FORMATS
from tests.server.conftest import Running
from tests.server.tool_cases import BODIES, PARAMETERS, call, chat_body, response_body
from tests.support.scripted import Scripted, write_scripted
from tests.text.tools.models import HERMES

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


@pytest.mark.drawn(3)
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
    num = 1 if "get_weather" in str(choice) else 2  # a tool that is named is called once
    assert calls_in(route, two) == [("get_weather", {"city": "Oslo", "days": 2})] * num


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
    for chosen in ({}, {"tool_choice": choice}):
        made = scripted.ask(route, BODIES[route](call(), **chosen, **{length: 70})).json
        if route == CHAT:
            (cut,) = made["choices"][0]["message"]["tool_calls"]
            assert cut["function"]["arguments"].startswith('{"city')
            assert made["choices"][0]["finish_reason"] == "length"
        elif route == RESPONSES:
            assert made["status"] == made["output"][0]["status"] == "incomplete"
            assert made["output"][0]["arguments"].startswith('{"city')
        else:
            assert made["stop_reason"] == "max_tokens"
            assert [(block["type"], list(block["input"])) for block in made["content"]] == [("tool_use", ["city"])]


def test_a_schema_that_cannot_be_kept_to(scripted: Running) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}
    body = chat_body("Hello", tools=[{"type": "function", "function": function}])
    assert scripted.ask(CHAT, body).status == 200
    answer = scripted.ask(CHAT, body | {"tool_choice": "required"})
    assert answer.status == 400 and "not" in answer.json["error"]["message"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_the_tools_that_are_shown_some_may_be_called(scripted: Running, mode: str) -> None:
    clock = {"type": "function", "name": "clock"}
    choices: dict[str, Any] = {
        CHAT: {"allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "clock"}}]}},
        RESPONSES: {"mode": mode, "tools": [clock]},
    }
    for route, choice in choices.items():
        body = BODIES[route](call(), tool_choice={"type": "allowed_tools", **choice})
        answer = scripted.ask(route, body).json
        assert {name for name, _ in calls_in(route, answer)} == {"clock"}, answer
        if route == RESPONSES:
            assert answer["tool_choice"] == {"type": "allowed_tools", **choice} and len(answer["tools"]) == 2


FORM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMS: dict[str, Any] = {  # a form of the answer in each protocol
    CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM_SCHEMA}}},
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "x", "schema": FORM_SCHEMA}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": FORM_SCHEMA}}},
}
FIELDS = {CHAT: "response_format", RESPONSES: "text.format", MESSAGES: "output_config.format"}


def text_in(route: str, answer: Any) -> str:
    if route == CHAT:
        return answer["choices"][0]["message"]["content"] or ""
    if route == RESPONSES:
        return "".join(
            part["text"] for each in answer["output"] if each["type"] == "message" for part in each["content"]
        )
    return "".join(block["text"] for block in answer["content"] if block["type"] == "text")


@pytest.mark.parametrize("route", BODIES)
def test_a_turn_with_tools_and_a_form_is_either_calls_or_of_the_form(scripted: Running, route: str) -> None:
    body = BODIES[route]
    for said in (call(), f"<think>Hm.</think>{call()}\n{call()}"):
        answer = scripted.ask(route, body(said, **FORMS[route])).json
        num = said.count("Oslo")
        assert calls_in(route, answer) == [("get_weather", {"city": "Oslo", "days": 2})] * num
        assert text_in(route, answer) == ""
    for said in ('{"a": "b"}', "<think>Hm.</think>" + '{"a": "<tool_call>"}'):
        answer = scripted.ask(route, body(said, **FORMS[route])).json
        assert text_in(route, answer) == said.partition("</think>")[2] or said
        assert json.loads(text_in(route, answer)).keys() == {"a"} and calls_in(route, answer) == []
    prose = scripted.ask(route, body("I would rather talk.", **FORMS[route])).json
    assert calls_in(route, prose) or json.loads(text_in(route, prose)).keys() == {"a"}


@pytest.mark.parametrize("route", BODIES)
def test_a_call_that_must_come_has_no_other_form(scripted: Running, route: str) -> None:
    choice: Any = {"type": "any"} if route == MESSAGES else "required"
    answer = scripted.ask(route, BODIES[route]('{"a": "b"}', tool_choice=choice, **FORMS[route]))
    assert answer.headers["karat-without-effect"] == FIELDS[route]
    assert calls_in(route, answer.json) and text_in(route, answer.json) == ""
    none: Any = {"type": "none"} if route == MESSAGES else "none"
    answer = scripted.ask(route, BODIES[route](call(), tool_choice=none, **FORMS[route]))
    assert json.loads(text_in(route, answer.json)).keys() == {"a"}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_of_tools_and_a_form_the_one_at_fault_is_named(scripted: Running, choice: str) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "colour"}}, "required": ["a"]}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": wrong}}}
    fault = scripted.ask(CHAT, chat_body("Hello", tool_choice=choice, **form))
    assert fault.status == 400 and fault.json["error"]["param"] == "response_format"
    function = {"type": "function", "function": {"name": "f", "parameters": wrong, "strict": True}}
    fault = scripted.ask(CHAT, chat_body("Hello", tool_choice=choice, **FORMS[CHAT]) | {"tools": [function]})
    assert fault.status == 400 and fault.json["error"]["param"] == "tools[0].function.parameters"
    assert fault.json["error"]["message"].startswith("tools[0].function.parameters: type: ")
    tool = {"name": "f", "input_schema": wrong, "strict": True}  # whose errors have no param
    fault = scripted.ask(MESSAGES, BODIES[MESSAGES]("Hello", tool_choice={"type": "auto"}) | {"tools": [tool]})
    assert fault.status == 400 and fault.json["error"]["message"].startswith("tools[0].input_schema: type: ")


class Rendering:
    """What `prepare` asks of an AsyncLLM."""

    def __init__(self, dialect: Dialect, prompt: ChatPrompt) -> None:
        self._dialect, self._prompt = dialect, prompt

    async def dialect(self) -> Dialect:
        return self._dialect

    async def render(self, *_: Any, **__: Any) -> ChatPrompt:
        return self._prompt


SCHEMAS = [None, {}, FORM_SCHEMA, {"type": "object", "properties": {"n": {"type": "integer"}}}]
GIVEN_TOOLS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(SCHEMAS), st.booleans()),
    min_size=1,
    unique_by=lambda tool: tool[0],
)


@given(
    st.sampled_from(sorted(FORMATS)),
    GIVEN_TOOLS,
    st.sampled_from(["auto", "required", "named"]),
    st.booleans(),
    st.sampled_from([None, {"json": FORM_SCHEMA}, {"regex": "a+"}, {"choice": ["a", "b"]}]),
    st.booleans(),
    st.booleans(),
)
def test_the_same_request_has_the_same_form_however_it_is_asked(
    name: str, listed: Any, choice: str, parallel: bool, form: Any, is_open: bool, hides_marks: bool
) -> None:
    """In Python (LLM and AsyncLLM have one function) and over HTTP, where each protocol comes to `prepare`."""
    dialect = Dialect(True, FORMATS[name], tags=("<think>", "</think>"), hides_marks=hides_marks)
    prompt = ChatPrompt("Hello" + ("<think>\n" if is_open else ""), (1,))
    tools = [{"type": "function", "function": {"name": n, "parameters": p, "strict": s}} for n, p, s in listed]
    named = listed[0][0]
    body = {"messages": [{"role": "user", "content": "Hello"}], "tools": tools, "parallel_tool_calls": parallel}
    body["tool_choice"] = {"type": "function", "function": {"name": named}} if choice == "named" else choice
    given_form = {} if form is None else {"structured_outputs": form}
    asked = read_chat(judge({**body, **given_form}, fields_of(CHAT)))
    prepared = asyncio.run(prepare(asked, Rendering(dialect, prompt)))  # type: ignore[arg-type]
    made, called = prepared.given, [tool for tool in listed if choice != "named" or tool[0] == named]
    assert prepared.answer_format.tools == {name: schema for name, schema, _ in called}, "by which bare texts are read"
    params = calling(
        SamplingParams(**given_form),
        dialect,
        prompt,
        tools,
        tool_choice=named if choice == "named" else choice,
        parallel_tool_calls=parallel,
    )
    assert made.get("structured_outputs") == params.structured_outputs
    assert made.get("skip_special_tokens", True) == params.skip_special_tokens


def test_the_same_request_has_the_same_tokens_however_it_is_asked(scripted: Running, tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=300)
    with LLM(write_scripted(tmp_path, HERMES), max_model_len=4096) as llm:
        Scripted(llm)
        for said in (call(arguments='{"city": 5}'), f"Hm. {call('other')}", f"{call()}\n{call()}"):
            for choice in ("auto", "required", "none", "clock"):
                named = {"type": "function", "function": {"name": "clock"}}
                body = chat_body(said, tool_choice=named if choice == "clock" else choice)
                prompt = llm.chat_prompt(body["messages"], tools=body["tools"], tool_choice=choice)
                params = llm.tool_params(prompt, body["tools"], greedy, tool_choice=choice)
                (output,) = llm.generate(prompt, params)
                body |= {"temperature": 0, "max_tokens": 300, "return_token_ids": True}
                whole = scripted.ask(CHAT, body).json
                answer = whole["choices"][0]
                assert whole["prompt_token_ids"] == list(prompt.token_ids)
                assert answer["token_ids"] == list(output.outputs[0].token_ids)


@pytest.mark.parametrize("route", BODIES)
def test_a_form_that_nothing_fits_is_the_fault_of_its_field(scripted: Running, route: str) -> None:
    """With these, whether the answer was whole or a 500 was chance, and the message was the compiler's."""
    names = {"patternProperties": {"^s$": {"enum": [1]}}, "required": ["s"], "additionalProperties": False}
    form = json.loads(
        json.dumps(FORMS[route]).replace(json.dumps(FORM_SCHEMA), json.dumps({"type": "object", **names}))
    )
    body = {name: value for name, value in BODIES[route]('{"s": 1, "s"', **form).items() if name != "tools"}
    assert json.loads(text_in(route, scripted.ask(route, body).json)) == {"s": 1}
    for stream in (False, True):
        wrong = {**body, "structured_outputs": {"grammar": "start: <|im_end|>"}, "stream": stream}
        wrong = {name: value for name, value in wrong.items() if name not in form}
        answer = scripted.ask(route, wrong)
        assert answer.status == 400 and "no text goes on from here" in answer.json["error"]["message"]


def test_strict_closes_the_objects_of_a_form_and_of_arguments(scripted: Running) -> None:
    open_schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    said = '{"a": 1, "b": 2}'
    for strict in (True, False):
        kinds: dict[str, Any] = {
            CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": open_schema}}},
            RESPONSES: {"text": {"format": {"type": "json_schema", "name": "x", "schema": open_schema}}},
        }
        kinds[CHAT]["response_format"]["json_schema"]["strict"] = kinds[RESPONSES]["text"]["format"]["strict"] = strict
        for route, form in kinds.items():
            body = {name: value for name, value in BODIES[route](said, **form).items() if name != "tools"}
            answer = scripted.ask(route, body).json
            assert (text_in(route, answer) == said) != strict and json.loads(text_in(route, answer))["a"] == 1
            if route == RESPONSES:
                assert answer["text"]["format"]["schema"] == open_schema, "as it was sent"
        inner = {"type": "object", "properties": {"in": open_schema}, "required": ["in"]}
        function = {"type": "function", "function": {"name": "f", "parameters": inner, "strict": strict}}
        body = chat_body(call("f", f'{{"in": {said}}}')) | {"tools": [function]}
        ((_, arguments),) = calls_in(CHAT, scripted.ask(CHAT, body).json)
        assert ("b" in arguments["in"]) != strict


@pytest.mark.parametrize(
    ("route", "place"), [(CHAT, "tools[1].function.parameters"), (RESPONSES, "tools[1].parameters")]
)
def test_the_param_of_an_error_is_the_place_of_what_was_sent(scripted: Running, route: str, place: str) -> None:
    for choice, strict in (("auto", True), ("required", False)):
        body = BODIES[route](call(), tool_choice=choice)
        tool = body["tools"][1]
        (tool["function"] if route == CHAT else tool).update(parameters={"type": "zork"}, strict=strict)
        for stream in (False, True):
            error = scripted.ask(route, body | {"stream": stream}).json["error"]
            assert error["param"] == place and "clock have type 'zork'" in error["message"]
    tags = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    for inner, told in (
        (tags, "uniqueItems"),
        ({"type": "string", "minLength": 10**6}, "minLength"),
        ({"allOf": 1}, ""),
    ):
        body = BODIES[route](call(), tool_choice="required")
        tool = body["tools"][1]
        (tool["function"] if route == CHAT else tool)["parameters"] = {"type": "object", "properties": {"tags": inner}}
        error = scripted.ask(route, body).json["error"]
        assert error["param"] == place and told in error["message"], "of a schema inside, and of the compiler's own"
    names = ("max_tokens", "n_predict", "max_new_tokens") if route == CHAT else ("max_output_tokens", "max_tokens")
    for name in names:
        for length in (99999, 0):
            body = {key: value for key, value in BODIES[route](call()).items() if key not in names}
            error = scripted.ask(route, body | {name: length}).json["error"]
            assert error["param"] == name and error["message"].startswith(f"{name}={length}")


def test_json_object_may_have_a_schema(scripted: Running) -> None:
    form = {"response_format": {"type": "json_object", "schema": FORM_SCHEMA}}
    body = {name: value for name, value in chat_body('{"x": 1}', **form).items() if name != "tools"}
    assert json.loads(text_in(CHAT, scripted.ask(CHAT, body).json)).keys() == {"a"}
    wrong = {"response_format": {"type": "json_object", "schema": 5}}
    assert scripted.ask(CHAT, {**body, **wrong}).json["error"]["param"] == "response_format"
