"""Keys of messages, calls and tools that no protocol has: accepted and named, or refused where a model would see them.

Covers: karat.server.openai.messages.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.engine.requests.passed import MAX_NAME, SEEN_IN_MESSAGES, SEEN_IN_TOOLS, is_nothing
from karat.server.anthropic.requests import read_message
from karat.server.asking.asked import ChatRequest
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import CHAT, MESSAGES, RESPONSES, fields_of
from karat.server.openai.requests import read_chat
from karat.server.openai.response_requests import read_response
from tests.server.conftest import Running

SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}}
FUNCTION = {"name": "clock", "description": "The time.", "parameters": SCHEMA, "strict": True}
BODIES: dict[str, Any] = {
    CHAT: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": "c",
                "reasoning_content": "d",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "noon"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    RESPONSES: {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "d"}]},
            {"type": "function_call", "call_id": "1", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "noon"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
    },
    MESSAGES: {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "d", "signature": "e"},
                    {"type": "text", "text": "c"},
                    {"type": "tool_use", "id": "1", "name": "clock", "input": {}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "noon"}]},
        ],
        "tools": [{"name": "clock", "description": "The time.", "input_schema": SCHEMA, "strict": True}],
    },
}
READERS: dict[str, Callable[[Any], ChatRequest]] = {CHAT: read_chat, RESPONSES: read_response, MESSAGES: read_message}
Path = tuple[str | int, ...]
PLACES: list[tuple[str, Path]] = [
    *((CHAT, ("messages", number)) for number in range(3)),
    (CHAT, ("messages", 0, "content", 1)),
    (CHAT, ("messages", 1, "tool_calls", 0)),
    (CHAT, ("messages", 1, "tool_calls", 0, "function")),
    (CHAT, ("tools", 0)),
    (CHAT, ("tools", 0, "function")),
    *((RESPONSES, ("input", number)) for number in range(4)),
    (RESPONSES, ("input", 0, "content", 0)),
    (RESPONSES, ("tools", 0)),
    *((MESSAGES, ("messages", number)) for number in range(3)),
    *((MESSAGES, ("messages", 1, "content", number)) for number in range(3)),
    (MESSAGES, ("messages", 2, "content", 0)),
    (MESSAGES, ("tools", 0)),
]
# Keys that some place has: what they mean there is tested there.
MEANT = frozenset(
    "arguments async cache_control call_id caller content encrypted_content function id index input is_error name "
    "namespace output output_schema parsed parsed_arguments partial phase prefix reasoning reasoning_content refusal "
    "role signature status summary text thinking tool_call_id tool_calls tool_use_id type".split()
)
KEYS = st.text(max_size=60) | st.sampled_from("foo createdAt returns annotations x-y é a,b".split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda v: st.lists(v, max_size=2),
    max_leaves=3,
)


def read(route: str, body: Any) -> ChatRequest:
    return READERS[route](judge(body, fields_of(route)))


def with_key(route: str, path: Path, name: str, value: object) -> Any:
    body = json.loads(json.dumps(BODIES[route]))
    place = body
    for step in path:
        place = place[step]
    assert name not in place
    place[name] = value
    return body


@given(st.sampled_from(PLACES), KEYS, VALUES)
def test_other_keys_change_nothing_and_are_named(place: tuple[str, Path], name: str, value: object) -> None:
    route, path = place
    if name in MEANT | SEEN_IN_MESSAGES | SEEN_IN_TOOLS:
        return
    plain, asked = read(route, BODIES[route]), read(route, with_key(route, path, name, value))
    told = [] if is_nothing(value) else [f"{path[0]}.{quote(name[:MAX_NAME], safe='')}"]
    assert [*asked.unused] == told and "".join(told).isascii()
    assert replace(asked, unused=(), echo=None) == replace(plain, unused=(), echo=None)


@given(st.sampled_from(PLACES), st.data(), st.sampled_from(["a", 1, True, ["a"], {"a": 1}]))
def test_what_a_model_would_see_is_refused_by_its_name(
    place: tuple[str, Path], data: st.DataObject, value: object
) -> None:
    route, path = place
    name = data.draw(st.sampled_from(sorted((SEEN_IN_TOOLS if path[0] == "tools" else SEEN_IN_MESSAGES) - MEANT)))
    target: Any = BODIES[route]
    for step in path:
        target = target[step]
    if name in target:
        return
    for nothing in (None, [], {}, "", False, 0):
        read(route, with_key(route, path, name, nothing))
    with pytest.raises(ApiError) as caught:
        read(route, with_key(route, path, name, value))
    assert caught.value.status == 400 and str(caught.value.param).endswith(f".{name}")


def test_over_http_they_are_in_the_header(server: Running) -> None:
    for route in (CHAT, MESSAGES):
        messages = [{"role": "user", "content": "a", "foo": 1, "images": [], "é\r\n": 2}]
        answer = server.ask(route, {"messages": messages, "max_tokens": 1})
        assert answer.status == 200 and answer.headers["karat-without-effect"] == "messages.foo, messages.%C3%A9%0D%0A"
    messages = [{"role": "user", "content": "a", **{f"k{number}": 1 for number in range(500)}}]
    answer = server.ask(CHAT, {"messages": messages, "max_tokens": 1})
    assert answer.status == 200 and len(answer.headers["karat-without-effect"]) < 2000
