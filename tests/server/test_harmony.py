"""Answers in channels (gpt-oss) over HTTP: taken apart, held, and given back, in every protocol, on a scripted model.

Covers: karat.server.answers.thoughts.
"""

import json
from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT
from tests.server.conftest import Running
from tests.server.test_next_turn import events_in, gathered, parts_of, turns_of
from tests.server.test_prefill import FORMS, WORDS
from tests.server.test_tool_choice import FORCED, calls_in, text_in
from tests.server.tool_cases import BODIES, NEXT, THOUGHT, call_in_channels
from tests.support.scripted import script

ASIDE, FINAL = "<|channel|>commentary<|message|>", "<|channel|>final<|message|>"
ARGUMENTS = '{"city": "Oslo", "days": 2}'
BEFORE, BEHIND = call_in_channels(), call_in_channels(behind=True)
CALLED = ("call", ARGUMENTS)
SAID: dict[str, tuple[str, list[tuple[str, str]]]] = {  # what the model says, and its parts
    "text": (f"{THOUGHT}Hm.{NEXT}{FINAL}Hello <b> there.", [("reasoning", "Hm."), ("text", "Hello <b> there.")]),
    "call": (f"{THOUGHT}Hm.{NEXT}{BEFORE}", [("reasoning", "Hm."), CALLED]),
    "aside": (f"{ASIDE}Let me see.{NEXT}{BEHIND}", [("text", "Let me see."), CALLED]),
    "all": (
        f"{THOUGHT}A{NEXT}{ASIDE}B{NEXT}{THOUGHT}C{NEXT}{BEFORE.replace('commentary', 'analysis')}",
        [("reasoning", "A"), ("text", "B"), ("reasoning", "\n\nC"), CALLED],
    ),
}


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("case", SAID)
def test_channels_are_parts(harmonic: Running, route: str, case: str) -> None:
    said, parts = SAID[case]
    body = BODIES[route](said)
    whole = harmonic.ask(route, body)
    assert whole.status == 200, whole.content
    found = [(kind, text) for kind, text, *_ in parts_of(route, turns_of(route, whole.json))]
    streamed = [
        (kind, text)
        for kind, text, *_ in gathered(route, events_in(route, harmonic.ask(route, body | {"stream": True})))
    ]
    assert streamed == parts
    texts = {kind: "".join(text for each, text in parts if each == kind) for kind in ("reasoning", "text", "call")}
    expected = parts if route != CHAT else [(kind, text) for kind, text in texts.items() if text]
    assert [(k, json.loads(t) if k == "call" else t) for k, t in found] == [
        (k, json.loads(t) if k == "call" else t) for k, t in expected
    ]
    ends = {CHAT: "tool_calls", MESSAGES: "tool_use"} if texts["call"] else {CHAT: "stop", MESSAGES: "end_turn"}
    if route == RESPONSES:
        assert whole.json["status"] == "completed"
    else:
        told = whole.json["choices"][0]["finish_reason"] if route == CHAT else whole.json["stop_reason"]
        assert told == ends[route]


def test_tokens_of_analysis_are_counted(harmonic: Running) -> None:
    for case, num in (("text", 3 + len("analysisHm.")), ("aside", 0), ("all", 3 + len("analysisA"))):
        said, _ = SAID[case]
        if case == "all":
            said, num = said.replace(f"{ASIDE}B{NEXT}", ""), 2 * num + 1 + len("assistant")
        answer = harmonic.ask(CHAT, BODIES[CHAT](said)).json
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == num
        events = harmonic.ask(CHAT, BODIES[CHAT](said, stream=True, stream_options={"include_usage": True})).events
        assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == num


@pytest.mark.parametrize("route", BODIES)
def test_without_tools_nothing_is_held_and_all_is_read(harmonic: Running, route: str) -> None:
    for said, text in ((SAID["text"][0], "Hello <b> there."), ("Hello.", "Hello."), (f"{FINAL}A<|end|>", "A")):
        body = {name: value for name, value in BODIES[route](said).items() if name != "tools"}
        assert text_in(route, harmonic.ask(route, body).json) == text


@pytest.mark.parametrize("route", BODIES)
def test_headers_are_held_where_there_are_tools(harmonic: Running, route: str) -> None:
    """A header that is none: the model has to say another. Arguments keep to the schema where a call must come."""
    for wrong in ("<|channel|>thought<|message|>Hm.", "Hello.", BEFORE.replace("get_weather", "other")):
        answer = harmonic.ask(route, BODIES[route](wrong)).json
        assert "thought" not in str(
            answer["choices" if route == CHAT else "output" if route == RESPONSES else "content"]
        )
    odd = BEFORE.replace('"Oslo"', "5")
    ((_, arguments),) = calls_in(route, harmonic.ask(route, BODIES[route](odd)).json)
    assert arguments["city"] == 5
    for forced in (choice for each, choice in FORCED if each == route):
        (name, arguments), *more = calls_in(route, harmonic.ask(route, BODIES[route](odd, **forced)).json)
        assert name == "get_weather" and isinstance(arguments["city"], str) and not more
    none: Any = {"type": "none"} if route == MESSAGES else "none"
    answer = harmonic.ask(route, BODIES[route](SAID["text"][0], tool_choice=none))
    assert (
        text_in(route, answer.json) == "Hello <b> there."
        and "tools.get_weather" in answer.headers["karat-without-effect"]
    )


