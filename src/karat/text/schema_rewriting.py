"""JSON Schemas rewritten for the compiler of grammars: what it has no keyword for, in keywords that it has.

An answer of the rewritten schema is one of the given schema. The other way round some are left out: an array of unique
items may have them in one order only, and integers beyond 2^53 may end some short of their bound.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations, permutations
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from karat.errors import RequestError
from karat.request import shown
from karat.text.schema_closing import OTHERS, Schema, referred, with_inner

FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri unknown".split())
MAX_WHOLE = 2**53  # the compiler reads numbers as float64, which has every integer up to this
LEAST, MOST = -(2**63) + 1024, 2**63 - 1024  # the least and the largest number that the compiler takes as a bound
_FAR = 10**17  # a bound beyond which needs one on the other side, too, for the compiler
MAX_ARRANGED, MAX_CHOSEN = 4, 7  # unique items in any order, and in one order: 65 and 128 arrays
NO_NAME: Mapping[str, Any] = {"enum": []}
_SAY_NOTHING_OF_NAMES = ("type", "title", "description", "format")
_CASE = ("if", "then", "else")
_TYPES = ("null", "boolean", "number", "string", "array", "object")


def rewritten(schema: Mapping[str, Any]) -> Schema:
    """RequestError, with its name and place, for a keyword that no grammar can keep to."""
    try:
        made = _SchemaRewriting(schema).of(schema, "")
    except _UnkeptError as error:
        where = f"{error.keyword} of {error.place}" if error.place else error.keyword
        raise RequestError(
            f"structured_outputs: json: {where}: no grammar can keep to it here: {error.why}",
            param="structured_outputs",
        ) from None
    assert isinstance(made, dict)
    return made


class _UnkeptError(Exception):
    """A keyword that no grammar can keep to, and the place of its schema in the document."""

    def __init__(self, keyword: str, why: str) -> None:
        super().__init__(keyword, why)
        self.keyword, self.why = keyword, why
        self.place: str | None = None


class _SchemaRewriting:
    """Of one document, `root`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def of(self, given: object, place: str) -> object:
        """What takes the place of a schema. Raises _UnkeptError."""
        try:
            return self._of(given, place)
        except _UnkeptError as error:
            if error.place is None:
                error.place = place
            raise

    def _of(self, given: object, place: str) -> object:
        if not isinstance(given, Mapping):
            return given
        cases, rest = _cases(given)
        schema = with_inner(rest, lambda where, value: self.of(value, place + where))
        if isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
            del schema["format"]  # an annotation
        _round_bounds(schema)
        self._negate(schema)
        self._depend(schema)
        for case in cases:
            if "if" in case and not case.keys().isdisjoint(("then", "else")):
                _add(
                    schema,
                    self._branches(
                        schema, case["if"], *(self.of(case.get(n, {}), f"{place}/{n}") for n in ("then", "else"))
                    ),
                )
        if schema.get("unevaluatedProperties") is not None and not any(name in schema for name in OTHERS):
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
        self._name(schema)
        self._empty(schema)
        return self._unique(schema)

    def _resolved(self, schema: object) -> Mapping[str, Any]:
        """A schema, or what it refers to; nothing where that is not in the document, or true or false."""
        found = self._target(schema)
        return found if isinstance(found, Mapping) else {}

    def _target(self, schema: object) -> object:
        """A schema, or what it refers to; None where that is not in the document."""
        for _ in range(8):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str) or len(schema) > 1:
                break
            schema = referred(self._root, schema["$ref"])
        return schema

    def _values(self, schema: object) -> list[Any] | None:
        """The values of a schema that lists them."""
        found = self._resolved(schema)
        if "const" in found:
            return [found["const"]]
        if isinstance(found.get("enum"), list):
            types = found.get("type")
            listed = [types] if isinstance(types, str) else types
            return [value for value in found["enum"] if listed is None or _type_of(value) in listed]
        of_types: dict[object, list[Any]] = {"boolean": [True, False], "null": [None]}
        return of_types.get(found["type"]) if isinstance(found.get("type"), str) else None

    # -- not, dependentRequired, if

    def _negate(self, schema: Schema) -> None:
        if "not" not in schema:
            return
        wrong = schema.pop("not")
        if wrong is False:
            return
        found = self._resolved(wrong)
        keys = found.keys() - {"title", "description"}
        values, own = self._values(found), self._values(schema)
        types = [found["type"]] if isinstance(found.get("type"), str) else found.get("type")
        required = found.get("required")
        if keys <= {"const", "enum", "type"} and values is not None and own is not None:
            schema.pop("const", None)
            schema["enum"] = [value for value in own if not any(_equal(value, each) for each in values)]
            if not schema["enum"]:
                raise _UnkeptError("not", "no value of enum is left; take it out")
        elif keys == {"type"} and isinstance(types, list) and not {"integer", "number"} & set(types):
            had = schema.get("type", list(_TYPES))
            schema["type"] = [name for name in ([had] if isinstance(had, str) else had) if name not in types]
            if not schema["type"]:
                raise _UnkeptError("not", "no type is left; take it out")
        elif keys <= {"required", "type"} and isinstance(required, list) and required and _is_object(schema):
            _add(schema, [{"properties": {name: False}} for name in required])
        else:
            raise _UnkeptError(
                "not", "of values of an enum, of types, or of required it can; say what there may be instead"
            )

    def _depend(self, schema: Schema) -> None:
        depending = schema.get("dependentRequired")
        if not isinstance(depending, Mapping):
            return
        del schema["dependentRequired"]
        if not _is_object(schema):
            raise _UnkeptError("dependentRequired", "the type is not object alone; add it")
        for name, others in depending.items():
            if isinstance(others, list) and others:
                _add(schema, [{"properties": {name: False}}, {"required": [name, *others]}])

    def _branches(self, schema: Schema, condition: Any, then: Any, other: Any) -> list[Schema]:
        if isinstance(condition, bool):
            return [then if condition else other]
        asked = condition.get("properties") if isinstance(condition, Mapping) else None
        required = condition.get("required", []) if isinstance(condition, Mapping) else []
        if (
            not isinstance(asked, Mapping)
            or len(asked) != 1
            or condition.keys() - {"properties", "required", "type"}
            or not set(required) <= set(asked)
            or not _is_object(schema)
        ):
            raise _UnkeptError("if", "of one property with an enum or a const it can; take anyOf instead")
        (name,) = asked
        had, wanted = self._values(schema.get("properties", {}).get(name)), self._values(asked[name])
        if had is None or wanted is None:
            raise _UnkeptError("if", f"the property {shown(name)} has no enum; give it one, or take anyOf instead")
        yes = [value for value in had if any(_equal(value, each) for each in wanted)]
        no = [value for value in had if value not in yes]
        branches = []
        if yes:
            need = {"required": [name]} if required else {}
            branches.append({"allOf": [{"properties": {name: {"enum": yes}}, **need}, then]})
        if no:
            branches.append({"allOf": [{"properties": {name: {"enum": no}}, "required": [name]}, other]})
        if name not in schema.get("required", []) and (required or not yes):
            branches.append({"allOf": [{"properties": {name: False}}, other if required else then]})
        return branches

    # -- names of properties

    def _name(self, schema: Schema) -> None:
        if "propertyNames" not in schema:
            return
        wanted = self._wanted_of_names(schema.pop("propertyNames"))
        keys = wanted.keys()
        value, own = schema.get("additionalProperties", True), schema.get("properties", {})
        if keys and keys <= {"enum", "const"} and (wanted == NO_NAME or "patternProperties" not in schema):
            names = wanted.get("enum", [wanted.get("const")])
            given = [name for name in names if isinstance(name, str) and wanted.get("const", name) == name]
            schema["properties"] = {n: each for n, each in own.items() if n in given}
            schema["properties"] |= {name: value for name in given if name not in own and value is not False}
            schema["additionalProperties"] = False
            schema.pop("patternProperties", None)
        elif keys and keys <= {"pattern", "minLength", "maxLength"} and "patternProperties" not in schema:
            expression = wanted.get("pattern")
            if expression is None or keys > {"pattern"}:
                least, most = wanted.get("minLength", 0), wanted.get("maxLength", "")
                if expression is not None or not isinstance(least, int) or not isinstance(most, int | str):
                    raise _UnkeptError("propertyNames", "of an enum, a pattern or lengths it can; give one of them")
                expression = f"^(?s:.{{{least},{most}}})$"
            if own and value not in (True, {}):
                raise _UnkeptError(
                    "propertyNames", "it stands beside properties and additionalProperties; give one of them"
                )
            schema["properties"] = {n: each for n, each in own.items() if _fits(expression, n)}
            schema |= {"patternProperties": {expression: value}, "additionalProperties": False}
        elif keys:
            raise _UnkeptError("propertyNames", "of an enum, a pattern or lengths it can; give one of them")

    def _wanted_of_names(self, given: object) -> Mapping[str, Any]:
        """The keywords that a name, which is a text, is to keep to; those of NO_NAME where it cannot."""
        wanted = self._target(given)
        if isinstance(wanted, bool):
            return {} if wanted else NO_NAME
        types = wanted.get("type", "string") if isinstance(wanted, Mapping) else None
        types = [types] if isinstance(types, str) else types
        if not isinstance(wanted, Mapping) or not isinstance(types, list):
            raise _UnkeptError("propertyNames", "it is no schema of this document; give it one")
        if not all(isinstance(name, str) and name in (*_TYPES, "integer") for name in types):
            raise _UnkeptError("propertyNames", f"its type is {shown(wanted['type'])}; take string")
        if "string" not in types:
            return NO_NAME
        return {name: value for name, value in wanted.items() if name not in _SAY_NOTHING_OF_NAMES}

    def _empty(self, schema: Schema) -> None:
        """A pattern whose names are all among the others' would be asked for a name that there is not."""
        patterns, own = schema.get("patternProperties"), schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(patterns, Mapping) or not isinstance(own, Mapping) or not isinstance(required, list):
            return
        names = list(dict.fromkeys([*own, *(name for name in required if isinstance(name, str))]))
        if not names or schema.get("additionalProperties", True) is not False:
            return
        left, found = {}, dict(own)
        for expression, value in patterns.items():
            if _has_others(expression, names):
                left[expression] = value
                continue
            for name in names:
                if _fits(expression, name):
                    found[name] = {"allOf": [found[name], value]} if name in found else value
        schema["properties"] = found
        schema["patternProperties"] = left
        if not left:
            del schema["patternProperties"]

    # -- items

    def _unique(self, schema: Schema) -> Schema:
        if "uniqueItems" not in schema:
            return schema
        wanted = schema.pop("uniqueItems")
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if wanted is not True or most <= 1:
            return schema
        values = self._values(schema.get("items"))
        if values is None or len(values) > MAX_CHOSEN or schema.keys() & {"prefixItems", "contains", *OTHERS}:
            raise _UnkeptError(
                "uniqueItems",
                f"of items from an enum of at most {MAX_CHOSEN} values it can; take it out (pydantic: list "
                "instead of set), and drop what comes twice",
            )
        values = [each for place, each in enumerate(values) if not any(_equal(each, other) for other in values[:place])]
        arranged = permutations if len(values) <= MAX_ARRANGED else combinations
        sizes = range(least, min(most, len(values)) + 1)
        arrays = [
            {"type": "array", "prefixItems": [{"const": each} for each in items], "items": False, "minItems": size}
            for size in sizes
            for items in arranged(values, size)
        ]
        if not arrays:
            raise _UnkeptError("uniqueItems", f"minItems={least}, and items has {len(values)} values; lower it")
        return {"anyOf": arrays, **{name: schema[name] for name in ("$defs", "definitions") if name in schema}}


