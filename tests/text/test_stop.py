"""Stop strings against a naive search, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.text import StopMatcher, StopResult

# Few letters, so that stop strings overlap themselves and each other.
TEXT = st.text("aab", max_size=40)
STOPS = st.lists(st.text("aabé", min_size=1, max_size=6), max_size=4)


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


def run(pieces: list[str], matcher: StopMatcher) -> tuple[str, str | None]:
    emitted, matched = "", None
    for piece in pieces:
        text, matched = matcher.push(piece)
        emitted += text
    return emitted + matcher.finish(), matched


@given(pieces=st.lists(TEXT, max_size=8), stops=STOPS, include_stop=st.booleans())
def test_equals_a_naive_search_under_any_chunking(pieces: list[str], stops: list[str], include_stop: bool) -> None:
    matcher = StopMatcher(stops, include_stop=include_stop)
    assert run(pieces, matcher) == naive("".join(pieces), stops, include_stop)


@given(text=TEXT, stops=STOPS)
def test_holds_back_only_what_may_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted = ""
    for end, char in enumerate(text, start=1):
        result = matcher.push(char)
        emitted += result.text_to_emit
        if result.matched is not None:
            break
        begun = [n for stop in stops for n in range(1, len(stop)) if text[:end].endswith(stop[:n])]
        assert emitted == text[: end - max(begun, default=0)]


def test_a_stop_that_overlaps_itself() -> None:
    assert run(["aa", "aa", "b!"], StopMatcher(["aab"])) == ("aa", "aab")
    assert run(list("abacababacabacaba"), StopMatcher(["abacabac"])) == ("abacab", "abacabac")


def test_first_completed_wins_and_of_two_the_longer() -> None:
    assert run(["abcd"], StopMatcher(["abcd", "bc"])) == ("a", "bc")
    assert run(["xabc"], StopMatcher(["bc", "abc", "c"])) == ("x", "abc")
    assert run(["xabc"], StopMatcher(["abc", "ab"])) == ("x", "ab")


def test_nothing_goes_out_after_a_match() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("one\n") == StopResult("one", None)
    assert matcher.push("\ntwo") == StopResult("", "\n\n")
    assert matcher.push("three") == StopResult("", "\n\n")
    assert matcher.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        StopMatcher(["a", ""])


def test_cost_does_not_grow_with_what_is_held() -> None:
    # 200 thousand characters, all of them held back: quadratic work would take minutes.
    matcher = StopMatcher(["a" * 200_000 + "b"])
    for _ in range(1000):
        assert matcher.push("a" * 200).text_to_emit == ""
    assert len(matcher.finish()) == 200_000
