"""Grammars of arguments that stand parameter by parameter, each as bare text (`karat.text.tools.xml`)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from karat.errors import RequestError
from karat.request import shown
from karat.text.tools.bare import kinds

Schema = Mapping[str, Any]
_TEXT = r"/(?s:.*)/"
_OF_TEXTS = frozenset({"pattern", "minLength", "maxLength"})


def parameters(
    rule: str, tool: str, schema: Schema | None, around: tuple[str, str, str], checked: Callable[[Schema], Schema]
) -> Iterator[tuple[str, str]]:
    """The rules for the arguments of a tool: its properties in the schema's order, required ones always; any if None.

    `around` stands around each, with its name between the first two. A text is any that has not the last of them. A
    format is an annotation here. RequestError for a property that cannot be kept to.
    """
    before, between, after = around
    ends_name = rf"<>\n{re.escape(between[0])}"  # a name that went on there would take what follows it
    if schema is None:
        yield f"{rule.upper()}_VALUE", _TEXT
        yield f"{rule}_value[lazy]", f"{rule.upper()}_VALUE {_json(after)}"
        yield f"{rule.upper()}_NAME", f"/[^{ends_name}]{{1,64}}/"
        yield rule, f"({_json(before)} {rule.upper()}_NAME {_json(between)} {rule}_value)*"
        return
    required = frozenset(schema.get("required", ()))
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    parts = []
    for number, (name, inner) in enumerate(schema.get("properties", {}).items()):
        if not name or re.search(f"[{ends_name}]", name):
            raise RequestError(f"the parameters of the tool {tool}: {shown(name)} is no name for a tag; change it")
        part, found = f"{rule}_{number}", inner if isinstance(inner, Mapping) else {}
        value: Iterator[tuple[str, str]]
        match kinds(found, schema):
            case types if types == {"string"}:
                value = _text(part, f"{tool}: {name}", _resolved(found, schema), after)
            case types if types == {"string", "null"} and not _says(found, schema):
                value = _text(part, f"{tool}: {name}", {}, after)
            case _:
                value = iter([(part, f"%json {_json(checked({**found, **shared}))} {_json(after)}")])
        yield from value
        written = f"{_json(before + name + between)} {part}"
        parts.append(written if name in required else f"({written})?")
    yield rule, " ".join(parts) or '""'


def _text(rule: str, where: str, schema: Schema, after: str) -> Iterator[tuple[str, str]]:
    """The rules for a bare text and what follows it."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        if not texts or schema.keys() & _OF_TEXTS or any(after.strip() in text for text in texts):
            raise RequestError(f"the parameters of the tool {where}: enum of texts that cannot be written; change it")
        yield rule, f"({' | '.join(map(_json, texts))}) {_json(after)}"
        return
    if wrong := schema.keys() & {"anyOf", "oneOf", "allOf", "not"}:
        raise RequestError(f"the parameters of the tool {where}: {min(wrong)} of texts cannot be kept to; change it")
    least, most, pattern = schema.get("minLength", 0), schema.get("maxLength", ""), schema.get("pattern")
    expression = "(?s:.*)"
    if least or most != "":
        expression = f"(?s:.{{{least},{most}}})"
    yield (
        f"{rule.upper()}_VALUE",
        f"/{expression}/" + (f" & {searched(where, pattern)}" if isinstance(pattern, str) else ""),
    )
    yield f"{rule}[lazy]", f"{rule.upper()}_VALUE {_json(after)}"


def searched(where: str, pattern: str) -> str:
    """An expression for the texts in which a pattern is found."""
    starts, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[starts : len(pattern) - ends]
    if re.search(r"(?<!\\)[$]|(?<![\\\[])\^", inner) or ((starts or ends) and "|" in inner):
        raise RequestError(f"the parameters of the tool {where}: pattern {shown(pattern)} cannot be kept to; change it")
    inner = re.sub(r"(?<!\\)/", r"\\/", inner)
    return f"/{'' if starts else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}/"


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference alone means."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        found: Any = root
        for step in reference.removeprefix("#").split("/")[1:]:
            found = found.get(step) if isinstance(found, Mapping) else None
        schema = found if isinstance(found, Mapping) else {}
    return schema


def _says(schema: Schema, root: Schema) -> bool:
    """Whether a schema of texts and null says more of them than their types."""
    found = _resolved(schema, root)
    inner = [each for name in ("anyOf", "oneOf", "allOf") for each in found.get(name, ()) if isinstance(each, Mapping)]
    return bool(found.keys() & (_OF_TEXTS | {"enum", "const"})) or any(_says(each, root) for each in inner)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
