"""Grammars of arguments as name:value whose texts stand between marks (`karat.text.tools.gemma`)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from karat.errors import RequestError
from karat.request import shown
from karat.text.tools.gemma import written_value
from karat.text.tools.parameters import searched

Schema = Mapping[str, Any]
_SAYING_NOTHING = frozenset("title description $schema $id default examples strict $defs definitions format".split())
_OF_TYPE = {
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_NAME = re.compile(r'[^\s,:{}\[\]<"](?:[^\n,:{}\[\]<"]{0,254}[^\s,:{}\[\]<"])?')
_MAX_ITEMS, _MAX_DEPTH = 1000, 32


def marked(
    rule: str,
    tool: str,
    schema: Schema | None,
    quote: str,
    terms: Callable[[str], str],
    checked: Callable[[Schema], Schema],
) -> Iterator[tuple[str, str]]:
    """The rules for the arguments of a tool, without braces: its properties in order, those required always.

    Without a schema they are any. `quote` stands around each text, which is any without it. RequestError for a schema
    that cannot be kept to.
    """
    rules = _Rules(rule, tool, {} if schema is None else schema, quote, terms, checked)
    body = rules.members({} if schema is None else schema, 0)
    yield from rules.found.items()
    yield rule, body


class _Rules:
    """The rules of the values of a schema, by name."""

    def __init__(
        self,
        rule: str,
        tool: str,
        root: Schema,
        quote: str,
        terms: Callable[[str], str],
        checked: Callable[[Schema], Schema],
    ) -> None:
        self.found: dict[str, str] = {}
        self._rule, self._tool, self._root, self._quote = rule, tool, root, quote
        self._terms, self._checked = terms, checked
        self._of_reference: dict[str, str] = {}
        self._any: str | None = None
        self._num_names = 0

    def members(self, schema: Schema, depth: int) -> str:
        """What stands between the braces of an object."""
        properties, required = schema.get("properties", {}), schema.get("required", ())
        more = schema.get("additionalProperties", not properties)
        if not isinstance(properties, Mapping) or not all(name in properties for name in self._list(required)):
            raise self._refused("a required name that is no property")
        base = self._name()
        extra = "" if more is False else f"{self._free_name()} {self._value(more, depth + 1)}"
        self.found[f"{base}_{len(properties)}_first"] = f'({extra} ("," {extra})*)?' if extra else '""'
        self.found[f"{base}_{len(properties)}_later"] = f'("," {extra})*' if extra else '""'
        for number, (name, inner) in enumerate(properties.items()):
            if not _NAME.fullmatch(name):
                raise self._refused(f"the name {shown(name)}")
            self.found[f"{base}_{number}"] = f"{_json(name + ':')} {self._value(inner, depth + 1)}"
            for place, comma in (("first", ""), ("later", '","')):
                given = f"{comma} {base}_{number} {base}_{number + 1}_later"
                skipped = "" if name in required else f" | {base}_{number + 1}_{place}"
                self.found[f"{base}_{number}_{place}"] = given + skipped
        return f"{base}_0_first"

    def _value(self, schema: Any, depth: int) -> str:
        """The name of the rule for a value."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            raise self._refused(shown(schema))
        if isinstance(reference := schema.get("$ref"), str):
            self._only(schema, {"$ref"})
            return self._referred(reference, depth)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                self._only(schema, {word, "type"})
                return self._new(" | ".join(self._value(each, depth + 1) for each in self._list(schema[word])))
        if "const" in schema or "enum" in schema:
            self._only(schema, {"const", "enum", "type"})
            values = [schema["const"]] if "const" in schema else self._list(schema["enum"])
            return self._new(" | ".join(map(self._constant, values)))
        stated = schema.get("type", [kind for kind, words in _OF_TYPE.items() if schema.keys() & words])
        kinds = [stated] if isinstance(stated, str) else self._list(stated)
        if not kinds:
            self._only(schema, set())
            return self._anything()
        if wrong := [kind for kind in kinds if kind not in _OF_TYPE]:
            raise self._refused(f"type {shown(wrong[0])}")
        self._only(schema, {"type"}.union(*(_OF_TYPE[kind] for kind in kinds)))
        return self._new(" | ".join(self._of(kind, schema, depth) for kind in kinds))

    def _of(self, kind: str, schema: Schema, depth: int) -> str:
        match kind:
            case "string":
                return self._text(schema)
            case "array":
                return self._items(schema, depth)
            case "object":
                return self._new(f'"{{" {self.members(schema, depth)} "}}"')
            case _:
                own = {name: value for name, value in schema.items() if name in _OF_TYPE[kind]}
                return self._new(f"%json {_json(self._checked({'type': kind, **own}))}")

    def _text(self, schema: Schema) -> str:
        """A text between two quotes. Where these are no special token, the second one ends it lazily."""
        least, most, pattern = schema.get("minLength", 0), schema.get("maxLength", ""), schema.get("pattern")
        expression = f"(?s:.{{{least},{most}}})" if least or most != "" else "(?s:.*)"
        found = f"/{expression}/"
        if isinstance(pattern, str):
            found += f" & {searched(f'{self._tool}', pattern)}"
        quote = self._terms(self._quote)
        name = self._name()
        self.found[name.upper()] = found
        if quote.strip().startswith("<["):
            self.found[name] = f"{quote} {name.upper()} {quote}"
        else:
            self.found[f"{name}_end[lazy]"] = f"{name.upper()} {quote}"
            self.found[name] = f"{quote} {name}_end"
        return name

    def _items(self, schema: Schema, depth: int) -> str:
        item = self._value(schema.get("items", True), depth + 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if max(least, most or 0) > _MAX_ITEMS:
            raise self._refused(f"lists of {max(least, most or 0)}")
        if most == 0:
            return self._new('"[" "]"')
        more = f'("," {item})'
        rest = f"{more}*" if most is None else f"{more}~{max(least, 1) - 1}..{most - 1}"
        if most is None and least > 1:
            rest = f"{more}~{least - 1} {rest}"
        body = f"{item} {rest}"
        return self._new(f'"[" {body} "]"' if least else f'"[" ({body})? "]"')

    def _constant(self, value: Any) -> str:
        if self._quote in json.dumps(value, ensure_ascii=False).replace('\\"', '"'):
            raise self._refused(f"the value {shown(value)}")
        return self._terms(written_value(self._quote, value))

    def _referred(self, reference: str, depth: int) -> str:
        if reference not in self._of_reference:
            found: Any = self._root
            for step in reference.removeprefix("#").split("/")[1:]:
                found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
            if not reference.startswith("#") or found is None:
                raise self._refused(f"the reference {shown(reference)}")
            name = self._of_reference[reference] = self._name()
            self.found[name] = self._value(found, depth + 1)
        return self._of_reference[reference]

    def _anything(self) -> str:
        if self._any is None:
            self._any = name = self._name()
            number, members = self._new('%json {"type": "number"}'), f"{self._free_name()} {name}"
            self.found[name] = (
                f'{self._text({})} | {number} | "true" | "false" | "null" | "[" ({name} ("," {name})*)? "]" | '
                f'"{{" ({members} ("," {members})*)? "}}"'
            )
        return self._any

    def _free_name(self) -> str:
        """A name that no schema says, and the colon after it."""
        name = f"{self._rule}_NAME".upper()
        self.found[name] = r"/[A-Za-z_][A-Za-z0-9_.-]{0,63}:/"
        return name

    def _list(self, value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise self._refused(shown(value))
        return list(value)

    def _only(self, schema: Schema, words: set[str]) -> None:
        if unknown := schema.keys() - words - _SAYING_NOTHING:
            raise self._refused(f"{min(unknown)} of the schema")

    def _new(self, expression: str) -> str:
        name = self._name()
        self.found[name] = expression
        return name

    def _name(self) -> str:
        self._num_names += 1
        return f"{self._rule}_v{self._num_names}"

    def _refused(self, what: str) -> RequestError:
        return RequestError(
            f"the parameters of the tool {self._tool}: this model writes calls as name:value, which cannot keep to "
            f"{what}; leave it out, or take tool_choice auto"
        )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
