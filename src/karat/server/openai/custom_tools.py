"""Custom tools of OpenAI's protocols: each takes one bare text, held to its regex or Lark grammar.

The model is shown a function of this text, `input`.
"""

import json
from collections.abc import Mapping
from typing import Any

from karat.engine.requests.passed import Passed, stated
from karat.errors import RequestError
from karat.request import StructuredOutputs, shown
from karat.server.asking.tools import Function, function_of
from karat.server.errors import invalid
from karat.text.tools.arguments import read_arguments

_INPUT = "input"  # the argument of the function


def custom_tool(given: Mapping[str, Any], form: object, where: str, passed: Passed) -> Function:
    """The function of a custom tool. `form` is its format. ApiError 400 for one that has parameters."""
    if given.get("parameters"):
        raise invalid(f"{where}.parameters", f"{where} is a custom tool with parameters; expected name and description")
    named = function_of(given, where, passed, schema="parameters")
    text, told = _form(form, f"{where}.format")
    value = {"type": "string", **({"description": told} if told else {})}
    wrapped = {"type": "object", "properties": {_INPUT: value}, "required": [_INPUT], "additionalProperties": False}
    return Function(named.name, named.description, wrapped, text=text, place=where)


def arguments_of(text: str) -> str:
    """The arguments of the function, as JSON, for a text that a custom tool was called with."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """The text for the custom tool in the arguments of a call, which may be cut."""
    given = (read_arguments(arguments) or {}).get(_INPUT, "")
    return given if isinstance(given, str) else arguments


def _form(form: object, where: str) -> tuple[StructuredOutputs | None, str]:
    """The form of a custom tool's text, and what the model is told of it. Chats have a grammar in a key of its own."""
    given = stated(form) if isinstance(form, dict) else {}
    kind, inner = given.get("type"), given.get("grammar", given)
    if form is None or (kind == "text" and len(given) == 1):
        return None, ""
    syntax, definition = (inner.get("syntax"), inner.get("definition")) if isinstance(inner, dict) else (None, None)
    if kind != "grammar" or syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise invalid(where, f"{where}={shown(form)}: expected type text, or grammar with syntax lark or regex")
    try:
        made = StructuredOutputs(grammar=definition) if syntax == "lark" else StructuredOutputs(regex=definition)
    except RequestError as error:
        raise invalid(where, str(error).replace("structured_outputs", where, 1)) from error
    return made, f"A text of this grammar ({syntax}):\n{definition}"
