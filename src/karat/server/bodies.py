"""Bodies of requests: read as JSON and checked against the table of fields, before any work."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

from karat.request import shown
from karat.server.errors import ApiError, invalid
from karat.server.fields import Field

# Of a body. The decoder keeps the interpreter's lock, so more of them stop every other request for half a second.
MAX_PARTS, MAX_VALUES = 1 << 18, 1 << 20
_COUNTED = {"objects, arrays and keys": (b"{[:", MAX_PARTS), "values": (b",", MAX_VALUES)}
_AT = re.compile(r" - at `(?:key in )?\$?([^`]*)`$")
_WORDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "null": "null"}
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b")


@dataclass(frozen=True, slots=True)
class Body:
    """The honoured fields of a request by name, and the names of its fields without effect.

    `spelled`: the names by which the honoured ones were sent.
    """

    values: Mapping[str, Any]
    without_effect: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)

    def sent(self, name: str) -> str:
        """The name by which a field was sent; its own if it was not."""
        return self.spelled.get(name, name)


def read_json(content: bytes) -> dict[str, Any]:
    """The JSON object of a body. 400 for anything else: no JSON, no UTF-8, too deep, of too many values."""
    _check_counts(content)
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(None, f"the body is no JSON: {str(error)[:200]}; send a JSON object", "invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(None, f"the body is a JSON {_kind(value)}; expected an object", "invalid_json")
    return value


def _check_counts(content: bytes) -> None:
    """400 for a body of too many values, before it is decoded. What texts hold counts for nothing."""
    if all(sum(content.count(mark) for mark in marks) <= most for marks, most in _COUNTED.values()):
        return
    bare = content.replace(b"\\\\", b"").replace(b'\\"', b"")  # the quotation marks that are left begin and end texts
    letters = np.frombuffer(bare, np.uint8)
    is_outside = ~np.logical_xor.accumulate(letters == ord('"'))
    for what, (marks, most) in _COUNTED.items():
        num = sum(int(np.count_nonzero((letters == mark) & is_outside)) for mark in marks)
        if num > most:
            raise invalid(None, f"the body has {num} {what}; expected at most {most}; send less", "too_many_values")


def read_body(content: bytes, fields: Mapping[str, Field]) -> Body:
    """The fields of a request. 400 with the name of the first field that is unknown, refused or wrong."""
    return judge(read_json(content), fields)


def judge(given: Mapping[str, Any], fields: Mapping[str, Field], within: str = "") -> Body:
    """As `read_body`, for a JSON object. `within` is a prefix of field names, as in `stream_options.`

    A value of null is no field at all, known or not.
    """
    values: dict[str, Any] = {}
    harmless: list[str] = []
    spelled: dict[str, str] = {}
    left_open: set[str] = set()  # by a value that says so
    for name, value in given.items():
        field = fields.get(name)
        if value is None:
            continue
        if field is not None and _is_absent(value, fields.get(field.means or name, field)):
            left_open.add(field.means or name)
            continue
        if field is None:
            raise invalid(within + name[:80], _unknown(name, fields, within), "unknown_field")
        if field.kind == "refused":
            if not any(type(value) is type(off) and value == off for off in field.off):
                raise invalid(within + name, f"{within}{name}={shown(value)}: {field.text}", "unsupported_field")
            harmless.append(name)
            continue
        if field.kind == "honoured":
            meant, made = field.means or name, converted_to(field.type, value, within + name)
            if values.setdefault(meant, made) != made:
                alias, other = (name, spelled[meant]) if name != meant else (spelled[meant], name)
                reason = (
                    f"{within}{alias}={shown(given[alias])} beside {other}={shown(given[other])}: expected one of them"
                )
                raise invalid(within + alias, f"{reason}; they are two names of one field", "invalid_value")
            spelled[meant] = name
        else:
            _require_harmless(field, value, within + name)
            harmless.append(name)
    for field in fields.values():
        if field.required and field.name not in values.keys() | left_open:
            raise invalid(within + field.name, f"{within}{field.name} is missing: {field.text}", "missing_field")
    return Body(values, tuple(harmless), spelled)


def _is_absent(value: object, field: Field) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value in field.absent


def converted_to(kind: Any, value: Any, name: str) -> Any:
    """`value` converted to the type `kind`. 400 with the field `name`, what came and what was expected.

    4.0 is 4 where an integer is expected, as JSON Schema has it.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        with suppress(msgspec.ValidationError, OverflowError, RecursionError):
            return msgspec.convert(_integral(value), kind, str_keys=True)
        reason = str(error)
        place = _AT.search(reason)
        expected = _AT.sub("", reason).replace("`", "")
        where = name + (place[1] if place else "")
        if place is None and expected.startswith("Invalid enum value") and (words := _literals(kind)):
            expected = "expected " + " or ".join(map(shown, words))
        expected = _WORD.sub(lambda found: _WORDS[found[1]], expected[:1].lower() + expected[1:])
        raise invalid(where[:200], f"{where[:200]}: {expected}; what came is {shown(value)}", "invalid_value") from None


def _integral(value: Any) -> Any:
    """The value with integers for floats that are whole, in lists too."""
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _require_harmless(field: Field, value: object, name: str) -> None:
    """400, which says why the field has no effect, for a value that would have one."""
    try:
        converted_to(field.type, value, name)
    except ApiError as error:
        raise invalid(error.param, f"{error.message}. {field.text.rstrip('.')}", error.code) from None


def _literals(kind: Any) -> tuple[object, ...]:
    """The values of a Literal, and of a union of them."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    return tuple(word for part in parts for word in _literals(part))


def _unknown(name: str, fields: Mapping[str, Field], within: str) -> str:
    known = [f.name for f in fields.values() if f.kind != "refused"]
    close = get_close_matches(name[:80], known, 1, 0.75) or [full for full in known if full.startswith(name)][:1]
    advice = f"did you mean {close[0]}?" if close else "leave it out; GET /docs lists the fields"
    return f"there is no field {shown(within + name)}; {advice}"


def _kind(value: object) -> str:
    names = {str: "string", list: "array", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names[type(value)]
