"""Tools of /v1/responses: functions, and what is made one: tools of a namespace, custom tools, the client's search.

A model is shown functions alone. A function of a namespace has the name of both. Answers name them as the request did
(`Meaning`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from karat.engine.requests.passed import SEEN_IN_TOOLS, Passed
from karat.request import shown
from karat.server.asking.tools import Function, function_of, other_name
from karat.server.errors import invalid
from karat.server.openai.custom_tools import custom_tool
from karat.server.openai.response_schema import CustomTool, EchoedTool, FunctionTool, NamespaceTool, ToolSearchTool


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the name of a function stands for."""

    name: str
    namespace: str | None = None
    kind: Literal["function", "custom", "search"] = "function"


@dataclass(slots=True)
class Offered:
    """The tools of a request so far. `others`: names of those that are no functions, for the header."""

    functions: list[Function] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    meanings: dict[str, Meaning] = field(default_factory=dict)
    echoes: list[tuple[EchoedTool, frozenset[str]]] = field(default_factory=list)  # with the names of their functions

    def add(self, tools: object, where: str, passed: Passed) -> None:
        """ApiError 400 for what is no list of tools, and for functions of a wrong form."""
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise invalid(where, f"{where}={shown(tools)}: expected a list of tools")
        for number, tool in enumerate(tools):
            place = f"{where}[{number}]"
            if tool.get("type") == "namespace":
                self._add_namespace(tool, place, passed)
            elif (read := _read(tool, place, passed)) is None:
                self.others.append(other_name(tool, number))
            else:
                function, meaning, echo = read
                self.keep(function, meaning)
                self.echoes.append((echo, frozenset([function.name])))

    def _add_namespace(self, tool: Mapping[str, Any], where: str, passed: Passed) -> None:
        space, inner = tool.get("name"), tool.get("tools")
        if not isinstance(space, str) or not isinstance(inner, list):
            raise invalid(where, f"{where}={shown(tool)}: expected type namespace, a name and tools")
        names = set()
        for number, each in enumerate(inner):
            place = f"{where}.tools[{number}]"
            read = _read(each, place, passed) if isinstance(each, dict) else None
            if read is None:
                raise invalid(place, f"{place}={shown(each)}: expected type function or custom")
            function, meaning, _ = read
            made = replace(function, name=flat_name(space, function.name))
            self.keep(made, replace(meaning, namespace=space))
            names.add(made.name)
        told = tool.get("description")
        echo = NamespaceTool(space, told if isinstance(told, str) else None, inner)
        self.echoes.append((echo, frozenset(names)))

    def keep(self, function: Function, meaning: Meaning) -> None:
        """A tool that is told again, as searches find it, is kept once."""
        if self.meanings.get(function.name) == meaning and function in self.functions:
            return
        self.functions.append(function)
        self.meanings[function.name] = meaning


def flat_name(namespace: object, name: str) -> str:
    """The name of a function of a namespace, as the model is shown it."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith(("_", ".")) else f"{namespace}__{name}"


def _read(tool: Mapping[str, Any], where: str, passed: Passed) -> tuple[Function, Meaning, EchoedTool] | None:
    """A tool that is a function, or can be made one."""
    kind, inner = tool.get("type"), {name: value for name, value in tool.items() if name != "type"}
    if kind == "function":
        made = function_of(inner, where, passed, schema="parameters", harmless=("output_schema", "async"))
        parameters = None if made.parameters is None else dict(made.parameters)
        return made, Meaning(made.name), FunctionTool(made.name, parameters, made.strict, made.description)
    if kind == "custom":
        form = inner.pop("format", None)
        made = custom_tool({n: v for n, v in inner.items() if n != "async"}, form, where, passed)
        return made, Meaning(made.name, kind="custom"), CustomTool(made.name, made.description, form)
    if kind == "tool_search" and tool.get("execution") == "client":
        schema, about = tool.get("parameters"), tool.get("description")
        if isinstance(schema, dict | None) and isinstance(about, str | None):
            passed.over(inner, ("execution", "parameters", "description"), where, "tools", SEEN_IN_TOOLS)
            made = Function("tool_search", about, schema)
            return made, Meaning("tool_search", kind="search"), ToolSearchTool("client", about, schema)
    return None


def echoed(offered: Offered, shown_names: Sequence[str]) -> tuple[EchoedTool, ...]:
    """The tools as the request gave them, those of which the model is shown something."""
    return tuple(echo for echo, names in offered.echoes if not names.isdisjoint(shown_names))
