"""tools, tool_choice and parallel_tool_calls of OpenAI's chats and responses."""

from collections.abc import Mapping
from typing import Any

from karat.request import shown
from karat.server.errors import invalid
from karat.server.tools import Function, Tools, chosen, function_of, other_name, unknown_choice
from karat.text.tools.calling import Mode

_MODES: Mapping[object, Mode] = {"auto": "auto", "none": "none", "required": "required"}
_EXPECTED = "auto, none, required, or the name of a function"


def read_tools(values: Mapping[str, Any]) -> Tools:
    """The tools of a chat, whose functions are in `function`."""
    functions: list[Function] = []
    others: list[str] = []
    for number, tool in enumerate(values.get("tools", ())):
        where = f"tools[{number}]"
        if tool.get("type") != "function":
            others.append(other_name(tool, number))
            continue
        inner = tool.get("function")
        if not isinstance(inner, dict) or tool.keys() - {"type", "function"}:
            raise invalid(where, f"{where}={shown(tool)}: expected type function, and function with its name")
        functions.append(function_of(inner, f"{where}.function", schema="parameters"))
    return chosen(functions, others, _choice(values, nested=True), parallel=values.get("parallel_tool_calls", True))


def read_response_tools(values: Mapping[str, Any]) -> Tools:
    """The tools of a response, where functions have no key of their own."""
    functions: list[Function] = []
    others: list[str] = []
    for number, tool in enumerate(values.get("tools", ())):
        if tool.get("type") != "function":
            others.append(other_name(tool, number))
            continue
        inner = {name: value for name, value in tool.items() if name != "type"}
        functions.append(function_of(inner, f"tools[{number}]", schema="parameters"))
    return chosen(functions, others, _choice(values, nested=False), parallel=values.get("parallel_tool_calls", True))


def _choice(values: Mapping[str, Any], *, nested: bool) -> Mode | tuple[str]:
    """`nested`: the name of a function is in its key `function`."""
    choice = values.get("tool_choice", "auto")
    if isinstance(choice, str) and choice in _MODES:
        return _MODES[choice]
    if isinstance(choice, dict) and choice.get("type") == "function":
        inner = choice.get("function") if nested else choice
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and not choice.keys() - {"type", "function" if nested else "name"}:
            return (name,)
    raise unknown_choice(choice, _EXPECTED)
