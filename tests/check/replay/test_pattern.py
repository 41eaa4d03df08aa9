"""The pattern of wrong values is what was made wrong: heads, columns, keys, tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from karat.check.model.tokens import Tokens
from karat.check.replay.pattern import Pattern, PatternShare, Rule, pattern
from karat.check.trace.format import make_info

# Two sequences side by side: two chunks of 5 and 4, then three steps of one token each.
_CHUNKS = [(0, 5), (1, 5), (0, 4), (1, 4), (0, 1), (1, 1), (0, 1), (1, 1), (0, 1), (1, 1)]
_SEQUENCES = tuple(s for s, n in _CHUNKS for _ in range(n))
_INFO = make_info(range(3, 3 + len(_SEQUENCES)), sequences=_SEQUENCES, steps=(0, 10, 18, 20, 22))
TOKENS = Tokens.of(_INFO)
COUNT = TOKENS.num_tokens


def _pattern(wrong: np.ndarray, *, has_keys: bool = False) -> Pattern:
    there = np.broadcast_to(TOKENS.in_step[:, None], wrong.shape) if has_keys else np.ones(wrong.shape, bool)
    return pattern(wrong & there, there, np.arange(COUNT), TOKENS, has_keys=has_keys, has_heads=True)


@given(
    st.sets(st.integers(0, 1), min_size=1),
    st.sets(st.integers(0, 4), min_size=1),
    st.sets(st.integers(0, 7), min_size=1),
    st.integers(0, 3),
)
def test_what_was_made_wrong_is_what_is_found(
    sequences: set[int], steps: set[int], heads: set[int], first: int
) -> None:
    """Of any sequences, steps, heads and columns from some on."""
    tokens = np.isin(TOKENS.sequences, [*sequences]) & np.isin(TOKENS.steps, [*steps])
    wrong = np.zeros((COUNT, 8, 16), bool)
    wrong[np.ix_(tokens, sorted(heads), range(first, 16))] = True
    found = _pattern(wrong)
    assert found.tokens == tuple(np.flatnonzero(tokens))
    assert found.heads == PatternShare(tuple(sorted(heads)), 8)
    assert found.columns == PatternShare(tuple(range(first, 16)), 16)
    assert found.share == 1 and not found.keys
    assert found.rules is not None
    kept = np.logical_and.reduce([rule.mask(TOKENS) for rule in found.rules] or [np.ones(COUNT, bool)])
    assert np.array_equal(kept, tokens)
    wanted = (len(sequences) < 2) + (len(steps) < 5)
    assert len(found.rules) <= wanted, "no rule is said that is not needed"


def test_the_first_token_of_each_step_and_all_but_position_0_are_rules() -> None:
    wrong = np.zeros((COUNT, 1, 4), bool)
    wrong[TOKENS.index_in_step == 0] = True
    assert _pattern(wrong).rules == (Rule("index in step", (0,)),)
    wrong[:] = (TOKENS.positions > 0)[:, None, None]
    assert _pattern(wrong).rules == (Rule("position", tuple(range(1, 12))),)
    wrong[:] = False
    wrong[[3, 11, 20]] = True
    assert _pattern(wrong).rules is None and _pattern(wrong).tokens == (3, 11, 20)


def test_keys_are_told_by_where_they_stand() -> None:
    position = TOKENS.positions[:, None]
    key = np.arange(TOKENS.context)
    shape = (COUNT, 2, TOKENS.context)

    def found(where: np.ndarray) -> tuple[str, ...]:
        return _pattern(np.broadcast_to(where[:, None], shape), has_keys=True).keys

    assert found(key == position) == ("own",)
    assert found(key > position) == ("later",)
    assert found(key < TOKENS.step_start[:, None]) == ("earlier steps",)
    assert found(key <= position) == ("earlier steps", "same step", "own")
    behind = np.broadcast_to(~TOKENS.in_step[:, None], shape)
    empty = pattern(behind, np.ones(shape, bool), np.arange(COUNT), TOKENS, has_keys=True, has_heads=True)
    assert empty.keys == ("empty",) and empty.tokens == tuple(np.flatnonzero(~TOKENS.in_step.all(axis=1)))


def test_shares_are_ranks_or_every_nth() -> None:
    assert PatternShare((4, 5, 6, 7), 8).ranks == ((1,), 2)
    assert PatternShare((2, 3, 6, 7), 8).ranks == ((1, 3), 4)
    assert PatternShare((1, 3, 5, 7), 8).every == ((1,), 2)
    assert PatternShare((1, 2), 8).every is None and PatternShare(tuple(range(8)), 8).ranks is None
    assert PatternShare((1, 2), 3).ranks is None and PatternShare((1, 2), 3).right == (0,)


def test_a_column_that_is_right_by_chance_changes_nothing() -> None:
    wrong = np.zeros((COUNT, 1, 100), bool)
    wrong[:, :, 50:] = True
    wrong[:, :, 77] = False
    found = _pattern(wrong)
    assert found.columns is not None and found.columns.ranks == ((1,), 2)
    assert 0.97 < found.share < 1
