"""Recorded arrays in the shapes of the graph's nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.check.model.byte_lru import ByteLRU
from karat.check.model.graph import Node
from karat.check.model.tokens import Tokens
from karat.check.trace.format import MASKED, Trace
from karat.errors import TraceError

Array = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A recorded array in the shape of its node. present: the rows and heads that the trace has; others hold zeros."""

    values: Array
    present: NDArray[np.bool_] | None  # broadcastable to values; None: all

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class ResultShape:
    """The shape of a node's result: the tokens of its rows, and a row's shape; the heads of scores and weights."""

    node: Node
    domain: NDArray[np.int64]
    features: tuple[int, ...]
    num_heads: int = 0


class Recordings(Mapping[str, Recorded]):
    """The results of a trace by node, each aligned when it is read. At most `budget` bytes are kept.

    Raises TraceError for a shape that does not fit its node.
    """

    def __init__(self, trace: Trace, tokens: Tokens, places: Mapping[str, ResultShape], budget: int) -> None:
        self._trace, self._tokens = trace, tokens
        self._places = {name: place for name, place in places.items() if name in trace.arrays}
        self._shapes = {name: _shape(trace, name, place) for name, place in self._places.items()}
        self._kept: ByteLRU[str, Recorded] = ByteLRU(budget)
        self._masks: dict[str, NDArray[np.bool_]] = {}

    def __getitem__(self, name: str) -> Recorded:
        place, shape = self._places[name], self._shapes[name]

        def make() -> Recorded:
            return _align(self._trace, place, self._tokens, shape)

        return self._kept.get(name, make)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def mask(self, name: str) -> NDArray[np.bool_] | None:
        """The tokens of a result that the trace has, [tokens]; for scores and weights [heads, tokens]. None: none."""
        if name not in self._places:
            return None
        if name not in self._masks:
            rows = np.isin(np.arange(self._tokens.num_tokens), self._trace.rows_of(name))
            if self._places[name].node.kind in ("scores", "softmax"):
                every = np.arange(self._places[name].num_heads)
                chosen = np.isin(every, self._trace.info.heads.get(name, every))
                rows = chosen[:, None] & rows
            self._masks[name] = rows
        return self._masks[name]

    def is_whole(self, name: str) -> bool:
        """Whether the trace has all rows and heads of a result."""
        return name not in self._trace.info.heads and np.array_equal(
            self._trace.rows_of(name), self._places[name].domain
        )


def _shape(trace: Trace, name: str, place: ResultShape) -> tuple[int, ...]:
    """The shape of an array, without leading axes of length 1 for a batch."""
    found, node = trace.shape_of(name), place.node
    rows, heads, shape = trace.rows_of(name), trace.info.heads.get(name), found
    has_keys = node.kind in ("scores", "softmax")
    axis = 1 if has_keys else 0

    while len(shape) > (3 if has_keys else 2) and shape[0] == 1:
        if not has_keys and shape[0] == len(rows) and prod(shape[1:]) == prod(place.features):
            break  # one token, of several heads
        shape = shape[1:]
    if len(shape) <= axis or shape[axis] != len(rows):
        is_rows_left_out = name not in trace.info.rows and len(shape) > axis and shape[axis] < len(rows)
        few = f'; if it has some tokens only, say which: rows={{"{name}": [token indices]}}' if is_rows_left_out else ""
        raise TraceError(f"{name}: shape {found}; expected {len(rows)} tokens on axis {axis}{few}")
    if has_keys and (len(shape) != 3 or shape[0] != (place.num_heads if heads is None else len(heads))):
        raise TraceError(f"{name}: shape {found}; expected [{place.num_heads} heads, tokens, keys]")
    if not has_keys and prod(shape[1:]) != prod(place.features):
        raise TraceError(
            f"{name}: shape {found}; expected [tokens, {', '.join(map(str, place.features))}] of this model: is the "
            f"trace of another{f', {trace.info.model}' if trace.info.model else ''}?"
        )
    return shape


def _align(trace: Trace, place: ResultShape, tokens: Tokens, shape: tuple[int, ...]) -> Recorded:
    """The recorded result of a node, in float64 and in the node's shape."""
    node, domain, features, num_heads = place.node, place.domain, place.features, place.num_heads
    name, rows, heads = node.name, trace.rows_of(node.name), trace.info.heads.get(node.name)
    with np.errstate(invalid="ignore"):
        values = np.asarray(trace.arrays[name], np.float64).reshape(shape)
    if node.kind in ("scores", "softmax"):
        empty = -np.inf if node.kind == "scores" else 0.0
        values = values[:, :, : tokens.context]
        full = np.full((num_heads, tokens.num_tokens, tokens.context), empty)
        chosen = np.array(range(num_heads) if heads is None else heads, np.int64)
        index = np.ix_(chosen, rows, np.arange(values.shape[2]))
        if node.kind == "scores":
            values = np.where(values <= MASKED, -np.inf, values)
        full[index] = values
        if heads is None and len(rows) == tokens.num_tokens:
            return Recorded(full, None)
        present = np.zeros((num_heads, tokens.num_tokens, 1), bool)
        present[np.ix_(chosen, rows)] = True
        return Recorded(full, present)
    values = values.reshape(len(rows), *features)
    if np.array_equal(rows, domain):
        return Recorded(values, None)
    full = np.zeros((len(domain), *features))
    found = np.isin(rows, domain)
    full[np.searchsorted(domain, rows[found])] = values[found]
    present = np.isin(domain, rows).reshape(-1, *(1,) * len(features))
    return Recorded(full, present)
