"""Messages of Anthropic's protocol made into those of templates, with all checks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from karat.engine.requests.messages import content_of, linked
from karat.engine.requests.passed import Passed
from karat.request import shown
from karat.server.asking.conversation import Content, called, require_continuable, texts_of
from karat.server.errors import invalid

_ACCOUNTING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
_ROLES = ("user", "assistant", "system")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
_KNOWN = frozenset({"role", "content", "type"})  # of a message; the server's own have a type
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}


class Contents:
    """Reads messages and contents. `has_marks`: whether a block had a cache_control.

    Other keys and blocks that have no effect are noted in `passed`: reasoning that nobody can read, and what clients
    keep for other servers.
    """

    def __init__(self, passed: Passed) -> None:
        self.has_marks = False
        self._passed = passed

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The conversation for the template. Messages of one role in a row are one, as the protocol has it.

        Results of tools are messages of their own. With a last message of the assistant's the answer goes on with it.
        """
        read = [part for index, message in enumerate(messages) for part in self._message(message, f"messages[{index}]")]
        made = linked(_joined(read))
        if made[-1]["role"] == "assistant":
            require_continuable(made[-1], f"messages[{len(messages) - 1}]")
        return made

    def text(self, content: object, where: str) -> Content:
        """The content as a text or as parts of text, as in chat completions."""
        return content_of([_text(block) for block in self._blocks(content, where, ("text",))])

    def system(self, content: object) -> Content:
        """As `text`, without the line of accounting that Claude Code puts first. It is noted.

        Its numbers are others in each request: no prompt would begin as one before it, and none would be shared.
        """
        texts = [_text(block) for block in self._blocks(content, "system", ("text",))] if content else []
        if texts and (line := _ACCOUNTING.match(texts[0])):
            self._passed.note("system.x-anthropic-billing-header")
            rest = texts[0][line.end() :]
            texts[:1] = [rest] if rest else []
        return content_of(texts)

    def _message(self, message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise invalid(f"{where}.role", f"{where}.role={shown(role)}: expected one of {', '.join(_ROLES)}")
        self._passed.over(message, _KNOWN, where)
        content = message.get("content")
        is_empty = content == [] or (content is None and (role == "assistant" or "content" in message))
        said = "" if is_empty else content
        blocks = self._blocks(said, f"{where}.content", _ALLOWED[role])
        if role == "assistant":
            return [_answer(blocks)]
        read: list[dict[str, Any]] = []
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                texts = texts_of(read.pop()["content"]) if read and read[-1]["role"] == role else []
                read.append({"role": role, "content": content_of([*texts, _text(block)])})
                continue
            inner = f"{where}.content[{index}].content"
            told = self.text(block["content"], inner) if block.get("content") else ""
            if block.get("is_error"):
                first, *rest = texts_of(told) or [""]
                told = content_of([f"Error: {first}", *rest])
            read.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": told})
        return read

    def _blocks(self, content: object, where: str, allowed: Sequence[str]) -> list[Mapping[str, Any]]:
        """The blocks of a content, checked."""
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise invalid(where, f"{where}={shown(content)}: expected a text, or a list of blocks")
        for index, block in enumerate(content):
            self._check(block, f"{where}[{index}]", allowed)
        return content

    def _check(self, block: object, where: str, allowed: Sequence[str]) -> None:
        if not isinstance(block, dict):
            raise invalid(where, f"{where}={shown(block)}: expected a block: type text and a text")
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in allowed:
            said = f"{where}.type={shown(kind)}: expected {' or '.join(allowed)}"
            raise invalid(f"{where}.type", said, "unsupported_field")
        texts = {
            "text": ("text",),
            "tool_use": ("id", "name"),
            "tool_result": ("tool_use_id",),
            "thinking": ("thinking",),
            "redacted_thinking": (),
        }
        if kind == "redacted_thinking":
            self._passed.note(f"messages.{kind}")
        for name in texts[kind]:
            is_null = kind == "text" and name in block and block[name] is None
            if not is_null and not isinstance(block.get(name), str):
                raise invalid(f"{where}.{name}", f"{where}.{name}={shown(block.get(name))}: expected a text")
        if kind == "tool_use" and not isinstance(block.get("input"), dict | None):
            raise invalid(f"{where}.input", f"{where}.input={shown(block.get('input'))}: expected an object")
        marks = block.get("cache_control")
        is_mark = isinstance(marks, dict | None)
        self.has_marks |= isinstance(marks, dict)
        known = {"type", *_KEYS[kind], *(["cache_control"] if is_mark else [])}
        if kind == "tool_use" and block.get("caller") == {"type": "direct"}:
            known.add("caller")  # says what is so without it
        self._passed.over(block, known, where)


def _text(block: Mapping[str, Any]) -> str:
    """The text of a block, where null is none."""
    return block["text"] or ""


def _answer(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An earlier answer."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content_of([_text(block) for block in blocks if block["type"] == "text"]),
    }
    if thoughts := [block["thinking"] for block in blocks if block["type"] == "thinking"]:
        message["reasoning_content"] = "\n".join(thoughts)
    if uses := [block for block in blocks if block["type"] == "tool_use"]:
        message["tool_calls"] = [
            called(use["id"], use["name"], msgspec.json.encode(use.get("input") or {}).decode()) for use in uses
        ]
    return message


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of one role in a row are one, except results of tools."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if not joined or joined[-1]["role"] != message["role"] or message["role"] == "tool":
            joined.append(message)
            continue
        last = joined[-1]
        if thoughts := [each["reasoning_content"] for each in (last, message) if each.get("reasoning_content")]:
            last["reasoning_content"] = "\n".join(thoughts)
        before, after = texts_of(last["content"]), texts_of(message["content"])
        if before and after:  # a line break parts messages; what parts blocks of one message is the template's
            before, after = [*before[:-1], f"{before[-1]}\n{after[0]}"], after[1:]
        last["content"] = content_of([*before, *after])
        if calls := [*last.get("tool_calls", ()), *message.get("tool_calls", ())]:
            last["tool_calls"] = calls
    return joined
