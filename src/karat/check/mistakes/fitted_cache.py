"""What a cache holds in place of the right keys, found from the recorded scores."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Variant
from karat.check.model.context import Array, Context
from karat.check.model.graph import Node
from karat.check.model.right.attention import kv_head_of
from karat.check.model.tokens import NOBODY, Foreign, Misplaced, Tokens

_MOST = 256  # positions with a wrong key, beyond which it is no matter of some slots
_RUNS = 32  # runs of positions
_SAID = 3
_NEAR = 1e-3  # of the largest score: how far a score may be from one of a key that is tried

History = list[tuple[int, int]]  # what a slot holds: (from this step on, token or NOBODY)


def caches(
    node: Node, mix: str, q: Array, k: Array, got: Array, wrong: NDArray[np.bool_], context: Context
) -> Iterator[Variant]:
    """Faults of a cache that the wrong scores show; mix: the op that reads V of the same slots.

    q, k  [tokens, heads, head_dim]
    got   [heads, tokens, keys]: recorded scores; wrong: which of them are wrong
    """
    tokens = context.tokens
    at: NDArray[np.bool_] = np.any(wrong, axis=0)  # [tokens, context]
    if not at.any() or not np.isfinite(got[wrong]).all():
        return
    first = int(tokens.steps[at.any(axis=1)].min())
    misplaced = [Misplaced(by, step) for step in range(max(1, first - 1), first + 1) for by in (-1, 1, -2, 2)]
    for fault in misplaced:
        yield _variant(node, mix, fault)
    runs = tuple(_runs(_found(node, q, k, got, at, context), tokens))
    if 0 < len(runs) <= _RUNS:
        held = tokens.sources(runs)[at]
        if not any(np.array_equal(tokens.sources(fault)[at], held) for fault in misplaced):
            yield _variant(node, mix, runs)


def _variant(node: Node, mix: str, fault: Misplaced | tuple[Foreign, ...]) -> Variant:
    if isinstance(fault, tuple):
        said = [part.text for part in fault[:_SAID]]
        text = "; ".join(said + ([f"… {len(fault) - _SAID} more"] if len(fault) > _SAID else []))
    else:
        text = fault.text
    return Variant("kv-stale", text, {node.name: {"cache": fault}, mix: {"cache": fault}}, fitted=True)


def _found(
    node: Node, q: Array, k: Array, got: Array, at: NDArray[np.bool_], context: Context
) -> dict[tuple[int, int], History]:
    """(sequence, position) to what the slot holds, from the first step on in which it is not the right token.

    Nothing if a score is of no token's key that was computed by then.
    """
    tokens = context.tokens
    pairs = {
        (int(s), int(p))
        for s in np.unique(tokens.sequences)
        for p in np.flatnonzero(at[tokens.sequences == s].any(axis=0))
    }
    if len(pairs) > _MOST:
        return {}
    keys = context.cached(k)[:, kv_head_of(q.shape[1], k.shape[1])]
    near = _NEAR * float(np.abs(got[np.isfinite(got)]).max())
    found: dict[tuple[int, int], History] = {}
    for sequence, position in sorted(pairs):
        history: History = []
        right = int(tokens.owner[sequence, position])
        for step in np.unique(tokens.steps[at[:, position] & (tokens.sequences == sequence)]):
            rows = np.flatnonzero((tokens.sequences == sequence) & at[:, position] & (tokens.steps == step))
            there = np.flatnonzero(tokens.steps <= step)
            made = np.einsum("ihd,jhd->hij", q[rows], keys[there]) * node.params["scale"]
            error = np.abs(made - got[:, rows, position][:, :, None]).max(axis=(0, 1))
            nearest = int(np.argmin(error))
            if error[nearest] <= near:
                token = int(there[nearest])
            elif np.abs(got[:, rows, position]).max() <= near:
                token = NOBODY
            else:
                return {}
            history.append((int(step), token))
        found[sequence, position] = _shortened(history, right, sequence, position, tokens, at)
    return found


def _shortened(
    history: History, right: int, sequence: int, position: int, tokens: Tokens, at: NDArray[np.bool_]
) -> History:
    """The changes of a slot; in a step that sees it and is not wrong it holds the right token."""
    of = (tokens.sequences == sequence) & (tokens.positions >= position)
    held = dict.fromkeys(np.unique(tokens.steps[of & ~at[:, position]]).tolist(), right) | dict(history)
    changes: History = []
    for step in sorted(held):
        if (changes[-1][1] if changes else right) != held[step]:
            changes.append((step, held[step]))
    return changes


def _runs(found: dict[tuple[int, int], History], tokens: Tokens) -> list[Foreign]:
    """Adjoining positions that hold adjoining positions of one sequence, from the same step on; earlier steps first."""

    def kind(sequence: int, position: int, step: int, token: int) -> tuple[int, int, int, int]:
        """step, sequence, whose what is there is (NOBODY: zeros), and by how many positions it is off"""
        if token == NOBODY:
            return step, sequence, NOBODY, 0
        return step, sequence, int(tokens.sequences[token]), int(tokens.positions[token]) - position

    items = sorted((*kind(s, p, step, token), p) for (s, p), history in found.items() for step, token in history)
    runs = []
    for _, group in groupby(enumerate(items), key=lambda pair: (pair[1][:4], pair[1][4] - pair[0])):
        same = [item for _, item in group]
        step, sequence, source, offset, start = same[0]
        held = None if source == NOBODY else (source, start + offset)
        runs.append(Foreign(sequence, start, len(same), held, step))
    return runs