@pytest.mark.parametrize("route", BODIES)
def test_a_form_is_of_the_final_channel(harmonic: Running, route: str) -> None:
    plain = {name: value for name, value in BODIES[route]("").items() if name != "tools"}
    for said, word in ((f'{THOUGHT}Hm.{NEXT}{FINAL}{{"z": "dog"}}', "dog"), (f"{FINAL}A dog.", None), ("A dog.", None)):
        key = "input" if route == RESPONSES else "messages"
        body = plain | {key: [{"role": "user", "content": script(said)}]} | FORMS[route]
        answer = harmonic.ask(route, body).json
        made = json.loads(text_in(route, answer))
        assert made == {"z": word} if word else made["z"] in ("cat", "dog")
        assert ("Hm." in str(answer)) == (THOUGHT in said)
    for said in (SAID["call"][0], f'{THOUGHT}Hm.{NEXT}{FINAL}{{"z": "dog"}}', SAID["aside"][0]):
        answer = harmonic.ask(route, BODIES[route](said, **FORMS[route])).json
        calls, text = calls_in(route, answer), text_in(route, answer)
        assert (bool(calls) != bool(text)) and (calls or json.loads(text)["z"] in ("cat", "dog"))


BEGUN = {"role": "assistant", "content": "Well,"}


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_begun_answer_goes_on_in_the_final_channel(harmonic: Running, route: str, stream: bool) -> None:
    turns = [
        {"role": "user", "content": script(" yes.")},
        BEGUN | ({"status": "incomplete"} if route == RESPONSES else {}),
    ]
    for tools in (True, False):
        body = BODIES[route]("") | {"input" if route == RESPONSES else "messages": turns, "stream": stream}
        body |= {"continue_final_message": True} if route == CHAT else {}
        body = body if tools else {name: value for name, value in body.items() if name != "tools"}
        answer = harmonic.ask(route, body)
        assert answer.status == 200, answer.content
        found = gathered(route, events_in(route, answer)) if stream else parts_of(route, turns_of(route, answer.json))
        assert [(kind, text) for kind, text, *_ in found] == [("text", " yes.")]
    turns = [{"role": "user", "content": script('og"}')}, turns[1] | {"content": '{"z": "d'}]
    body |= FORMS[route] | {"input" if route == RESPONSES else "messages": turns, "stream": False}
    assert json.loads('{"z": "d' + text_in(route, harmonic.ask(route, body).json)) == {"z": "dog"}
    assert WORDS["properties"]["z"]["enum"] == ["cat", "dog"]


def test_texts_are_not_taken_apart(harmonic: Running) -> None:
    body = {"prompt": script(f"{FINAL}Hi"), "max_tokens": 40, "skip_special_tokens": False}
    assert harmonic.ask(TEXT, body).json["choices"][0]["text"].startswith(f"{FINAL}Hi")


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        (CHAT, lambda level: {"reasoning_effort": level}),
        (CHAT, lambda level: {"reasoning": {"effort": level}}),
        (RESPONSES, lambda level: {"reasoning": {"effort": level}}),
        (MESSAGES, lambda level: {"output_config": {"effort": level}}),
    ],
)
def test_levels_that_the_model_knows_are_followed(harmonic: Running, route: str, asked: Any) -> None:
    lengths = set()
    for level, follows in (("low", True), ("high", True), ("xhigh", False), ("none", False)):
        answer = harmonic.ask(route, BODIES[route](f"{FINAL}Hi") | asked(level))
        if answer.status == 400:
            assert level in ("xhigh", "none")  # the protocol does not have it
            continue
        assert ("effort" in answer.headers.get("karat-without-effect", "")) != follows, level
        usage = answer.json["usage"]
        num = usage["prompt_tokens" if route == CHAT else "input_tokens"]
        lengths.add(num - len(level if follows else "medium"))  # tokens are bytes
    assert len(lengths) == 1, "the prompt names the level"
    on = harmonic.ask(MESSAGES, BODIES[MESSAGES]("") | {"thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert "thinking" not in on.headers.get("karat-without-effect", "").replace("thinking.budget_tokens", "")
