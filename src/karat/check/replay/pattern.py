"""The pattern of what is wrong in a result: which heads, columns, keys and tokens, and what stands there instead.

It is read from the places of the errors alone, whatever made them.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from karat.check.model.tokens import Tokens
from karat.check.replay.instead import Places, instead
from karat.check.replay.replay import Replay

Mask = NDArray[np.bool_]
By = Literal["sequence", "step", "position", "index in step", "index from the step's end", "id"]

_MANY = 20  # things, from which on a few of them may be right by chance
_NEARLY = 0.95
_PARTS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class PatternShare:
    """Which of `count` numbered things are wrong."""

    wrong: tuple[int, ...]
    count: int

    @property
    def is_all(self) -> bool:
        return len(self.wrong) == self.count

    @property
    def right(self) -> tuple[int, ...]:
        return tuple(sorted(set(range(self.count)) - {*self.wrong}))

    @property
    def ranks(self) -> tuple[tuple[int, ...], int] | None:
        """(the ranks, of how many) whose equal shares are exactly what is wrong; None if it is no such part."""
        return None if self.is_all else self._of_parts(each=False)

    @property
    def every(self) -> tuple[tuple[int, ...], int] | None:
        """(remainders, n): exactly the things with these numbers modulo n are wrong; None if it is no such part."""
        return None if self.is_all else self._of_parts(each=True)

    def _of_parts(self, *, each: bool) -> tuple[tuple[int, ...], int] | None:
        found = np.isin(np.arange(self.count), self.wrong)
        for n in _PARTS:
            if self.count % n == 0 and self.count > n * each:
                parts = found.reshape((-1, n) if each else (n, -1))
                whole = parts.all(axis=0 if each else 1)
                if np.array_equal(whole, parts.any(axis=0 if each else 1)):
                    return tuple(np.flatnonzero(whole).tolist()), n
        return None


@dataclass(frozen=True, slots=True)
class Rule:
    """Tokens with one of these values."""

    by: By
    values: tuple[int, ...]

    def mask(self, tokens: Tokens) -> Mask:
        """[tokens]"""
        return np.isin(_numbers(self.by, tokens), self.values)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is wrong in one result. Heads, columns and tokens are wrong where any value of them is.

    tokens   the wrong ones among those of `judged`, by their index in the trace
    rules    tokens that keep all these rules are exactly the wrong ones; (): all are wrong; None: no rule gives them
    heads    None for a result without heads
    columns  of a head, where there are heads; None for scores and weights
    keys     of scores and weights: which keys of a query are wrong, of own, later, same step, earlier steps, empty
    share    of the values of these tokens, heads and columns (keys), how many are wrong
    instead  what the trace has there, in words ("zeros"); "" if it is none of what is looked for
    """

    tokens: tuple[int, ...]
    judged: tuple[int, ...]
    rules: tuple[Rule, ...] | None
    heads: PatternShare | None
    columns: PatternShare | None
    keys: tuple[str, ...]
    share: float
    instead: str = ""


def pattern_of(replay: Replay, name: str) -> Pattern | None:
    """The pattern of the result `name` as it was judged; None if nothing of it is beyond the limit."""
    wrong = replay.wrong(name)
    if wrong is None:
        return None
    node, recorded = replay.graph.nodes[name], replay.recorded[name]
    there = np.ones((), bool) if recorded.present is None else recorded.present
    has_keys = node.kind in ("scores", "softmax")
    there = there & (replay.tokens.in_step | wrong) if has_keys else there  # slots without a key count where wrong
    num_heads = _num_heads(replay, name)

    def by_token(x: NDArray[np.generic]) -> NDArray[np.generic]:
        """[tokens, heads, columns or keys]"""
        return x.transpose(1, 0, 2) if has_keys else x.reshape(len(x), num_heads or 1, -1)

    arrays = [np.broadcast_to(x, wrong.shape) for x in (wrong & there, there)]
    wrong, there = (by_token(x).astype(bool) for x in arrays)
    domain = replay.domain(node)
    got, right = (by_token(np.asarray(x)) for x in (recorded.values, replay.run(replay.segment(name))))
    found = pattern(wrong, there, domain, replay.tokens, has_keys=has_keys, has_heads=bool(num_heads))
    places = Places(domain, replay.tokens.positions[domain], replay.unit, has_keys)
    return replace(found, instead=instead(got.astype(np.float64), right.astype(np.float64), wrong, places))


