"""tools, tool_choice and parallel_tool_calls of OpenAI's chats and responses."""

from collections.abc import Mapping
from typing import Any

from karat.engine.requests.passed import SEEN_IN_TOOLS, Passed, stated
from karat.request import shown
from karat.server.asking.tools import MODES, Function, Tools, chosen, function_of, other_name, unknown_choice
from karat.server.errors import invalid
from karat.server.openai.custom_tools import custom_tool
from karat.server.openai.response_tools import Offered, flat_name
from karat.text.tools.calling import Mode

_KINDS = ("function", "custom")  # types of tools that the model is shown as functions
_EXPECTED = "auto, none, required, the name of a function, or allowed_tools with mode auto or required"


def read_tools(values: Mapping[str, Any], passed: Passed) -> tuple[Tools, frozenset[str]]:
    """The tools of a chat, each in a key named by its type, and the names of the custom ones."""
    functions: list[Function] = []
    others: list[str] = []
    customs: set[str] = set()
    for number, tool in enumerate(values.get("tools", ())):
        where, kind = f"tools[{number}]", tool.get("type")
        if kind not in _KINDS:
            others.append(other_name(tool, number))
            continue
        inner = tool.get(kind)
        if not isinstance(inner, dict):
            raise invalid(where, f"{where}={shown(tool)}: expected type {kind}, and {kind} with its name")
        passed.over(tool, ("type", kind), where, "tools", SEEN_IN_TOOLS)
        if kind == "custom":
            given = {name: value for name, value in inner.items() if name != "format"}
            functions.append(custom_tool(given, inner.get("format"), f"{where}.custom", passed))
            customs.add(functions[-1].name)
        else:
            functions.append(function_of(inner, f"{where}.function", passed, schema="parameters"))
    return _chosen(functions, others, values, nested=True), frozenset(customs)


def read_response_tools(values: Mapping[str, Any], offered: Offered, passed: Passed) -> Tools:
    """The tools of a response, where functions have no key of their own. `offered`: those that its input told of."""
    given = Offered()
    given.add(values.get("tools", []), "tools", passed)
    for function in offered.functions:
        if function.name not in given.meanings:
            given.keep(function, offered.meanings[function.name])
    offered.functions, offered.meanings, offered.echoes = given.functions, given.meanings, given.echoes
    return _chosen(given.functions, [*given.others, *offered.others], values, nested=False)


def _chosen(functions: list[Function], others: list[str], values: Mapping[str, Any], *, nested: bool) -> Tools:
    choice, allowed = _choice(values, nested=nested)
    return chosen(functions, others, choice, parallel=values.get("parallel_tool_calls", True), allowed=allowed)


def _choice(values: Mapping[str, Any], *, nested: bool) -> tuple[Mode | tuple[str], list[str] | None]:
    """The choice, and the names of the tools that may be called if not all may.

    `nested`: the name of a tool, and what is allowed, is in a key of its own.
    """
    choice = values.get("tool_choice", "auto")
    if isinstance(choice, str) and choice in MODES:
        return MODES[choice], None
    choice = stated(choice) if isinstance(choice, dict) else choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind in MODES and choice.keys() == {"type"}:  # as Anthropic's protocol has it
        return MODES[kind], None
    if kind in _KINDS and (name := _name(choice, nested=nested)) is not None:
        return (name,), None
    if kind == "allowed_tools":
        inner = choice.get("allowed_tools") if nested else choice
        tools = inner.get("tools") if isinstance(inner, dict) else None
        mode = inner.get("mode") if isinstance(inner, dict) else None
        if isinstance(tools, list) and mode in ("auto", "required"):
            listed = [stated(tool) for tool in tools if isinstance(tool, dict)]
            names = [_name(tool, nested=nested) for tool in listed if tool.get("type") in _KINDS]
            if len(listed) == len(tools) and None not in names:
                return MODES[mode], [name for name in names if name is not None]
    raise unknown_choice(choice, _EXPECTED)


def _name(tool: Mapping[str, Any], *, nested: bool) -> str | None:
    """The name of a tool of one of _KINDS, if nothing else is told of it."""
    kind = tool["type"]
    inner = tool.get(kind) if nested else tool
    name = inner.get("name") if isinstance(inner, dict) else None
    known = {"type", kind} if nested else {"type", "name", "namespace"}
    if not isinstance(name, str) or tool.keys() - known:
        return None
    return name if nested else flat_name(tool.get("namespace"), name)
