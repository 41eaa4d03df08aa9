"""Contents of several text parts: as a list where the chat template loops over it, else as one text.

A template that loops puts its own text between parts, mostly none. Joined by line breaks before it sees them, the model
would get another prompt than from transformers or vLLM, which hand over the list. One that does not loop prints the
list as Python writes it, or fails: there the parts become one text, joined by line breaks, as in vLLM.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from karat.errors import TemplateError
from karat.text.tokenizer import Tokenizer

_FIRST, _SECOND = "first-part-of-probe", "second-part-of-probe"
_PARTS = [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]
_PRINTED = re.compile(rf"""["']text["']: ["']{_FIRST}""")  # by Python or as JSON
_USER = {"role": "user", "content": "Hello"}
_CALL = {"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": {}}}
_TOOL = {
    "type": "function",
    "function": {"name": "probe", "description": "A tool.", "parameters": {"type": "object", "properties": {}}},
}
# The shortest conversations in which a content of the role has parts.
_TALKS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "system": [{"role": "system", "content": _PARTS}, _USER],
    "user": [{"role": "user", "content": _PARTS}],
    "assistant": [_USER, {"role": "assistant", "content": _PARTS}, _USER],
    "tool": [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "probe0001", "name": "probe", "content": _PARTS},
    ],
}


def roles_with_parts(tokenizer: Tokenizer, *, tools: bool) -> frozenset[str]:
    """The roles whose contents the template reads part by part, found by rendering. `tools`: in a chat with tools."""
    return frozenset(role for role, talk in _TALKS.items() if _reads(tokenizer, talk, tools or role == "tool"))


def _reads(tokenizer: Tokenizer, talk: Sequence[Mapping[str, Any]], tools: bool) -> bool:
    try:
        text = tokenizer.render_chat(talk, tools=[_TOOL] if tools else None)
    except TemplateError:
        return False
    return _FIRST in text and _SECOND in text and not _PRINTED.search(text)


def joined(messages: Sequence[Mapping[str, Any]], roles: frozenset[str]) -> list[Mapping[str, Any]]:
    """The messages, with contents of text parts as one text each, except for these roles."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list) and message.get("role") not in roles
        else message
        for message in messages
    ]
