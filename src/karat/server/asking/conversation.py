"""Messages as templates have them: what all protocols share of reading them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from karat.errors import RequestError
from karat.request import shown
from karat.server.errors import invalid, of_karat

Content = str | list[dict[str, str]]  # a text, or parts of type text


@contextmanager
def as_sent() -> Iterator[None]:
    """What is wrong with messages, tools and their keys is a 400 with the place."""
    try:
        yield
    except RequestError as error:
        raise of_karat(error) from error


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


def texts_of(content: Content) -> list[str]:
    """The texts of a content; none where it is empty."""
    if isinstance(content, str):
        return [content] if content else []
    return [part["text"] for part in content]
