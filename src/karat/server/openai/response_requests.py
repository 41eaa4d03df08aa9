"""From requests of /v1/responses to the inner form, with all checks. Nothing here computes or waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from karat.request import shown
from karat.server.bodies import judge, named_harmless, read_json
from karat.server.errors import invalid
from karat.server.fields import INPUT_TOKENS, RESPONSES, TABLE, Field, Text, fields_of
from karat.server.openai.formats import text_structure
from karat.server.openai.requests import ChatRequest, Form, read_messages, read_variables
from karat.server.openai.response_schema import TextConfig, TextFormat
from karat.server.wishes import read_wishes

_FIELDS = {route: fields_of(route) for route in (RESPONSES, INPUT_TOKENS)}
_SAMPLED = frozenset(field.name for field in TABLE if field.samples and RESPONSES in field.routes)
REASONING: Mapping[str, Field] = {
    field.name: field
    for field in (
        Field("effort", (), "refused", "use chat_template_kwargs, if the template has a variable", off=("medium",)),
        Field("summary", (), "without effect", "None is made.", Text),
        Field("generate_summary", (), "without effect", "None is made.", Text),
        Field("context", (), "without effect", "The whole input is the context.", Literal["auto"]),
    )
}
_PARTS = ("input_text", "output_text", "text")
_NOTHING: tuple[Any, ...] = (None, [], "")


@dataclass(frozen=True, slots=True)
class Echo:
    """What the answer gives back of the request."""

    instructions: str | None
    metadata: Mapping[str, str]
    max_output_tokens: int | None
    text: TextConfig = TextConfig(TextFormat())  # noqa: RUF009 - nobody changes it


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A conversation, what the answer gives back, and the names of all that has no effect: fields and tools."""

    chat: ChatRequest
    echo: Echo
    without_effect: tuple[str, ...]


def read_response(content: bytes, route: str) -> ResponseRequest:
    """The request of a body for /v1/responses or its input_tokens. 400 for what is wrong or no text."""
    given = read_json(content)
    body = judge(given, _FIELDS[route])
    values = body.values
    messages, instructions = _messages(values["input"]), values.get("instructions")
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    sampling = {name: value for name, value in values.items() if name in _SAMPLED}
    structure, text, names = text_structure(values)
    sampling |= structure
    judge(given.get("reasoning") or {}, REASONING, "reasoning.")
    if "max_output_tokens" in values:
        sampling["max_tokens"] = values["max_output_tokens"]
    chat = ChatRequest(
        messages,
        read_variables(values),
        sampling,
        Form(values.get("model"), values.get("stream", False)),
        values.get("priority", 0),
        values.get("cache_salt"),
        read_wishes(values),
    )
    echo = Echo(instructions, values.get("metadata", {}), values.get("max_output_tokens"), text)
    return ResponseRequest(chat, echo, (*named_harmless(body, given.get("tools") or []), *names))


def _messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not given:
        raise invalid("input", "input=[]: expected a text, or messages")
    return [_message(item, f"input[{index}]") for index, item in enumerate(given)]


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind != "message":
        raise invalid(
            f"{where}.type",
            f"{where}.type={shown(kind)}: Karat reads messages alone; tell calls, results and references in a text",
            "unsupported_field",
        )
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        expected = "expected one of user, assistant, system, developer"
        raise invalid(f"{where}.role", f"{where}.role={shown(role)}: {expected}")
    for name, value in item.items():
        is_text = name in ("id", "status", "phase") and isinstance(value, str | None)
        if name not in ("type", "role", "content") and not is_text:
            said = f"{where} has {shown(name)}={shown(value)}; expected type, role and content"
            raise invalid(f"{where}.{name}"[:200], said, "unknown_field")
    (message,) = read_messages([{"role": role, "content": _content(item.get("content"), f"{where}.content")}])
    return message


def _content(content: object, where: str) -> str:
    """The content as one text. Parts are joined by line breaks, as in chat completions."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(where, f"{where}={shown(content)}: expected a text, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PARTS:
            raise invalid(f"{place}.type", f"{place}.type={shown(kind)}: Karat reads text alone", "unsupported_field")
        text = part.get("text")
        if not isinstance(text, str):
            raise invalid(f"{place}.text", f"{place}.text={shown(text)}: expected a text")
        for name in part.keys() - {"type", "text"}:
            if name not in ("annotations", "logprobs") or part[name] not in _NOTHING:
                said = f"{place} has {shown(name)}={shown(part[name])}; expected type and text"
                raise invalid(f"{place}.{name}"[:200], said, "unknown_field")
        texts.append(text)
    return "\n".join(texts)
