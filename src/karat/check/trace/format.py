"""A trace: what an engine computed on the way from token ids to logits, in one safetensors file (docs/trace-format.md).

    0   8                   8 + n
    | n | JSON header       | arrays, one after the other, little-endian      |
      8 B  per array: dtype, shape, first and last byte (counted from 8 + n)
           "__metadata__": {"karat_trace": TraceInfo as a JSON string}

An array has the name of a node of the graph, and a row for each token.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.config import FloatName
from karat.ops.integers import WIDTHS

Array = NDArray[np.floating]

VERSION = 1
METADATA_KEY = "karat_trace"
# Scores at or below this are masked: some engines mask by adding a large negative number, and no real score is near it.
MASKED = -6e4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """The description of a trace; every list is in the order in which the tokens were computed.

    token_ids   of all tokens, all steps and sequences
    positions   of each token in its sequence, from 0 on
    sequences   a number for each token: tokens with the same number attend to each other
    steps       index of the first token of each forward pass; [0] where there was one
    rows        {array name: token indices of its rows} where an array does not have all tokens
    heads       {array name: heads} where scores or weights do not have all query heads
    dtype       what the engine computes in; kv_dtype what its cache stores
    activations "ggml" if inputs of matrix products are rounded as ggml does it for the stored type of the weight;
                "int8", "int16" or "int24" if weights in blocks read integers of numeric contract 5; "none" if inputs
                are not rounded; None if the trace does not state it
    numeric_contract   the last version of the contract that changed the model's bits, of Karat's own traces
    prompt, messages, generated   the text or conversation, and the chosen ids, where they are known
    sampling    {"temperature": …}: the parameters by which `generated` was chosen
    model       path or name, for people
    digest      of the weights; tells models apart
    config      the model's config.json, for a reader without the model
    ranks       tensor-parallel ranks; arrays of rank r are called `name@r` (see karat.check.replay.gathering)
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    sequences: tuple[int, ...]
    steps: tuple[int, ...] = (0,)
    dtype: FloatName = "float32"
    kv_dtype: FloatName | None = None
    activations: str | None = None
    numeric_contract: int | None = None
    executor: str = "unknown"
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    heads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    generated: tuple[int, ...] | None = None
    sampling: Mapping[str, Any] | None = None
    model: str | None = None
    digest: str | None = None
    config: Mapping[str, Any] | None = None
    ranks: int = 1

    @property
    def rounds_activations(self) -> bool:
        """Whether the trace states that inputs of products are rounded."""
        return self.activations not in (None, "none")

    @property
    def integers(self) -> str | None:
        """The width of the integers that weights in blocks read; None if they read none."""
        return self.activations if self.activations in WIDTHS else None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class LazyArrays(Mapping[str, Array]):
    """Arrays that are made or read at each access; together they may be larger than the memory."""

    def __init__(self, names: Collection[str], make: Callable[[str], Array]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Arrays by name (float16, float32 or float64; bfloat16 is widened to float32, exactly), and their description.

    shapes: of all arrays, where they are known without reading the arrays; else None.
    """

    info: TraceInfo
    arrays: Mapping[str, Array]
    path: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None

    def shape_of(self, name: str) -> tuple[int, ...]:
        """An array's shape."""
        return self.arrays[name].shape if self.shapes is None else self.shapes[name]

    def rows_of(self, name: str) -> NDArray[np.int64]:
        """Token indices of an array's rows."""
        return rows_of(self.info, name)


def rows_of(info: TraceInfo, name: str) -> NDArray[np.int64]:
    """Token indices of the rows of an array of this name."""
    return np.array(info.rows.get(name, range(info.num_tokens)), np.int64)


def make_info(token_ids: Sequence[int], **fields: Any) -> TraceInfo:
    """A TraceInfo with positions and sequences filled in: one sequence from position 0 on, unless they are given."""
    sequences = tuple(fields.pop("sequences", None) or (0,) * len(token_ids))
    positions = fields.pop("positions", None)
    if positions is None:
        positions = counted(sequences)
    return TraceInfo(token_ids=tuple(token_ids), positions=tuple(positions), sequences=sequences, **fields)


def counted(sequences: Sequence[int]) -> tuple[int, ...]:
    """The position of each token: how many tokens of its sequence come before it."""
    seen: dict[int, int] = {}
    positions = []
    for sequence in sequences:
        positions.append(seen.get(sequence, 0))
        seen[sequence] = positions[-1] + 1
    return tuple(positions)