def _cases(schema: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], Schema]:
    """if, then and else, of a schema and of parts of its allOf that have nothing else; and the schema without them."""
    rest = {name: value for name, value in schema.items() if name not in _CASE}
    parts = schema.get("allOf")
    if not isinstance(parts, list):
        return [schema], rest
    found = [part for part in parts if isinstance(part, Mapping) and part and part.keys() <= {*_CASE}]
    rest["allOf"] = [part for part in parts if part not in found]
    if not rest["allOf"]:
        del rest["allOf"]
    return [schema, *found], rest


def _round_bounds(schema: Schema) -> None:
    """Bounds that the compiler would round outwards, or does not take, come to the next inside that it has."""
    given = dict(schema)
    for name, outward in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)):
        value = schema.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) <= MAX_WHOLE:
            continue
        if value * outward <= 1 - 2**63:
            raise RequestError(
                f"structured_outputs: json: {name}={shown(value)}: expected a number from -2^63 to 2^63; write it as a "
                "text",
                param="structured_outputs",
            )
        if outward < 0:
            value = max(value, LEAST)
        elif schema.get("type") != "integer":
            value = min(value, MOST)
        if abs(value) < 2**63 - 1 and int(float(value)) != value:
            near = float(value)
            value = int(near if (int(near) - value) * outward <= 0 else math.nextafter(near, -math.inf * outward))
        schema[name] = value
    low: Any = schema.get("minimum")
    high: Any = schema.get("maximum")
    if _is_number(low) and _is_number(high) and low > high and given["minimum"] <= given["maximum"]:
        raise RequestError(
            f"structured_outputs: json: minimum={given['minimum']} and maximum={given['maximum']}: the compiler has no "
            "number between them, as beyond 2^53 it has float64's alone; set them further apart, or write it as a text",
            param="structured_outputs",
        )
    for own, others, added in (
        (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"), MOST),
        (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum"), LEAST),
    ):
        bounds = [schema[name] for name in own if _is_number(schema.get(name))]
        is_far = any(bound < -_FAR if added < 0 else bound > _FAR for bound in bounds)
        if is_far and not any(_is_number(schema.get(name)) for name in others):
            schema[others[0]] = added


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits(expression: str, name: str) -> bool:
    """Whether the name of a property fits a regular expression of patternProperties."""
    return _taken(expression, (), json.dumps(name, ensure_ascii=False) + ":")


def _has_others(expression: str, names: Sequence[str]) -> bool:
    """Whether a name fits the expression that is none of `names`. True of an expression that is none."""
    return _taken(expression, names, '"')


def _taken(expression: str, names: Sequence[str], text: str) -> bool:
    """Whether an object whose names fit the expression, and are none of `names`, may begin with `text`."""
    schema = {"type": "object", "properties": dict.fromkeys(names, False), "patternProperties": {expression: {}}}
    source = json.dumps({**schema, "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}})
    matcher = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_lark(f"start: %json {source}"), log_level=0)
    wanted = list(("{" + text).encode())
    return matcher.is_error() or matcher.try_consume_tokens(wanted) == len(wanted)


@cache
def byte_tokenizer() -> LLTokenizer:
    """A tokenizer of bytes."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=[256])


class _Bytes:
    bos_token_id, eos_token_id, special_token_ids = None, 256, (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _add(schema: Schema, choices: list[Schema]) -> None:
    """One of the choices holds too."""
    schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": choices} if len(choices) != 1 else choices[0]]


def _is_object(schema: Schema) -> bool:
    return schema.get("type") in ("object", ["object"])


def _type_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _equal(one: object, other: object) -> bool:
    """As JSON has it: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
