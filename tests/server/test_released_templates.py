"""Models with recurrent layers and Gemma 4, by their released templates: calls whose values the schema types, reasoning
that the prompt has opened, whole and streamed, in every protocol; and the answer sent back is what the model wrote.

Covers: karat.text.tools.xml, karat.text.tools.lfm2, karat.text.tools.gemma.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT
from tests.server.conftest import Running, serving
from tests.server.test_next_turn import events_in, gathered, parts_of, turns_of
from tests.support.scripted import script, write_scripted

VALUES: dict[str, Any] = {
    "city": "It's <b>Ålesund</b>",
    "code": "007",
    "days": 3,
    "share": 0.5,
    "sure": True,
    "tags": ["a", "b"],
    "more": {"k": [1, None]},
    "none": None,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "code": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "none": {"type": ["string", "null"]},
    },
    "required": ["city"],
}


def xml(values: dict[str, Any]) -> str:
    """A call as Qwen's templates write it: texts as they are, lists and objects as JSON, the rest as Python."""
    texts = {key: json.dumps(value) if isinstance(value, list | dict) else str(value) for key, value in values.items()}
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function=look>\n{inner}</function>\n</tool_call>"


def pythonic(values: dict[str, Any]) -> str:
    """A call as LFM2.5's template writes it: texts between quotes as they are, objects as JSON, the rest as Python."""
    texts = {
        key: f"'{value}'" if isinstance(value, str) else json.dumps(value) if isinstance(value, dict) else str(value)
        for key, value in values.items()
    }
    inner = ", ".join(f"{key}={text}" for key, text in texts.items())
    return f"<|tool_call_start|>[look({inner})]<|tool_call_end|>"


def documented(values: dict[str, Any]) -> str:
    """A call as LFM2's documentation writes it: Python, texts between double quotes."""
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    inner = ", ".join(f"{key}={text}".replace("null", "None").replace("true", "True") for key, text in texts.items())
    return f"<|tool_call_start|>[look({inner})]<|tool_call_end|>"


def gemma(values: dict[str, Any]) -> str:
    """A call as Gemma 4's template writes it: names in order, texts between quotes of their own, None as Python's."""

    def written(value: Any) -> str:
        match value:
            case str():
                return f'<|"|>{value}<|"|>'
            case dict():
                return "{" + ",".join(f"{key}:{written(value[key])}" for key in sorted(value)) + "}"
            case list():
                return f"[{','.join(map(written, value))}]"
            case _:
                return {True: "true", False: "false"}.get(value, str(value)) if value is not None else "None"

    return f"<|tool_call>call:look{written(values)}<tool_call|>"


