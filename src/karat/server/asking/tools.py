"""The tools of a request and which of them may or must be called, whatever the protocol."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from karat.engine.requests.passed import SEEN_IN_TOOLS, Passed
from karat.errors import RequestError, UsageError
from karat.request import StructuredOutputs, shown
from karat.server.errors import ApiError, invalid
from karat.text.tools.calling import Calling, Mode, Offer, names_shown
from karat.text.tools.dialect import Dialect

_MAX_NAMED = 64
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True)
class Function:
    """A tool that can be called. `parameters` is a JSON Schema; None: none was given.

    `text` is the form of its only argument, a text, where it has one. `place` is that of `parameters` in the request.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    text: StructuredOutputs | None = None
    place: str = field(default="tools", compare=False)

    def for_template(self) -> dict[str, Any]:
        """As templates expect it, which are written for OpenAI's form."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {name: value for name, value in told.items() if value is not None}}

    def offer(self) -> Offer:
        return Offer(self.name, None if self.parameters is None else dict(self.parameters), self.strict, self.text)


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that the model is shown, and which of them may or must be called.

    `dropped` are the names for the header of tools that are no functions, or that may not be called.
    """

    functions: tuple[Function, ...] = ()
    calling: Calling = field(default_factory=Calling)
    dropped: tuple[str, ...] = ()

    def rendered(self) -> list[dict[str, Any]] | None:
        """For the template; None where there are none."""
        return [function.for_template() for function in self.functions] or None

    def places(self) -> dict[str, str]:
        """Where the request has the parameters of each function, by the params of errors."""
        return {f"tools.{function.name}": function.place for function in self.functions}

    def check(self, dialect: Dialect) -> None:
        """ApiError 400 where the model, by its template, can be told of no tools or calls them in no known form."""
        if not self.functions:
            return
        try:
            dialect.require_tools(read=True)
        except UsageError as error:
            raise invalid("tools", str(error), "unsupported_field") from error

    def structured(self, dialect: Dialect, prompt: str, answer: StructuredOutputs | None) -> StructuredOutputs | None:
        """As `Calling.structured`; ApiError 400 for schemas that cannot be kept to."""
        try:
            return self.calling.structured(dialect, prompt, answer)
        except RequestError as error:
            raise invalid("tools", f"tools: {error}") from error


NO_TOOLS = Tools()

# Choices by a word: those of OpenAI's protocol and Anthropic's "any", understood in both.
MODES: Mapping[object, Mode] = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


def chosen(
    functions: Sequence[Function],
    others: Sequence[str],
    choice: Mode | tuple[str],
    *,
    parallel: bool,
    allowed: Sequence[str] | None = None,
) -> Tools:
    """The tools of a request. `others` name those that are no functions. A `choice` of (name,) asks for this one.

    `allowed`: the names of those that may be called, of all. ApiError 400 for a choice that cannot be kept to.
    """
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid("tools", f"tools has {twice} twice; give each its own name")
    if others and choice not in ("auto", "none"):
        text = f"tools: {others[0]} is no function, and the model is to call a tool; leave it out, or take auto"
        raise invalid("tools", text, "unsupported_field")
    try:
        calling = Calling.chosen(
            [function.offer() for function in functions], choice, parallel=parallel, allowed=allowed
        )
    except RequestError as error:
        raise invalid("tool_choice", str(error)) from error
    if choice == "none" or not calling.offers:
        return Tools(dropped=_named([*(f"tools.{name}" for name in names), *others]))
    seen = names_shown(names, choice)
    return Tools(tuple(each for each in functions if each.name in seen), calling, _named(others))


def _named(names: Sequence[str]) -> tuple[str, ...]:
    """Names for the header, which has limits: after the first 64 the others are counted."""
    more = len(names) - _MAX_NAMED
    return tuple(names) if more <= 0 else (*names[:_MAX_NAMED], f"tools[{more} more]")


def function_of(
    given: Mapping[str, Any], where: str, passed: Passed, *, schema: str, harmless: Sequence[str] = ()
) -> Function:
    """A function with the keys name, description, strict and `schema`, beside which `harmless` ones are usual.

    Others are noted in `passed`; an error for those that a model would be shown.
    """
    passed.over(given, {"name", "description", "strict", schema, *harmless}, where, "tools", SEEN_IN_TOOLS)
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{where}.name", f"{where}.name={shown(name)}: expected 1 to 128 letters, digits, dots, - and _")
    parameters, strict = given.get(schema), given.get("strict")
    for key, value, kind, word in (
        ("description", description, str, "a text"),
        (schema, parameters, dict, "a JSON Schema"),
        ("strict", strict, bool, "true or false"),
    ):
        if value is not None and not isinstance(value, kind):
            raise invalid(f"{where}.{key}", f"{where}.{key}={shown(value)}: expected {word}")
    return Function(name, description, parameters, bool(strict), place=f"{where}.{schema}")


def other_name(tool: Mapping[str, Any], number: int) -> str:
    """The name for the header of a tool that is no function."""
    name = tool.get("name") or tool.get("type")
    return f"tools.{name}" if isinstance(name, str) and _NAME.fullmatch(name) else f"tools[{number}]"


def unknown_choice(value: object, expected: str) -> ApiError:
    """For a tool_choice of another form."""
    return invalid("tool_choice", f"tool_choice={shown(value)}: expected {expected}", "unsupported_field")
