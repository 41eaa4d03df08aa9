"""Whatever the server answers is a valid next turn: in the protocol of the answer, and carried over to the others.

Covers: karat.server.anthropic.messages.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT
from karat.text.tools.arguments import read_arguments
from tests.server.anthropic.test_messages import events_of as message_events
from tests.server.conftest import Running
from tests.server.openai.test_responses import events_of as response_events
from tests.server.tool_cases import BODIES, NAMES, NEXT, call, call_in_channels
from tests.support.drawn import examples
from tests.support.scripted import script

ROUTES = st.sampled_from([CHAT, RESPONSES, MESSAGES])
_ODD = ["1e999", "1e5", "9" * 300, "9" * 400, "[" * 150 + "]" * 150, "null", "tru", "-0.5", "[[1]]", "{}"]
_TEXTS = ['"Oslo"', '"\\ud83d"', '"\\ud83d\\ude00"', '"a\n"', '"\\u00e9 \\" \\\\"', '{"city": [1, {"a": null}]}']
_VALUES = st.sampled_from([*_ODD, *_TEXTS])
_ARGUMENTS = st.lists(st.tuples(st.sampled_from(["city", "days", "é", ""]), _VALUES), max_size=3).map(
    lambda pairs: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"
)
_CALLS = st.builds(call, st.sampled_from(NAMES), _ARGUMENTS)
_PIECES = st.one_of(
    _CALLS,
    _CALLS,
    st.sampled_from(["Hello.", "", "\n", "<think>\nHm.\n</think>\n\n", "<tool_call>", "<|im_end|>", "é🙂"]),
)
SAID = st.lists(_PIECES, max_size=4).map("".join)
LENGTHS = {CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
STOPS = {CHAT: "stop", RESPONSES: "stop", MESSAGES: "stop_sequences"}


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ROUTES, SAID, st.none() | st.floats(0, 1), st.none() | st.sampled_from(["i", "}", "\n", "city"]), st.booleans())
def test_an_answer_is_a_valid_next_turn(
    scripted: Running, route: str, said: str, cut: float | None, stop: str | None, results: bool
) -> None:
    _check(scripted, route, BODIES[route](said), len(said), cut, stop, results=results)


BEHIND = st.booleans()
MESSAGES_SAID = st.lists(
    st.builds(call_in_channels, st.sampled_from(NAMES), _ARGUMENTS, BEHIND)
    | st.builds(
        "<|channel|>{}<|message|>{}".format,
        st.sampled_from(["analysis", "commentary", "final", "other"]),
        st.sampled_from(["Hm.", "", " \n", "a <|end|> b", "<|channel|>final<|message|>", "é🙂"]),
    )
    | st.sampled_from(["Hello.", call_in_channels("other"), "<|start|>", "<|message|>"]),
    max_size=4,
).map(NEXT.join)


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    ROUTES,
    MESSAGES_SAID,
    st.none() | st.floats(0, 1),
    st.none() | st.sampled_from(["i", "}", "\n", "city"]),
    st.booleans(),
    st.booleans(),
)
def test_an_answer_in_channels_is_a_valid_next_turn(
    harmonic: Running, route: str, said: str, cut: float | None, stop: str | None, results: bool, tools: bool
) -> None:
    """Held where there are tools, and as the model says it where there are none."""
    body = BODIES[route](said)
    if not tools:
        del body["tools"]
    _check(harmonic, route, body, len(said), cut, stop, results=results)


def _check(
    server: Running, route: str, body: Any, length: int, cut: float | None, stop: str | None, *, results: bool
) -> None:
    if cut is not None:
        body[LENGTHS[route]] = max(1, int(cut * length))
    if stop is not None:
        body[STOPS[route]] = [stop]
    answer = server.ask(route, body)
    assert answer.status == 200, answer.content
    own = turns_of(route, answer.json)
    _take(server, route, own, results=results)
    parts = parts_of(route, own)
    for other in {CHAT, RESPONSES, MESSAGES} - {route}:
        _take(server, other, written(other, parts), results=results)
    streamed = server.ask(route, body | {"stream": True})
    events = events_in(route, streamed)
    kept = events if cut is None else events[: max(1, int(cut * len(events)))]  # the client leaves there
    again = gathered(route, kept)
    for other in (CHAT, RESPONSES, MESSAGES):
        _take(server, other, written(other, again), results=results)
    if len(kept) == len(events):
        assert _comparable(again) == _comparable(parts)


def test_a_completion_goes_on_with_its_own_text(scripted: Running) -> None:
    prompt = script(call())
    for length in range(1, 40, 7):
        made = scripted.ask(TEXT, {"prompt": prompt, "max_tokens": length}).json["choices"][0]["text"]
        assert scripted.ask(TEXT, {"prompt": prompt + made, "max_tokens": 1}).status == 200


LAST = "<|channel|>final<|message|>No more."  # of either model: to one it is all text
Part = tuple[str, str, str, str]  # kind, text or arguments, name, id


def _take(server: Running, route: str, turns: list[Any], *, results: bool) -> None:
    """Send an answer back, with the results of its calls, and a next question."""
    body = BODIES[route](LAST)
    asked = body["input" if route == RESPONSES else "messages"]
    asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    back = [*asked, *turns, *(_results(route, turns) if results else []), *asked]
    answer = server.ask(route, body | {"input" if route == RESPONSES else "messages": back})
    assert answer.status == 200, (route, turns, answer.content)
    assert "No more." in answer.content.decode()


def _results(route: str, turns: list[Any]) -> list[Any]:
    found: list[Any] = []
    for kind, _, _, call_id in parts_of(route, turns):
        if kind == "call":
            found.append(
                {"role": "tool", "tool_call_id": call_id, "content": "no JSON"}
                if route == CHAT
                else {"type": "function_call_output", "call_id": call_id, "output": "no JSON"}
                if route == RESPONSES
                else {"type": "tool_result", "tool_use_id": call_id, "content": [], "is_error": True}
            )
    return [{"role": "user", "content": found}] if route == MESSAGES and found else found


def turns_of(route: str, answer: Any) -> list[Any]:
    """The answer as the protocol has it sent back, with all that the server says beside it where it is a message."""
    if route == CHAT:
        return [answer["choices"][0]["message"]]
    return list(answer["output"]) if route == RESPONSES else [answer]


def parts_of(route: str, turns: list[Any]) -> list[Part]:
    found: list[Part] = []
    for turn in turns:
        if route == CHAT:
            found += [("reasoning", turn["reasoning_content"], "", "")] if turn.get("reasoning_content") else []
            found += [("text", turn["content"], "", "")] if turn["content"] else []
            for each in turn.get("tool_calls", ()):
                found.append(("call", each["function"]["arguments"], each["function"]["name"], each["id"]))
        elif route == RESPONSES:
            if turn["type"] == "function_call":
                found.append(("call", turn["arguments"], turn["name"], turn["call_id"]))
            else:
                kind = "text" if turn["type"] == "message" else "reasoning"
                found += [(kind, part["text"], "", "") for part in turn["content"] if part["text"]]
        else:
            for block in turn["content"]:
                if block["type"] == "tool_use":
                    found.append(("call", json.dumps(block["input"]), block["name"], block["id"]))
                else:
                    kind = "text" if block["type"] == "text" else "reasoning"
                    text = block["text" if kind == "text" else "thinking"]
                    found += [(kind, text, "", "")] if text else []
    return found


def written(route: str, parts: list[Part]) -> list[Any]:
    """The parts as an answer of the protocol, as a client writes that keeps them in another."""
    texts = {kind: "".join(text for each, text, *_ in parts if each == kind) for kind in ("text", "reasoning")}
    calls = [(text, name, call_id) for kind, text, name, call_id in parts if kind == "call"]
    if route == CHAT:
        message: Any = {"role": "assistant", "content": texts["text"] or None, "reasoning_content": texts["reasoning"]}
        made = [{"id": i, "type": "function", "function": {"name": n, "arguments": text}} for text, n, i in calls]
        return [message | ({"tool_calls": made} if made else {})]
    if route == RESPONSES:
        items: list[Any] = [{"type": "reasoning", "id": "r", "summary": [], "content": []}]
        items[0]["content"] = [{"type": "reasoning_text", "text": texts["reasoning"]}] if texts["reasoning"] else []
        items.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": texts["text"]}]}
        )
        return items + [{"type": "function_call", "call_id": i, "name": n, "arguments": text} for text, n, i in calls]
    blocks: list[Any] = [{"type": "thinking", "thinking": texts["reasoning"], "signature": ""}]
    blocks = (blocks if texts["reasoning"] else []) + (
        [{"type": "text", "text": texts["text"]}] if texts["text"] else []
    )
    for text, name, call_id in calls:
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": _input(text)})
    return [{"role": "assistant", "content": blocks}]


def _input(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def events_in(route: str, answer: Any) -> list[Any]:
    assert answer.status == 200
    if route == CHAT:
        return list(answer.events)
    return message_events(answer) if route == MESSAGES else response_events(answer)


def gathered(route: str, events: list[Any]) -> list[Part]:
    """The parts of a stream, as far as it came."""
    found: list[list[str]] = []

    def add(kind: str, text: str) -> None:
        if found and found[-1][0] == kind:
            found[-1][1] += text
        else:
            found.append([kind, text, "", ""])

    for event in events:
        if route == CHAT:
            for delta in (choice["delta"] for choice in event["choices"]):
                for kind, name in (("reasoning", "reasoning_content"), ("text", "content")):
                    if delta.get(name):
                        add(kind, delta[name])
                for piece in delta.get("tool_calls", ()):
                    if "id" in piece:
                        found.append(["call", "", piece["function"]["name"], piece["id"]])
                    calls = [each for each in found if each[0] == "call"]
                    calls[piece["index"]][1] += piece["function"].get("arguments", "")
        elif route == MESSAGES:
            block, delta = event.get("content_block", {}), event.get("delta", {})
            if block.get("type") == "tool_use":
                found.append(["call", "", block["name"], block["id"]])
            if delta.get("type") == "input_json_delta":
                found[-1][1] += delta["partial_json"]
            elif "text" in delta or "thinking" in delta:
                add("text" if "text" in delta else "reasoning", delta.get("text", delta.get("thinking")))
        elif event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
            found.append(["call", "", event["item"]["name"], event["item"]["call_id"]])
        elif event["type"] == "response.function_call_arguments.delta":
            found[-1][1] += event["delta"]
        elif event["type"] in ("response.output_text.delta", "response.reasoning_text.delta"):
            add("text" if "output" in event["type"] else "reasoning", event["delta"])
    return [(kind, text, name, call_id) for kind, text, name, call_id in found]


def _comparable(parts: list[Part]) -> Any:
    """Texts joined; calls without ids, as values: of those that were cut, what their beginning tells."""
    texts = ["".join(text for each, text, *_ in parts if each == kind) for kind in ("text", "reasoning")]
    calls = []
    for kind, text, name, _ in parts:
        if kind == "call":
            calls.append((name, read_arguments(text)))
    return texts, calls


@pytest.mark.drawn(3)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", ['"\\ud83d"', "1e999", "9" * 400, "[" * 150 + "]" * 150])
def test_arguments_that_not_every_reader_of_json_takes(scripted: Running, stream: bool, value: str) -> None:
    """Whole in chats and responses, if at all. In messages a whole answer has what came, for `input` is an object."""
    for route, body in BODIES.items():
        answer = scripted.ask(route, body(call(arguments=f'{{"a": {value}}}'), stream=stream))
        assert answer.status == 200, answer.content[:300]
        parts = gathered(route, events_in(route, answer)) if stream else parts_of(route, turns_of(route, answer.json))
        told = [json.loads(text) for kind, text, *_ in parts if kind == "call" and _input(text)]
        is_shown = route == MESSAGES and not stream and value.startswith("[")
        came: list[Any] = [{"a": json.loads("[" * 127 + "]" * 127)}] if is_shown else []
        assert told == ([{"a": "\ufffd"}] if "ud83d" in value else came)
