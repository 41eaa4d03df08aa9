"""Escapes in answers of a JSON Schema, chosen so that the name of a property can be written in one way only.

Names of additional properties are any that are not listed and fit no pattern, which the compiler asks of the name as it
is written: with escapes of the form \\uXXXX `"\\u0062"` would be a name beside `"b"`, and a reader takes both for one.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from karat.errors import RequestError
from karat.request import shown

ALL = 'nrbtf\\"u'  # letters after a backslash; u for control characters that have no letter
_ONE_EACH = 'nrbtf\\"'
_LETTERED = "\n\r\b\t\f"
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum", "default", "examples")
_OWN_NAMES = ("properties", "patternProperties", "required")
_ESCAPE = r"\\[xu]\{[0-9A-Fa-f]+\}|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\."  # of a regular expression
_CHAR = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_CLASS_OR_CHAR = re.compile(rf"\[(?:{_ESCAPE}|[^\]\\])*\]|{_ESCAPE}|.", re.DOTALL)
_LETTERS = {"a": "\x07", "v": "\x0b", "0": "\0"}


def escapes(schema: Mapping[str, Any]) -> str:
    """The letters that may follow a backslash. RequestError for a listed text that cannot be written with them."""
    schemas = list(_schemas(schema))
    if not any(_has_others(each) for each in schemas):
        return ALL
    for each in schemas:
        for keyword in ("const", "enum"):
            for text in _texts(each.get(keyword)):
                if any(map(_has_no_letter, text)):
                    _refuse(keyword, text)
        names = each.get("patternProperties")
        patterns = [("pattern", each.get("pattern"))]
        patterns += [("patternProperties", name) for name in (names if isinstance(names, Mapping) else ())]
        for keyword, pattern in patterns:
            if isinstance(pattern, str) and any(map(_has_no_letter, _single_chars(pattern))):
                _refuse(keyword, pattern)
    return _ONE_EACH


def _has_no_letter(char: str) -> bool:
    return (char < " " and char not in _LETTERED) or char == "\x7f"


def _refuse(keyword: str, text: str) -> NoReturn:
    raise RequestError(
        f"structured_outputs: json: {keyword} has {shown(text)}, with a control character, and an object of the schema "
        "may have names that it does not list; expected one of both; set additionalProperties to false",
        param="structured_outputs",
    )


def _single_chars(pattern: str) -> Iterator[str]:
    """The characters that a regular expression asks for, alone in a class or in none.

    The compiler takes what cannot be written out of larger classes. A character by itself it drops, so that `a\\x01b`
    would be `ab`.
    """
    for found in _CLASS_OR_CHAR.finditer(pattern):
        text = found[0]
        if len(text) > 1 and text.startswith("["):
            chars = _CHAR.findall(text[1:-1])
            text = chars[0] if len(chars) == 1 else ""
        if code := re.fullmatch(r"\\[xu]\{?([0-9A-Fa-f]+)\}?", text):
            yield chr(min(int(code[1], 16), 0x10FFFF))
        elif text:
            yield _LETTERS.get(text[1:], text[-1]) if text.startswith("\\") else text


def _has_others(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have names beside its own."""
    return any(schema.get(name) for name in _OWN_NAMES) and schema.get("additionalProperties") is not False


def _schemas(node: object) -> Iterator[Mapping[str, Any]]:
    """Every schema of a document, those under keywords of other kinds too, as references may lead there."""
    if isinstance(node, Mapping):
        yield node
        for name, value in node.items():
            if name in _MAPS and isinstance(value, Mapping):
                for inner in value.values():
                    yield from _schemas(inner)
            elif name not in _VALUES:
                yield from _schemas(value)
    elif isinstance(node, list):
        for inner in node:
            yield from _schemas(inner)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)
