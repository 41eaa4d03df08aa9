"""Messages of OpenAI's chats made into those of templates, with all checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from karat.request import shown
from karat.server.asking.conversation import UNUSED, Content, called, content_of, linked, text_in, unknown
from karat.server.errors import invalid
from karat.server.openai.custom_tools import arguments_of

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONING = ("reasoning_content", "reasoning")
_EMPTY: tuple[Any, ...] = ([], "", {})
CONTINUING = ("prefix", "partial")  # keys of a last message that an answer goes on with
_CALL = frozenset({"id", "type", "function", "index"})
_FUNCTION = frozenset({"name", "arguments", "parsed_arguments"})
_CUSTOM = frozenset({"name", "input"})


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for the template: known roles, contents of text, calls of tools and their results."""
    return linked([_message(message, f"messages[{index}]") for index, message in enumerate(messages)])


def unused_of(messages: Sequence[Mapping[str, Any]], where: str = "messages") -> tuple[str, ...]:
    """The names of the keys of messages that have no effect, and of those of their calls."""
    found: dict[str, None] = {}
    for message in messages:
        calls = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
        inner = [call[kind] for call in calls for kind in ("function", "custom") if isinstance(call.get(kind), dict)]
        for given, known in ((message, ()), *((call, _CALL) for call in calls), *((each, _FUNCTION) for each in inner)):
            for name, value in given.items():
                is_content = name == "refusal" and not given.get("content")
                if name in UNUSED - {"id", *known} and value is not None and value not in _EMPTY and not is_content:
                    found[f"{where}.{name}"] = None
    return tuple(found)


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role == "function":
        raise invalid(f"{where}.role", f"{where}.role='function' is of an older protocol; use role tool")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{where}.role", f"{where}.role={shown(role)}: expected one of {', '.join(_ROLES)}")
    calls = message.get("tool_calls") if role == "assistant" else None
    content = message.get("content")
    if role == "assistant" and not content and isinstance(message.get("refusal"), str):
        content = message["refusal"]  # the answer was this
    is_empty = content in (None, []) and role in ("assistant", "tool")
    plain: dict[str, Any] = {
        "role": _ROLES[role],
        "content": "" if is_empty else read_content(content, f"{where}.content"),
    }
    if role == "tool":
        plain["tool_call_id"] = text_in(message, "tool_call_id", where)
    for name, value in message.items():
        if name in ("role", "content") or value is None or (role == "tool" and name == "tool_call_id"):
            continue
        if name in CONTINUING and isinstance(value, bool):
            continue  # of the last message: continues_last
        if name == "name" or (name in _REASONING and role == "assistant"):
            plain[name if name == "name" else "reasoning_content"] = text_in(message, name, where)
        elif name == "tool_calls" and calls:
            plain["tool_calls"] = _calls(calls, f"{where}.tool_calls")
        elif name not in UNUSED and (name not in ("audio", "tool_calls") or value not in _EMPTY):
            raise unknown(f"{where}.{name}", where, name, value, "role, content, name and tool_calls")
    return plain


def _calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Calls of tools of an earlier answer."""
    if not isinstance(calls, list):
        raise invalid(where, f"{where}={shown(calls)}: expected a list of calls")
    read = []
    for index, call in enumerate(calls):
        place = f"{where}[{index}]"
        kind = call.get("type", "function") if isinstance(call, dict) else ""
        tool = call.get(kind) if kind in ("function", "custom") else None
        if not isinstance(tool, dict):
            raise invalid(place, f"{place}={shown(call)}: expected id, type function or custom, and a key of that name")
        inner, of_tool = f"{place}.{kind}", _CUSTOM if kind == "custom" else _FUNCTION
        for given, known, at in ((call, _CALL - {"function"} | {kind}, place), (tool, of_tool, inner)):
            for name in given.keys() - known - UNUSED:
                if given[name] is not None:
                    raise unknown(f"{at}.{name}", at, name, given[name], ", ".join(sorted(known)))
        arguments = tool.get("arguments")
        if kind == "custom":
            text = arguments_of(text_in(tool, "input", inner))
        elif isinstance(arguments, dict | None):
            text = msgspec.json.encode(arguments or {}).decode()
        else:
            text = text_in(tool, "arguments", inner)
        read.append(called(text_in(call, "id", place), text_in(tool, "name", inner), text))
    return read


def read_content(content: object, where: str) -> Content:
    """The content as a text or as parts of text, which the template reads or gets joined (`RequestMaker`)."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(where, f"{where}={shown(content)}: expected a text, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(part, dict) and kind != "text":
            raise invalid(f"{where}[{index}].type", f"{where}[{index}].type={shown(kind)}: Karat reads text alone")
        said = (
            {name for name, value in part.items() if value not in (None, [], {})} if isinstance(part, dict) else set()
        )
        if not isinstance(text, str) or said - {"type", "text", "cache_control"}:
            raise invalid(f"{where}[{index}]", f"{where}[{index}]={shown(part)}: expected type text and a text")
        texts.append(text)
    return content_of(texts)
