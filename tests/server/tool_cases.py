"""What a scripted model says with reasoning, text and calls, and requests of each protocol that make it say so."""

from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES
from tests.support.scripted import script

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMES = ("get_weather", "clock")
PARAMETERS: dict[str, Any] = {"get_weather": SCHEMA, "clock": {"type": "object", "properties": {}}}


def call(name: str = "get_weather", arguments: str = '{"city": "Oslo", "days": 2}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


THOUGHT, NEXT = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"  # of answers in channels


def call_in_channels(
    name: str = "get_weather", arguments: str = '{"city": "Oslo", "days": 2}', behind: bool = False
) -> str:
    """With the tool's name before the channel, or behind it."""
    to = f" to=functions.{name}"
    header = f"<|channel|>commentary{to} <|constrain|>json" if behind else f"{to}<|channel|>commentary json"
    return f"{header}<|message|>{arguments}"


# What the model says, and its parts: reasoning, then text or calls (name and arguments), in order.
SAID: dict[str, tuple[str, str, list[str | tuple[str, str]]]] = {
    "text": ("Hello there.", "", ["Hello there."]),
    "call": (call(), "", [("get_weather", '{"city": "Oslo", "days": 2}')]),
    "all": (
        f"<think>\nHm, {call()}\n</think>\n\nLet me see.\n{call()}\n{call('clock', '{}')}",
        f"Hm, {call()}",
        ["Let me see.", ("get_weather", '{"city": "Oslo", "days": 2}'), ("clock", "{}")],
    ),
    "between": (f"A\n{call('clock', '{}')}\nB", "", ["A", ("clock", "{}"), "\nB"]),
    "malformed": (f"<tool_call>\n{{x}}\n{call('other')}", "", [f"<tool_call>\n{{x}}\n{call('other')}"]),
    "nothing": ("", "", [""]),
    "thought alone": ("<think>Hm.", "Hm.", []),
}
CASES = pytest.mark.parametrize("case", SAID)


def chat_body(said: str, **given: Any) -> dict[str, Any]:
    functions = [{"name": name, "parameters": PARAMETERS[name]} for name in NAMES]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"messages": [{"role": "user", "content": script(said)}], "tools": tools, **given}


def response_body(said: str, **given: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": name, "parameters": PARAMETERS[name]} for name in NAMES]
    return {"input": script(said), "tools": tools, **given}


def message_body(said: str, **given: Any) -> dict[str, Any]:
    tools = [{"name": name, "input_schema": PARAMETERS[name]} for name in NAMES]
    return {"messages": [{"role": "user", "content": script(said)}], "tools": tools, "max_tokens": 2000, **given}


BODIES: dict[str, Any] = {CHAT: chat_body, RESPONSES: response_body, MESSAGES: message_body}


def texts(parts: list[str | tuple[str, str]]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def calls(parts: list[str | tuple[str, str]]) -> list[tuple[str, str]]:
    return [part for part in parts if not isinstance(part, str)]
