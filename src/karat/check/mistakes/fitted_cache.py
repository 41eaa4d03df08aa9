"""What a cache holds in place of the right keys, found from the recorded scores."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Variant
from karat.check.model.context import Array, Context
from karat.check.model.graph import Node
from karat.check.model.ops import kv_head_of
from karat.check.model.tokens import NOBODY, CacheFault, Foreign, Misplaced, Tokens

_MOST = 256  # positions with a wrong key, beyond which it is no matter of some slots
_RUNS = 4  # runs of positions


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
    for step in range(max(1, first - 1), first + 1):
        for by in (-1, 1, -2, 2):
            yield _variant(node, mix, Misplaced(by, step))
    runs = _runs(at, _found(node, q, k, got, at, context), tokens)
    if 0 < len(runs) <= _RUNS:
        yield _variant(node, mix, tuple(runs))


def _variant(node: Node, mix: str, fault: CacheFault) -> Variant:
    text = "; ".join(part.text for part in fault) if isinstance(fault, tuple) else getattr(fault, "text", str(fault))
    return Variant("kv-stale", text, {node.name: {"cache": fault}, mix: {"cache": fault}}, fitted=True)


def _found(
    node: Node, q: Array, k: Array, got: Array, at: NDArray[np.bool_], context: Context
) -> dict[tuple[int, int], int]:
    """(sequence, position) to the token whose key gives the scores there, or NOBODY."""
    tokens = context.tokens
    pairs = {
        (int(s), int(p))
        for s in np.unique(tokens.sequences)
        for p in np.flatnonzero(at[tokens.sequences == s].any(axis=0))
    }
    if len(pairs) > _MOST:
        return {}
    keys = context.cached(k)[:, kv_head_of(q.shape[1], k.shape[1])]
    found = {}
    for sequence, position in sorted(pairs):
        rows = np.flatnonzero((tokens.sequences == sequence) & at[:, position])
        made = np.einsum("ihd,jhd->hij", q[rows], keys) * node.params["scale"]
        error = np.abs(made - got[:, rows, position][:, :, None]).max(axis=(0, 1))
        nearest = int(np.argmin(error))
        found[sequence, position] = nearest if error[nearest] < np.abs(got[:, rows, position]).max() else NOBODY
    return found


def _runs(at: NDArray[np.bool_], found: dict[tuple[int, int], int], tokens: Tokens) -> list[Foreign]:
    """Adjoining positions that hold adjoining positions of one sequence, from the same step on."""

    def kind(item: tuple[tuple[int, int], int]) -> Any:
        (sequence, position), token = item
        rows = (tokens.sequences == sequence) & at[:, position]
        step = int(tokens.steps[rows].min())
        if token == NOBODY:
            return sequence, step, None, 0
        return sequence, step, int(tokens.sequences[token]), int(tokens.positions[token]) - position

    runs = []
    items = sorted(found.items())
    numbered = [(kind(item), item[0][1] - index) for index, item in enumerate(items)]
    for (same, _), group in groupby(zip(numbered, items, strict=True), key=lambda pair: pair[0]):
        positions = [item[0][1] for _, item in group]
        sequence, step, source, offset = same
        held = None if source is None else (source, positions[0] + offset)
        runs.append(Foreign(sequence, positions[0], len(positions), held, step))
    return runs