def pattern(
    wrong: Mask, there: Mask, domain: NDArray[np.int64], tokens: Tokens, *, has_keys: bool, has_heads: bool
) -> Pattern:
    """The pattern of wrong values [rows, heads, columns or keys] among those that are there.

    domain [rows]: the token of each row.
    """
    rows = np.flatnonzero(there.any(axis=(1, 2)))
    by_token: Mask = np.logical_or.reduce(wrong[rows], axis=(1, 2))
    by_head = _settled(np.logical_or.reduce(wrong, axis=(0, 2)))
    by_column = _settled(np.logical_or.reduce(wrong, axis=(0, 1)))
    keys = _keys(wrong, tokens) if has_keys else ()
    part = wrong[rows[by_token]][:, by_head]
    part = part[:, :, by_column] if not has_keys else part
    size = there[rows[by_token]][:, by_head].sum() if has_keys else part.size
    judged = domain[rows]
    return Pattern(
        tuple(judged[by_token].tolist()),
        tuple(judged.tolist()),
        _rules(judged, by_token, tokens),
        _share(by_head) if has_heads else None,
        None if has_keys else _share(by_column),
        keys,
        float(part.sum() / size) if size else 0.0,
    )


def _num_heads(replay: Replay, name: str) -> int:
    """The heads of a result; 0 if it has none."""
    node = replay.graph.nodes[name]
    if node.kind in ("mix", "scores", "softmax"):
        return replay.graph.shape(node).num_heads
    features = replay.features(node)
    return features[0] if len(features) > 1 else 0


def _share(found: Mask) -> PatternShare:
    return PatternShare(tuple(np.flatnonzero(found).tolist()), len(found))


def _settled(found: Mask) -> Mask:
    """The same without gaps that are there by chance: of many columns a few come out right in every token."""
    if len(found) < _MANY:
        return found
    for candidate in _candidates(found):
        if not (found & ~candidate).any() and found.sum() >= _NEARLY * candidate.sum():
            return candidate
    return found


def _candidates(found: Mask) -> Iterator[Mask]:
    count = len(found)
    for n in _PARTS:
        if count % n == 0:
            parts = found.reshape(n, -1)
            yield np.repeat(parts.any(axis=1), count // n)
            yield np.tile(found.reshape(-1, n).any(axis=0), count // n)
    yield np.ones(count, bool)


def _keys(wrong: Mask, tokens: Tokens) -> tuple[str, ...]:
    """Which keys [tokens, context] of a query have wrong values [tokens, heads, context]."""
    key = np.arange(tokens.context)
    position, start = tokens.positions[:, None], tokens.step_start[:, None]
    kinds: dict[str, Mask] = {
        "earlier steps": key < start,
        "same step": (key >= start) & (key < position),
        "own": key == position,
        "later": (key > position) & tokens.in_step,
        "empty": ~tokens.in_step,
    }
    found = wrong.any(axis=1)
    return tuple(word for word, where in kinds.items() if (found & where).any())


def _rules(judged: NDArray[np.int64], found: Mask, tokens: Tokens) -> tuple[Rule, ...] | None:
    """The fewest rules that give exactly the tokens `found` among those that are judged."""
    if found.all():
        return ()
    rules = list(_enclosing(judged[found], tokens))
    for count in (1, 2, 3):
        for chosen in combinations(rules, count):
            kept = np.logical_and.reduce([rule.mask(tokens)[judged] for rule in chosen])
            if np.array_equal(kept, found) or (
                count == 1 and kept.sum() >= _MANY and kept[found].all() and found.sum() >= _NEARLY * kept.sum()
            ):
                return chosen
    return None


def _enclosing(wrong: NDArray[np.int64], tokens: Tokens) -> Iterator[Rule]:
    """The narrowest rule of each kind that all wrong tokens keep."""
    kinds: tuple[By, ...] = ("sequence", "step", "position", "index in step", "index from the step's end", "id")
    for by in kinds:
        numbers = _numbers(by, tokens)
        values = np.unique(numbers[wrong])
        if by not in ("sequence", "step"):
            values = np.arange(values[0], values[-1] + 1)
        yield Rule(by, tuple(values.tolist()))


def _numbers(by: By, tokens: Tokens) -> NDArray[np.int64]:
    """[tokens]"""
    match by:
        case "sequence":
            return tokens.sequences
        case "step":
            return tokens.steps
        case "position":
            return tokens.positions
        case "index in step":
            return tokens.index_in_step
        case "index from the step's end":
            return tokens.step_end - 1 - tokens.positions
        case "id":
            return tokens.ids
