"""Messages of OpenAI's chats made into those of templates, with all checks."""

from collections.abc import Sequence
from typing import Any

from karat.engine.requests.messages import Message, linked, plain_messages
from karat.engine.requests.passed import Passed, stated
from karat.request import shown
from karat.server.asking.conversation import text_in
from karat.server.errors import invalid
from karat.server.openai.custom_tools import arguments_of

_ROLES = ("system", "developer", "user", "assistant", "tool")
_CUSTOM = frozenset({"name", "input"})


def read_messages(messages: Sequence[Message], passed: Passed) -> list[dict[str, Any]]:
    """The conversation for the template: known roles, contents of text, calls of tools and their results, with ids.

    What is passed over is noted in `passed`.
    """
    given = [_checked(message, f"messages[{index}]", passed) for index, message in enumerate(messages)]
    return linked(plain_messages(given, passed))


def _checked(message: Message, where: str, passed: Passed) -> Message:
    """The message with its custom calls as calls of functions."""
    role = message.get("role")
    if role == "function":
        raise invalid(f"{where}.role", f"{where}.role='function' is of an older protocol; use role tool")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{where}.role", f"{where}.role={shown(role)}: expected one of {', '.join(_ROLES)}")
    calls = message.get("tool_calls")
    if role != "assistant" or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call(call, f"{where}.tool_calls[{n}]", passed) for n, call in enumerate(calls)]}


def _call(call: object, where: str, passed: Passed) -> Any:
    """A call of an earlier answer, which has an id."""
    kind = stated(call).get("type", "function") if isinstance(call, dict) else ""
    if not isinstance(call, dict) or kind not in ("function", "custom") or not isinstance(call.get(kind), dict):
        raise invalid(where, f"{where}={shown(call)}: expected id, type function or custom, and a key of that name")
    if call.get("id") is not None:
        text_in(call, "id", where)
    if kind == "function":
        return call
    custom = call["custom"]
    passed.over(custom, _CUSTOM, f"{where}.custom")
    name, text = (text_in(custom, key, f"{where}.custom") for key in ("name", "input"))
    rest = {key: value for key, value in call.items() if key != "custom"}
    return {**rest, "type": "function", "function": {"name": name, "arguments": arguments_of(text)}}
