"""Prints docs/api.md, the reference of the Python API, made from signatures and docstrings of the source.

Use: python -m tools.api_page > docs/api.md
"""

import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "karat"
# File and its public classes and types, in the order of the page.
NAMES = {
    "engine/llm.py": ["LLM"],
    "engine/async_llm.py": ["AsyncLLM"],
    "engine/requests/request_updates.py": ["RequestUpdate", "PromptProgress"],
    "engine/stats.py": ["EngineStats"],
    "text/chat_prompt.py": ["ChatPrompt"],
    "text/tools/events.py": ["ParsedAnswer", "ToolCall"],
    "request.py": [
        "SamplingParams",
        "StructuredOutputs",
    ],
    "outputs.py": [
        "RequestOutput",
        "CompletionOutput",
        "Logprob",
        "TokenLogprobs",
        "StreamChunk",
    ],
    "explanation.py": ["Explanation", "Alternative", "Kept"],
}
HEAD = """\
# Python API

This page is made by `python -m tools.api_page` from the docstrings; a test compares them. Each class
and type with a section of its own is in `karat`; the errors are in `karat.errors`. [from-vllm.md](from-vllm.md) says
what differs from vLLM. `karat.NUMERIC_CONTRACT` is the version of [determinism.md](determinism.md) that the native
executor computes by; `karat.receipts` is described in [receipts.md](receipts.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_names(), *_errors()])


def _names() -> Iterator[str]:
    for name, wanted in NAMES.items():
        body = _module(name).body
        classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        types = {
            ast.unparse(node.targets[0]): pair for pair in pairwise(body) if isinstance(node := pair[0], ast.Assign)
        }
        for title in wanted:
            if title in classes:
                yield from _class(classes[title])
            else:
                definition, meaning = types[title]
                yield f"## {title}\n"
                yield _code([ast.unparse(definition)])
                yield f"{ast.literal_eval(ast.unparse(meaning))}\n"


def _class(node: ast.ClassDef) -> Iterator[str]:
    yield f"## {node.name}\n"
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    if constructor := methods.get("__init__"):
        yield _signature(constructor, node.name)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    if fields:
        yield _code([ast.unparse(item) for item in fields])
    yield f"{_doc(node)}\n"
    for name, method in methods.items():
        if not name.startswith("_"):
            is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in method.decorator_list)
            yield f"### {node.name}.{name}\n"
            yield _code([f"{name}: {_type(method.returns)}"]) if is_property else _signature(method, name)
            yield f"{_doc(method)}\n"


def _signature(method: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """One line, or one argument a line where that is too long. What an iterator is made of is not awaited."""
    is_awaited = isinstance(method, ast.AsyncFunctionDef) and "Generator" not in ast.unparse(method.returns or method)
    name = f"await {name}" if is_awaited else name
    arguments = method.args
    positional = arguments.args[1:]  # all but self
    num_required = len(positional) - len(arguments.defaults)
    defaults = [None] * num_required + list(arguments.defaults)
    parts = [_argument(*pair) for pair in zip(positional, defaults, strict=True)]
    if arguments.kwonlyargs:
        parts.append("*")
        parts += [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    end = ")" if method.name == "__init__" else f") -> {_type(method.returns)}"
    line = f"{name}({', '.join(parts)}{end}"
    return _code([line]) if len(line) <= 100 else _code([f"{name}(", *(f"    {part}," for part in parts), end])


def _type(annotation: ast.expr | None) -> str:
    """As a reader wants it: a type that is imported for type checkers only stands in quotes in the source."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return "None" if annotation is None else ast.unparse(annotation)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_type(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {ast.unparse(default)}" if default else "")


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield "All are in `karat.errors`, and `KaratError`, in `karat` too, is the base of all.\n"
    yield "| class | of | exit code | means |\n|---|---|---|---|"
    codes: dict[str, str] = {}
    for node in _module("errors.py").body:
        if isinstance(node, ast.ClassDef):
            base = ast.unparse(node.bases[0])
            own = [ast.unparse(item.value) for item in node.body if isinstance(item, ast.Assign)]
            codes[node.name] = own[0] if own else codes[base]
            yield f"| `{node.name}` | `{base}` | {codes[node.name]} | {' '.join(_doc(node).split())} |"
    yield ""


def _module(name: str) -> ast.Module:
    return ast.parse((SOURCE / name).read_text(encoding="utf-8"))


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring, with signs of HTML and of emphasis escaped."""
    return (ast.get_docstring(node) or "").replace("<|", "&lt;|").replace("*", "\\*")


def _code(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```\n"])


if __name__ == "__main__":
    sys.stdout.write(page())
