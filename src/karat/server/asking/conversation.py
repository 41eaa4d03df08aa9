"""Messages as templates have them: what all protocols share of reading them."""

from collections.abc import Mapping, Sequence
from typing import Any

from karat.request import shown
from karat.server.errors import ApiError, invalid

Content = str | list[dict[str, str]]  # a text, or parts of type text
# Keys of messages, calls and blocks that clients keep for other servers or for themselves. No template gets them.
UNUSED = frozenset(
    "annotations cache_control citations created_at extra_content finish_reason id index logprobs metadata model "
    "provider_options providerMetadata providerOptions provider_metadata provider_specific_fields "
    "reasoning_details reasoning_opaque refusal stop_reason thinking_blocks thought_signature timestamp "
    "token_ids usage".split()
)


def linked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with the tool's name in each result. ApiError 400 for a result of a call that was not made before."""
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            if call_id not in names:
                raise invalid(
                    "messages",
                    f"message {index} is the result of the call {shown(call_id)}, which no message before it makes; "
                    "send the answer that made the call too",
                )
            message.setdefault("name", names[call_id])
    return messages


def require_continuable(message: Mapping[str, Any], where: str) -> None:
    """400 for a message that no answer can go on with."""
    if message.get("role") != "assistant":
        said = f"{where}.role={shown(message.get('role'))}: an answer goes on with a message of the assistant's alone"
        raise invalid(f"{where}.role", f"{said}; leave continue_final_message out")
    if message.get("tool_calls"):
        text = f"{where} has calls, after which no text goes on; send their results, or take them out"
        raise invalid(f"{where}.tool_calls", text)


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool as messages for the template have it. `arguments` is JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_in(given: Mapping[str, Any], name: str, where: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", f"{where}.{name}={shown(value)}: expected a string")
    return value


def unknown(param: str, where: str, name: str, value: object, expected: str) -> ApiError:
    """For a key that is not known there."""
    return invalid(param[:200], f"{where} has {shown(name)}={shown(value)}; expected {expected}", "unknown_field")


def content_of(texts: Sequence[str]) -> Content:
    """A content of these texts. One alone is no part: all protocols have it as another way to write the same."""
    return [{"type": "text", "text": text} for text in texts] if len(texts) > 1 else "".join(texts)


def texts_of(content: Content) -> list[str]:
    """The texts of a content; none where it is empty."""
    if isinstance(content, str):
        return [content] if content else []
    return [part["text"] for part in content]
