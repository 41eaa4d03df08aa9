"""Repetitions against their definitions in plain Python, against transformers, and on long texts."""

from collections.abc import Sequence
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.engine.choosing.repeats import NO_BREAKERS, Breakers, completing, dry, matched
from tests.support.drawn import examples

# Few tokens, so that repetitions are common; halves of `stop` and `ab` lie in several.
PIECES = [b"a", b"b", b"ab", b"xab", b"s", b"to", b"st", b"op!", b"p", b"\n", b"c\nd", b""]
TOKENS = st.lists(st.integers(0, 2), max_size=40) | st.lists(st.integers(0, len(PIECES) - 1), max_size=40)
LONG = st.builds(
    lambda unit, times, end: (unit * times)[:300] + end,
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.integers(1, 300),
    st.lists(st.integers(0, 3), max_size=3),
)
TEXTS = st.lists(st.sampled_from(["\n", "ab", "stop", "b", "op"]), max_size=3)


def alike(tokens: Sequence[int], place: int) -> int:
    """How many tokens before `place` are the last tokens of all."""
    length = 0
    while length < place and tokens[place - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def since_breaker(tokens: Sequence[int], texts: Sequence[str]) -> int:
    """The number of tokens that begin after the end of the last breaker, in the bytes of the whole text."""
    whole = b"".join(PIECES[token] for token in tokens)
    ends = [at + len(t) for t in map(str.encode, texts) for at in range(len(whole)) if whole.startswith(t, at)]
    if not ends:
        return len(tokens)
    position = count = 0
    for token in tokens:  # the tokens up to the one in which the last breaker ends
        position, count = position + len(PIECES[token]), count + 1
        if position >= max(ends):
            break
    return len(tokens) - max(
        [count, *(i + 1 for i, token in enumerate(tokens) if any(t.encode() in PIECES[token] for t in texts))]
    )


def by_definition(
    tokens: list[int], multiplier: float, base: float, allowed: int, last_n: int, texts: Sequence[str]
) -> dict[int, float]:
    """llama.cpp's DRY: the longest repetition that each token would lengthen, cut at the last breaker."""
    window = tokens if last_n == -1 else tokens[len(tokens) - last_n :] if last_n < len(tokens) else tokens
    if len(window) <= allowed:
        return {}
    limit = since_breaker(window, texts)
    longest: dict[int, int] = {}
    for place in range(1, len(window)):
        length = min(alike(window, place), limit)
        if length >= allowed and limit >= allowed:
            longest[window[place]] = max(length, longest.get(window[place], 0))
    free = {token: n for token, n in longest.items() if not any(t.encode() in PIECES[token] for t in texts)}
    return {token: multiplier * min(base ** (n - allowed), 3.4028234663852886e38) for token, n in free.items()}


@given(TOKENS | LONG, st.integers(0, 5) | st.integers(0, 400))
@settings(deadline=None)
def test_lengths_are_those_that_counting_finds(tokens: list[int], limit: int) -> None:
    found = matched(np.array(tokens, np.int64), limit).tolist()
    assert found == [min(alike(tokens, place), limit) for place in range(len(tokens))]


@given(
    TOKENS | LONG,
    st.sampled_from([0.8, 1.0]),
    st.sampled_from([1.0, 1.01, 1.75, 3.0]),
    st.integers(0, 4),
    st.sampled_from([-1, 1, 2, 7, 30]),
    TEXTS,
)
@settings(deadline=None, max_examples=examples(400))
def test_dry_is_its_definition(
    tokens: list[int], multiplier: float, base: float, allowed: int, last_n: int, texts: list[str]
) -> None:
    breakers = Breakers(texts, PIECES.__getitem__)
    arguments = {"multiplier": multiplier, "base": base, "allowed_length": allowed, "last_n": last_n}
    found, losses = dry(tokens, **arguments, breakers=breakers)  # type: ignore[arg-type]
    want = by_definition(tokens, multiplier, base, allowed, last_n, texts)
    assert dict(zip(found.tolist(), losses.tolist(), strict=True)) == pytest.approx(want, rel=1e-9)
    again, same = dry(tokens, **arguments, breakers=breakers)  # type: ignore[arg-type]
    assert (again == found).all() and (same == losses).all(), "what is remembered of tokens changes nothing"


def test_the_example_in_llama_cpp() -> None:
    """a b c c b c y a b c: c would lengthen 3 tokens, y 2, b 1."""
    found, losses = dry(
        [1, 2, 3, 3, 2, 3, 9, 1, 2, 3], multiplier=1, base=2, allowed_length=1, last_n=-1, breakers=NO_BREAKERS
    )
    assert dict(zip(found.tolist(), losses.tolist(), strict=True)) == {3: 4.0, 2: 1.0, 9: 2.0}


def test_a_power_beyond_float32_counts_as_its_largest() -> None:
    _, losses = dry([7] * 500, multiplier=2, base=1.75, allowed_length=2, last_n=-1, breakers=NO_BREAKERS)
    assert losses.tolist() == [2 * float(np.finfo(np.float32).max)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60) | LONG, st.integers(1, 8) | st.integers(60, 90))
@settings(deadline=None)
def test_as_transformers_bars_ngrams(tokens: list[int], size: int) -> None:
    torch = pytest.importorskip("torch")
    from transformers import NoRepeatNGramLogitsProcessor

    scores = NoRepeatNGramLogitsProcessor(size)(torch.tensor([tokens]), torch.zeros(1, 6))[0].numpy()
    assert completing(np.array(tokens, np.int64), size).tolist() == np.flatnonzero(scores == -np.inf).tolist()


def test_a_breaker_that_no_token_has_alone() -> None:
    breakers = Breakers(["stop", "\n"], PIECES.__getitem__)
    s, to, st_, op, p = 4, 5, 6, 7, 8
    assert breakers.num_after([s, to, p, 0, 1], 9) == 2
    assert breakers.num_after([st_, op], 9) == 0
    assert breakers.num_after([st_, p, 0], 9) == 9
    assert breakers.num_after([s, to, p, 0, 1], 1) == 1, "no farther back than asked"
    assert breakers.within(9) and breakers.within(10) and not breakers.within(p) and not breakers.within(11)


@pytest.mark.parametrize("text", [[7], [1, 2, 3], [0, 0, 1]])
def test_a_text_that_repeats_for_ever_takes_no_time_of_its_square(text: list[int]) -> None:
    """30,000 tokens that repeat: comparing every place to its end would be 10^8 steps and more for one token."""
    tokens = (text * 30_000)[:30_000]
    before = process_time()
    dry(tokens, multiplier=1, base=1.0001, allowed_length=2, last_n=-1, breakers=NO_BREAKERS)
    completing(np.array(tokens, np.int64), 20_000)
    assert process_time() - before < 2
