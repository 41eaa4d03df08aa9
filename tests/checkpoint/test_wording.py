"""Foreign names and values in error messages: one line, printable, bounded."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.wording import as_json, in_words, kind_of, listed, shown

VALUES = st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=20)


@given(VALUES)
def test_any_value_is_a_short_printable_line(value: object) -> None:
    text = shown(value)
    assert len(text) <= 80 and "\n" not in text
    assert text.removesuffix("…").isascii() and text.isprintable()


def test_a_value_that_fits_is_whole_and_a_longer_one_is_cut() -> None:
    assert shown("é\n") == r"'\xe9\n'"
    assert shown("a" * 1_000_000) == "'" + "a" * 78 + "…"


def test_names_are_listed_to_a_number() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(12)], limit=3) == "0, 1, 2 and 9 more"
    assert listed([]) == ""


def test_values_and_kinds_are_named_as_files_spell_them() -> None:
    values: list[Any] = [None, True, 1.5, "é", {"a": [None]}]
    assert list(map(as_json, values)) == ["null", "true", "1.5", '"\\u00e9"', '{"a": [null]}']
    assert len(as_json(["a"] * 99)) == 80
    words = ["null", "true or false", "a number", "a text", "an object"]
    assert [kind_of(type(value)) for value in values] == words
    wrong: list[tuple[str, Any]] = [("null", str), ("1", dict[str, int]), ('"a"', bool)]
    for text, kind in wrong:
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.json.decode(text, type=kind)
        assert not {"`", "str", "dict", "int", "bool"} & set(re.split("[ ,]", in_words(caught.value)))
