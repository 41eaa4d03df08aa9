"""Foreign names and values in error messages: one line, printable, bounded."""

from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.wording import listed, shown

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