LFM2_MARKS = ("<|tool_call_start|>", "<|tool_call_end|>")
GEMMA = "google-gemma-4-31B-it"
GEMMA_MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>", "<turn|>")
# The special tokens that calls need, how a call is written, what stands before it, reasoning and what is around it.
MODELS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], str], str, str]] = {
    "Qwen3.5-4B": ((), xml, "\n\n", "{}\n</think>\n\n"),
    "Qwen3-Coder": ((), xml, "\n\n", ""),
    "LFM2.5-8B-A1B": (LFM2_MARKS, pythonic, "", "<think>{}</think>"),
    "LFM2-8B-A1B": (LFM2_MARKS, documented, "\n", ""),
    GEMMA: (GEMMA_MARKS, gemma, "", "<|channel>thought\n{}\n<channel|>"),
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The template's name, and a server of a scripted model with it."""
    special, *_ = MODELS[request.param]
    template = (data_dir / "templates" / f"{request.param}.jinja").read_text(encoding="utf-8")
    folder = write_scripted(tmp_path_factory.mktemp("released"), template, special=special)
    with serving(str(folder), program="tests.support.scripted_serve") as running:
        yield request.param, running


def body_of(route: str, said: str, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    text = script(said)
    if route == RESPONSES:
        return {"input": text, "tools": [{"type": "function", "name": "look", "parameters": schema}]}
    messages = [{"role": "user", "content": text}]
    if route == MESSAGES:
        return {"messages": messages, "max_tokens": 4000, "tools": [{"name": "look", "input_schema": schema}]}
    function = {"name": "look", "parameters": schema}
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


def said_by(name: str, thought: str) -> str:
    """Reasoning, where the model has some, a text and a call, as its template writes them."""
    _, write, before, reasoning = MODELS[name]
    return f"{reasoning.format(thought)}Let me see.{before}{write(VALUES)}"


def check(route: str, server: Running, said: str, expected: list[tuple[str, Any, str]], **given: Any) -> None:
    """The parts of an answer: kind, text or arguments, and the name of a tool."""
    body = body_of(route, said) | given
    whole = server.ask(route, body)
    assert whole.status == 200, whole.content
    streamed = server.ask(route, body | {"stream": True})
    for parts in (parts_of(route, turns_of(route, whole.json)), gathered(route, events_in(route, streamed))):
        found = [(kind, json.loads(text) if kind == "call" else text, called) for kind, text, called, _ in parts]
        assert found == expected, route


@pytest.mark.slow
def test_calls_and_reasoning(model: tuple[str, Running]) -> None:
    name, server = model
    thought = "Hm, <tool_call> in a thought." if MODELS[name][3] else ""
    said = said_by(name, thought)
    expected = [("reasoning", thought, "")] if thought else []
    for route in (CHAT, RESPONSES, MESSAGES):
        check(route, server, said, [*expected, ("text", "Let me see.", ""), ("call", VALUES, "look")])
    for stream in (False, True):  # a completion is the text, without special tokens
        answer = server.ask(TEXT, {"prompt": script(said), "max_tokens": 4000, "stream": stream})
        pieces = answer.events if stream else [answer.json]
        text = "".join(choice["text"] for piece in pieces for choice in piece["choices"])
        for mark in MODELS[name][0]:
            said = said.replace(mark, "")
        assert text == said


@pytest.mark.slow
def test_a_call_that_must_come_keeps_to_the_schema_behind_the_reasoning(model: tuple[str, Running]) -> None:
    """The scripted model would say a text, and is not let."""
    name, server = model
    reasoning = MODELS[name][3]
    short = {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
    schema = {"type": "object", "properties": short, "required": list(short)}
    choices = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}
    for route, choice in choices.items():
        said = reasoning.format("Hm.") + "No call."
        answer = server.ask(route, body_of(route, said, schema) | {"tool_choice": choice})
        *thoughts, (kind, text, called, _) = parts_of(route, turns_of(route, answer.json))
        made = json.loads(text)
        assert (kind, called) == ("call", "look") and len(made["city"]) <= 8 and made["days"] in range(1, 10)
        assert [part[:2] for part in thoughts] == ([("reasoning", "Hm.")] if reasoning else [])


@pytest.mark.slow
def test_reasoning_that_is_switched_off(model: tuple[str, Running]) -> None:
    """Qwen3.5's prompt then closes it: nothing of the answer is reasoning. The others have no switch."""
    name, server = model
    _, write, _, _ = MODELS[name]
    off = {CHAT: {"reasoning_effort": "none"}, RESPONSES: {"reasoning": {"effort": "none"}}}
    for route, given in (off | {MESSAGES: {"thinking": {"type": "disabled"}}}).items():
        check(route, server, "Yes." + write(VALUES), [("text", "Yes.", ""), ("call", VALUES, "look")], **given)


@pytest.mark.slow
def test_an_answer_sent_back_is_what_the_model_wrote(model: tuple[str, Running]) -> None:
    """The next prompt begins with this one and the answer, so nothing of either is computed anew."""
    name, server = model
    said = said_by(name, "Hm.")
    body = body_of(CHAT, said)
    if name == GEMMA:  # which writes a text after the calls, and a thought that is begun only where it may come
        said = said.replace("Let me see.", "")
        body = body_of(CHAT, said) | {"chat_template_kwargs": {"enable_thinking": True}}
    (choice,) = server.ask(CHAT, body | {"return_token_ids": True}).json["choices"]
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "It is wet."}
    later = body | {"messages": [*body["messages"], choice["message"], result]}
    prompt, after = (server.ask("/render", each).json["prompt"] for each in (body, later))
    assert after.startswith(prompt + said) and "It is wet." in after
    ids, after_ids = (server.ask("/tokenize", each).json["tokens"] for each in (body, later))
    known = [*ids, *choice["token_ids"]][:-1]  # but for the end
    assert after_ids[: len(known)] == known
