"""From requests of Anthropic's protocol to the inner form, with all checks. Nothing here computes or waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from karat.request import shown
from karat.server.anthropic.formats import structure
from karat.server.bodies import judge, named_harmless, read_json
from karat.server.errors import invalid
from karat.server.fields import COUNT, MESSAGES, TABLE, fields_of
from karat.server.openai.requests import ChatRequest, Form, read_variables
from karat.server.wishes import read_wishes

_FIELDS = {route: fields_of(route) for route in (MESSAGES, COUNT)}
_SAMPLED = frozenset(field.name for field in TABLE if field.samples and MESSAGES in field.routes)
_ROLES = ("user", "assistant", "system")
_INSTEAD = {
    "tool_use": "Karat calls no tools yet; tell the call in a text",
    "tool_result": "Karat calls no tools yet; tell the result in a text",
    "thinking": "Karat keeps no reasoning apart yet; take the block out",
    "redacted_thinking": "Karat keeps no reasoning apart yet; take the block out",
}


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A conversation, and the names of all that has no effect: fields, tools, marks in blocks."""

    chat: ChatRequest
    without_effect: tuple[str, ...]


def read_message(content: bytes, route: str) -> MessageRequest:
    """The request of a body for /v1/messages or its count_tokens. 400 for what is wrong or no text."""
    given = read_json(content)
    body = judge(given, _FIELDS[route])
    values, blocks = body.values, _Blocks()
    messages = blocks.messages(values["messages"])
    if system := blocks.text(values["system"], "system") if "system" in values else "":
        messages.insert(0, {"role": "system", "content": system})
    sampling = {name: value for name, value in values.items() if name in _SAMPLED}
    form, unused = structure(values)
    sampling |= form
    if "stop_sequences" in values:
        sampling["stop"] = values["stop_sequences"]
    stream = values.get("stream", False)
    chat = ChatRequest(
        _joined(messages),
        read_variables(values),
        sampling,
        Form(values.get("model"), stream, progress=stream),  # progress: the first event has the cached tokens
        values.get("priority", 0),
        values.get("cache_salt"),
        read_wishes(values),
    )
    names = (*named_harmless(body, given.get("tools") or []), *unused)
    if blocks.has_marks and "cache_control" not in names:
        names += ("cache_control",)
    return MessageRequest(chat, names)


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of one role in a row are one, as the protocol has it."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append(message)
    return joined


class _Blocks:
    """Reads contents. `has_marks`: whether a block had a cache_control."""

    def __init__(self) -> None:
        self.has_marks = False

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation for the template: known roles, contents of text, the last one not the assistant's."""
        read = [self._message(message, f"messages[{index}]") for index, message in enumerate(messages)]
        if read[-1]["role"] == "assistant":
            where = f"messages[{len(read) - 1}].role"
            raise invalid(
                where,
                f"{where}='assistant' in the last message: Karat goes on with no begun answer here; "
                "use /render and /v1/completions",
            )
        return read

    def _message(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise invalid(f"{where}.role", f"{where}.role={shown(role)}: expected one of {', '.join(_ROLES)}")
        for name in message.keys() - {"role", "content"}:
            text = f"{where} has {shown(name)}={shown(message[name])}; expected role and content"
            raise invalid(f"{where}.{name}"[:200], text, "unknown_field")
        return {"role": role, "content": self.text(message.get("content"), f"{where}.content")}

    def text(self, content: object, where: str) -> str:
        """The content as one text. Blocks are joined by line breaks, as in chat completions."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list) or not content:
            raise invalid(where, f"{where}={shown(content)}: expected a text, or a list of text blocks")
        return "\n".join(self._block(block, f"{where}[{index}]") for index, block in enumerate(content))

    def _block(self, block: object, where: str) -> str:
        if not isinstance(block, dict):
            raise invalid(where, f"{where}={shown(block)}: expected a block: type text and a text")
        kind = block.get("type")
        if kind != "text":
            instead = _INSTEAD.get(kind) if isinstance(kind, str) else None
            said = f"{where}.type={shown(kind)}: {instead or 'Karat reads text alone'}"
            raise invalid(f"{where}.type", said, "unsupported_field")
        text = block.get("text")
        if not isinstance(text, str):
            raise invalid(f"{where}.text", f"{where}.text={shown(text)}: expected a text")
        for name, value in block.items():
            if name == "cache_control" and isinstance(value, dict | None):
                self.has_marks |= value is not None
            elif name not in ("type", "text") and not (name == "citations" and value in (None, [])):
                said = f"{where} has {shown(name)}={shown(value)}; expected type, text and cache_control"
                raise invalid(f"{where}.{name}"[:200], said, "unknown_field")
        return text
