"""The form of an answer in each protocol: one schema, the same tokens; what is refused, by name."""

import json
from typing import Any

import jsonschema
import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT
from karat.server.openai.formats import structure, text_structure
from tests.server.conftest import Running, serving

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TURNS = [{"role": "user", "content": "Who are you?"}]
NAMED = {"name": "person", "schema": SCHEMA, "strict": True}
FORM = {"type": "json_schema", "schema": SCHEMA}


def bodies(length: int = 200) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every way to ask for SCHEMA, but for completions: route and body."""
    chat = {"messages": TURNS, "max_tokens": length}
    responses = {"input": TURNS, "max_output_tokens": length}
    return {
        "response_format": (CHAT, chat | {"response_format": {"type": "json_schema", "json_schema": NAMED}}),
        "chat, vLLM's": (CHAT, chat | {"structured_outputs": {"json": SCHEMA}}),
        "text.format": (RESPONSES, responses | {"text": {"format": {"type": "json_schema", **NAMED}}}),
        "responses, vLLM's": (RESPONSES, responses | {"structured_outputs": {"json": SCHEMA}}),
        "output_config": (MESSAGES, chat | {"output_config": {"format": FORM, "effort": "high"}}),
        "output_format": (MESSAGES, chat | {"output_format": FORM}),
        "messages, vLLM's": (MESSAGES, chat | {"structured_outputs": {"json": SCHEMA}}),
    }


def text_of(body: Any) -> str:
    if "choices" in body:
        (choice,) = body["choices"]
        text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    else:
        text = (body["content"] if "content" in body else body["output"][0]["content"])[0]["text"]
    return text


def test_every_name_of_one_schema_gives_the_same_text(server: Running) -> None:
    texts = set()
    for name, (route, body) in bodies().items():
        answer = server.ask(route, body | {"seed": 4, "temperature": 1.5})
        assert answer.status == 200, (name, answer.content)
        texts.add(text_of(answer.json))
        if name == "output_config":
            assert answer.headers["karat-without-effect"] == "output_config.effort"
        if name == "text.format":
            assert answer.json["text"]["format"] == {"type": "json_schema", **NAMED, "description": None}
    (text,) = texts
    jsonschema.validate(json.loads(text), SCHEMA)


def test_an_answer_cut_says_so(server: Running) -> None:
    for route, body in bodies(3).values():
        answer = server.ask(route, body).json
        ended = (answer.get("choices") or [{}])[0].get("finish_reason") or answer.get("stop_reason") or answer["status"]
        assert ended in ("length", "max_tokens", "incomplete")


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]"}, "[a-c]{3}-[0-9]"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "<" /[xyz]{2,5}/ ">"'}, "<[xyz]{2,5}>"),
        ({"json": {"enum": ["a", 5]}}, '"a"|5'),
    ],
)
def test_the_other_forms_in_every_protocol(server: Running, form: dict[str, Any], pattern: str) -> None:
    import re

    asked = [(CHAT, {"messages": TURNS}), (TEXT, {"prompt": "Once"}), (MESSAGES, {"messages": TURNS})]
    answers = [server.ask(route, body | {"max_tokens": 40, "structured_outputs": form}) for route, body in asked]
    answers.append(server.ask(RESPONSES, {"input": "a", "max_output_tokens": 40, "structured_outputs": form}))
    for answer in answers:
        assert answer.status == 200, answer.content
        assert re.fullmatch(pattern, text_of(answer.json).strip())


def test_any_object(server: Running) -> None:
    """json_object: most answers are cut, for the model writes on; what ends is an object."""
    common = {"seed": 1, "logit_bias": {}, "temperature": 0}
    asked = [
        (CHAT, {"messages": TURNS, "max_tokens": 60, "response_format": {"type": "json_object"}}),
        (TEXT, {"prompt": "JSON:", "max_tokens": 60, "response_format": {"type": "json_object"}}),
        (RESPONSES, {"input": TURNS, "max_output_tokens": 60, "text": {"format": {"type": "json_object"}}}),
    ]
    for route, body in asked:
        text = text_of(server.ask(route, body | common).json)
        assert text.lstrip().startswith("{")


@pytest.mark.parametrize("name", bodies())
def test_what_cannot_be_kept_to_names_the_keyword(server: Running, name: str) -> None:
    for wrong, told in (
        ({"not": {}}, "not"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "minItems": 10**9, "items": {}}, "minItems"),
        ({"enum": list(range(9000))}, "values"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "pattern: "),
        ({"$ref": "#/nowhere"}, "$ref: "),
    ):
        route, body = bodies()[name]
        given = json.loads(json.dumps(body).replace(json.dumps(SCHEMA), json.dumps(wrong)))
        for stream in (False, True):
            answer = server.ask(route, given | {"stream": stream})
            said = answer.json["error"]["message"]
            assert answer.status == 400 and told in said, (answer.status, answer.content)
            field = {"output_config": "output_config.format"}.get(name, name)
            field = "structured_outputs" if "vLLM" in name else field
            assert said.startswith(f"{field}: ") and answer.json["error"].get("param", field) == field


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("response_format", {"structured_outputs": {"regex": "a"}}, "structured_outputs and response_format"),
        ("text.format", {"structured_outputs": {"regex": "a"}}, "structured_outputs and text.format"),
        ("output_config", {"structured_outputs": {"regex": "a"}}, "structured_outputs and output_config.format"),
        ("output_config", {"output_format": FORM}, "output_format and output_config.format"),
        ("output_config", {"output_config": {"effort": 1}}, "output_config.effort"),
        ("output_config", {"output_config": {"format": {"type": "json_object"}}}, "output_config.format"),
        ("output_format", {"output_format": FORM | {"name": "a"}}, "output_format"),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "schema=1"),
        ("text.format", {"text": {"format": {"type": "json_schema", **NAMED, "strict": 1}}}, "strict=1"),
    ],
)
def test_contradictions_and_wrong_forms(server: Running, name: str, change: dict[str, Any], told: str) -> None:
    route, body = bodies()[name]
    answer = server.ask(route, body | change)
    assert answer.status == 400 and told in answer.json["error"]["message"], answer.content


class TestPackages:
    """parse() of the packages: the schema is made from a model, and the answer read with it."""

    def test_openai(self, server: Running) -> None:
        openai = pytest.importorskip("openai", reason="the openai package is not installed (requirements/clients.txt)")
        from pydantic import BaseModel, Field

        class Person(BaseModel):
            name: str = Field(max_length=9)
            age: int = Field(ge=0, le=99)

        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="dummy", max_retries=0)
        chat = client.chat.completions.parse(
            model="karat-embedded", messages=TURNS, response_format=Person, seed=2, max_tokens=200
        )
        made = client.responses.parse(
            model="karat-embedded", input=TURNS, text_format=Person, max_output_tokens=200, extra_body={"seed": 2}
        )
        assert isinstance(chat.choices[0].message.parsed, Person)
        assert made.output_parsed == chat.choices[0].message.parsed
        types = openai.types.responses
        whole = server.ask(RESPONSES, bodies()["text.format"][1])
        assert types.Response.model_validate_json(whole.content, strict=True).text.format.name == "person"

    def test_anthropic(self, server: Running) -> None:
        anthropic = pytest.importorskip(
            "anthropic", reason="the anthropic package is not installed (requirements/clients.txt)"
        )
        from pydantic import BaseModel

        class Person(BaseModel):
            wise: bool
            age: int

        client = anthropic.Anthropic(base_url=server.url, api_key="dummy", max_retries=0)
        made = client.messages.parse(
            model="karat-embedded", max_tokens=200, messages=TURNS, output_format=Person, extra_body={"seed": 1}
        )
        assert isinstance(made.parsed_output, Person)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text", "schema": None, "json_schema": None},
        {"type": "json_object", "schema": None},
        {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"type": "json_schema", "name": "n", "schema": {"type": "array"}, "strict": None, "description": None},
    ],
)
def test_a_key_of_null_is_none_in_chats_and_in_responses(form: dict[str, Any]) -> None:
    """And json_object may have a schema in both, as llama.cpp has it."""
    plain = {key: value for key, value in form.items() if value is not None}
    described = {key: value for key, value in form.items() if key != "type"}
    chat = {"type": "json_schema", "json_schema": described} if form["type"] == "json_schema" else form
    of_chat = structure({"response_format": chat})
    of_response, _, ignored = text_structure({"text": {"format": form}})
    assert of_chat == of_response == text_structure({"text": {"format": plain}})[0] and ignored == ()
    if form["type"] == "text":
        assert of_chat == {}
    else:
        assert json.loads(of_chat["structured_outputs"].json) == (form.get("schema") or {"type": "object"})


def test_a_form_that_takes_too_long_is_a_400_and_others_go_on() -> None:
    """Compiling it takes three seconds, of which one is the limit; the next one does not wait for it."""
    with serving(program="tests.support.slow_forms_serve") as running:
        for _ in range(2):
            refused = running.chat(structured_outputs={"regex": "slow [a-z]{3}"}, max_tokens=20, stream=True)
            assert refused.status == 400, refused.content
            message = refused.json["error"]["message"]
            assert "regex was not compiled within 1 s" in message and "simpler form" in message
            answer = running.chat(structured_outputs={"regex": "[a-z]{3}"}, max_tokens=20)
            assert len(text_of(answer.json)) == 3
        assert running.stop() == 0
