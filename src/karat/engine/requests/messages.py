"""Messages as callers give them, made plain: what LLM, AsyncLLM and the server take of them is decided here."""

from collections.abc import Mapping, Sequence
from typing import Any

from karat.engine.requests.passed import Passed, is_nothing
from karat.errors import RequestError
from karat.request import shown
from karat.text.chat_prompt import REASONING

Message = Mapping[str, Any]
CONTINUING = ("prefix", "partial")  # keys of a last message that an answer goes on with: Mistral's, and Qwen's
_CALL = frozenset({"id", "type", "function", "index"})
_FUNCTION = frozenset({"name", "arguments", "parsed_arguments"})
_BARE = {"role", "content"}
_EMPTY_FOR = ("assistant", "tool")  # roles whose contents may be left out
_PARTS = ("text", "refusal")  # types of parts, whose text has the type's name


def plain_messages(messages: Sequence[Message], passed: Passed) -> list[dict[str, Any]]:
    """The messages for the template: known keys alone, each content a text, or a list of parts of type text.

    Calls are in OpenAI's form. The role developer is system. Keys that no template gets are noted in `passed`. Raises
    RequestError for anything but a conversation, and for what is no text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise no_conversation(messages)
    if not all(isinstance(message, Mapping) for message in messages):
        raise no_conversation(messages)
    return [_plain(message, f"messages[{index}]", passed) for index, message in enumerate(messages)]


def goes_on(messages: Sequence[Message]) -> bool:
    """Whether the last message says that the answer goes on with it."""
    last = messages[-1] if messages else {}
    return any(last.get(key) is True for key in CONTINUING)


def _plain(message: Message, where: str, passed: Passed) -> dict[str, Any]:
    role = message.get("role")
    content = message.get("content")
    if isinstance(content, str) and message.keys() == _BARE:  # most are so, and there may be many
        return {"role": "system" if role == "developer" else role, "content": content}
    is_answer, is_result = role == "assistant", role == "tool"
    if is_answer and not content and isinstance(message.get("refusal"), str):
        content = message["refusal"]  # the answer was this
    is_empty = content in ([], ()) or (content is None and (role in _EMPTY_FOR or "content" in message))
    plain: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": "" if is_empty else plain_content(content, f"{where}.content", passed),
    }
    known = {"role", "content"}
    if isinstance(message.get("name"), str):
        plain["name"] = message["name"]
        known.add("name")
    elif message.get("name") is not None:
        raise _no_text(message, "name", where)
    if is_result and message.get("tool_call_id") is not None:
        plain["tool_call_id"] = _text(message, "tool_call_id", where)
    if is_answer:
        for name in REASONING:
            if isinstance(message.get(name), str) or not is_nothing(message.get(name)):
                plain.setdefault("reasoning_content", _text(message, name, where))
        if not is_nothing(calls := message.get("tool_calls")):
            plain["tool_calls"] = _calls(calls, f"{where}.tool_calls", passed)
        known |= {*REASONING, "tool_calls"} | ({"refusal"} if content == message.get("refusal") else set())
    known |= {"tool_call_id"} if is_result else set()
    known |= {key for key in CONTINUING if isinstance(message.get(key), bool)}
    passed.over(message, known, where)
    return plain


def _calls(calls: object, where: str, passed: Passed) -> list[dict[str, Any]]:
    """Calls of functions of an earlier answer."""
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{where}={shown(calls)}: expected a list of calls", param=where)
    return [_call(call, f"{where}[{index}]", passed) for index, call in enumerate(calls)]


def _call(call: object, where: str, passed: Passed) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    kind = call.get("type") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or kind not in (None, "function"):
        raise RequestError(f"{where}={shown(call)}: expected id, type function, and function", param=where)
    passed.over(call, _CALL, where)
    passed.over(function, _FUNCTION, f"{where}.function")
    arguments = function.get("arguments")
    if not isinstance(arguments, Mapping | str | None):
        raise _no_text(function, "arguments", f"{where}.function")
    made: dict[str, Any] = {} if call.get("id") is None else {"id": _text(call, "id", where)}
    name = _text(function, "name", f"{where}.function")
    return {**made, "type": "function", "function": {"name": name, "arguments": {} if arguments is None else arguments}}


def plain_content(content: object, where: str, passed: Passed) -> str | list[dict[str, str]]:
    """A content as a text, or as parts of type text, of which there are two at least."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise RequestError(f"{where}={shown(content)}: expected a text, or a list of text parts", param=where)
    texts = [_part(part, f"{where}[{index}]", passed) for index, part in enumerate(content) if part is not None]
    return content_of(texts)


def _part(part: object, where: str, passed: Passed) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind not in _PARTS:
        said = f"{where}.type={shown(kind)}: Karat has no images, audio or video; expected text alone"
        raise RequestError(said, param=f"{where}.type")
    text = part.get(kind, 0) if isinstance(part, Mapping) and isinstance(kind, str) else 0
    if not isinstance(part, Mapping) or not isinstance(kind, str) or not isinstance(text, str | None):
        raise RequestError(f"{where}={shown(part)}: expected {{'type': 'text', 'text': …}}", param=where)
    passed.over(part, ("type", kind), where)
    return text or ""


def content_of(texts: Sequence[str]) -> str | list[dict[str, str]]:
    """A content of these texts. One alone is no part: all protocols have it as another way to write the same."""
    return [{"type": "text", "text": text} for text in texts] if len(texts) > 1 else "".join(texts)


def linked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The same with the tool's name in each result. RequestError for a result of a call that was not made before.

    A result that names no call is of the first one that has none yet, of its own name if it states one; where there is
    no such call it stays as it is.
    """
    open_calls: list[Mapping[str, str]] = []  # without a result, with `name` and perhaps `id`
    names: dict[str, str] = {}
    told: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        made = dict(message)
        for call in message.get("tool_calls", ()):
            own = {key: call[key] for key in ("id",) if key in call} | {"name": call["function"]["name"]}
            open_calls.append(own)
            names |= {own["id"]: own["name"]} if "id" in own else {}
        if (call_id := message.get("tool_call_id")) is not None:
            if call_id not in names:
                raise RequestError(
                    f"message {index} is the result of the call {shown(call_id)}, which no message before it makes; "
                    "send the answer that made the call too",
                    param="messages",
                )
            open_calls = [own for own in open_calls if own.get("id") != call_id]
            made = {"name": names[call_id], **message}
        elif message.get("role") == "tool":
            name = message.get("name")
            if (found := next((own for own in open_calls if name in (None, own["name"])), None)) is not None:
                open_calls.remove(found)
                made |= {"name": found["name"]} | ({"tool_call_id": found["id"]} if "id" in found else {})
        told.append(made)
    return told


def no_conversation(value: object) -> RequestError:
    return RequestError(
        f"messages={shown(value)}: expected a list of {{'role': …, 'content': …}}, or a list of such lists",
        param="messages",
    )


def _text(given: Message, name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise _no_text(given, name, where)
    return value


def _no_text(given: Message, name: str, where: str) -> RequestError:
    return RequestError(f"{where}.{name}={shown(given.get(name))}: expected a string", param=f"{where}.{name}")
