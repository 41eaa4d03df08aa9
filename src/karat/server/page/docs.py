"""The page at /docs: routes, fields and answers, made from the OpenAPI document and the table of fields. No script."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from karat.server.fields import Field, fields_of
from karat.server.openapi import document

_KINDS = {
    "honoured": "What they do",
    "without effect": "Taken, without effect on the answer (named in a header)",
    "refused": "Refused, with 400",
}


def html() -> str:
    """The page, whole. Every text is escaped."""
    made = document()
    routes = [(path, method, operation) for path, item in made["paths"].items() for method, operation in item.items()]
    contents = "".join(f'<li><a href="#{_id(path)}">{escape(path)}</a></li>' for path, *_ in routes)
    parts = [_route(path, method, operation, made) for path, method, operation in routes]
    structs = [_struct(name, schema) for name, schema in sorted(made["components"]["schemas"].items())]
    title = f"{made['info']['title']} {made['info']['version']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: the API</title>"
        '<link rel="stylesheet" href="/page/base.css"><link rel="stylesheet" href="/page/docs.css"></head>'
        f"<body><main><h1>{escape(title)}</h1>"
        '<p>Made from <a href="/openapi.json">openapi.json</a> and the table by which requests are read. A field that '
        "is not here is refused with 400, by its name. A key goes into <code>Authorization: Bearer</code> or "
        "<code>x-api-key</code>.</p>"
        f"<nav><ul>{contents}</ul></nav>{''.join(parts)}"
        f"<h2>Answers</h2>{''.join(structs)}</main></body></html>"
    )


def _route(path: str, method: str, operation: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    head = (
        f'<section id="{_id(path)}"><h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>'
    )
    tables = "".join(_tables(path)) if "requestBody" in operation else ""
    answers = ", ".join(
        _shown(content["schema"]) for content in operation["responses"]["200"].get("content", {}).values()
    )
    errors = ", ".join(
        f"{status} {escape(answer['description'])}"
        for status, answer in operation["responses"].items()
        if status != "200"
    )
    return f"{head}{tables}<p>Answers {answers or 'text'}.</p>{f'<p>Errors: {errors}.</p>' if errors else ''}</section>"


def _tables(path: str) -> Iterator[str]:
    properties = _properties(path)
    for kind, words in _KINDS.items():
        rows = [field for field in fields_of(path).values() if field.kind == kind]
        if rows:
            lines = "".join(_row(field, properties.get(field.name)) for field in rows)
            yield f"<h3>{escape(words)}</h3><table><tbody>{lines}</tbody></table>"


def _properties(path: str) -> Mapping[str, Any]:
    operation = document()["paths"][path]["post"]
    properties: Mapping[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
    return properties


def _row(field: Field, schema: Mapping[str, Any] | None) -> str:
    kind = "" if schema is None else _shown(schema)
    needed = " <em>required</em>" if field.required else ""
    return f"<tr><th><code>{escape(field.name)}</code>{needed}</th><td>{kind}</td><td>{escape(field.text)}</td></tr>"


def _struct(name: str, schema: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th><code>{escape(field)}</code></th><td>{_shown(kind)}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    body = f"<table><tbody>{rows}</tbody></table>" if rows else f"<p>{_shown(schema)}</p>"
    return f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3>{body}</section>'


def _shown(schema: Mapping[str, Any]) -> str:
    """A JSON Schema in a few words, escaped; a struct as a link."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f'<a href="#schema-{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_shown, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"<code>{escape(repr(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any value")
    words = escape(", ".join(kind) if isinstance(kind, list) else str(kind))
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        words += f" of {_shown(schema['items'])}"
    return words + "".join(f", {escape(name)} {escape(str(schema[name]))}" for name in _LIMITS if name in schema)


_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems")


def _id(path: str) -> str:
    return escape(path.strip("/").replace("/", "-").replace("{", "").replace("}", ""))
