"""Values character by character, against Python's own readers of JSON and of Python."""

import ast
import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.text.tools.values import MAX_DEPTH, MalformedError, ValueScan
from tests.text.tools.answers import VALUES

_SIGNS = ["{", "}", "[", "]", '"', ":", ",", " ", "\n", "\\", "\\u12", "ab", "\\n", "\\x41", "\x01", "'", "é", "\\/"]
_WORDS = ["-", "0", "1", ".5", "e3", "E+", "true", "false", "null", "None", "NaN", "Infinity"]
_PIECES = [*_SIGNS, *_WORDS, '"a"', '"a": ', "\\ud83d\\ude00"]
TEXTS = st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)


def read(text: str, *, python: bool = False) -> tuple[str, str] | None:
    """The value as JSON, and the text after it; None for what is malformed or not whole."""
    written: list[str] = []
    scan = ValueScan(written.append, python=python)
    try:
        for place, char in enumerate([*text, ""]):
            if scan.done:
                return "".join(written), text[place:]
            if not scan.push(char):
                return "".join(written), text[place:]
    except MalformedError:
        return None
    return None


@given(st.sampled_from("{["), TEXTS)
def test_json_is_read_as_by_python(opening: str, text: str) -> None:
    text = opening + text
    found = read(text)
    try:
        value, end = json.JSONDecoder(parse_constant=_refuse).raw_decode(text)
    except (ValueError, RecursionError):
        assert found is None
        return
    assert found is not None and found == (text[:end], text[end:])
    assert json.loads(found[0]) == value


def _refuse(name: str) -> Any:
    raise ValueError(name)


@given(VALUES)
def test_python_becomes_json(value: Any) -> None:
    found = read(repr(value) + ",", python=True)
    assert found is not None and found[1] == "," and json.loads(found[0]) == value


@given(st.sampled_from(["'", '"']), st.text(max_size=4), st.lists(st.sampled_from([*r"""'"\/abfnrtvxq0 """])))
def test_strings_of_python(quote: str, text: str, escaped: list[str]) -> None:
    literal = quote + text + "".join("\\" + char for char in escaped) + quote
    found = read(literal + ")", python=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # an unknown escape is what it looks like
            value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        assert found is None or found[1] != ")"
        return
    if found is not None and found[1] == ")":
        assert json.loads(found[0]) == value


@given(st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\U0000d83d", "\\n", "a", "\\x41", "\\u0042"])), st.booleans())
def test_half_a_surrogate_pair_is_no_character(pieces: list[str], python: bool) -> None:
    literal = '"' + "".join(piece for piece in pieces if python or piece[1:2] not in ("U", "x")) + '"'
    found = read(literal, python=python)
    assert found is not None
    value: str = ast.literal_eval(literal)
    assert json.loads(found[0]) == value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize("number", ["1e999", "-1e309", "9" * 400, "1" + "0" * 5000])
def test_numbers_beyond_float64_do_not_fit(number: str) -> None:
    assert read(f"[{number}]") is None and read(f"[{number}]", python=True) is None


def test_brackets_have_a_depth() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert read("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) is None
