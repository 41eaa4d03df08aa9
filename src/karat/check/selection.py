"""Which results a trace keeps."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from karat.check.trace import Array
from karat.errors import UsageError

_LAYER = re.compile(r"model\.layers\.(\d+)(?:\.|$)")
MAX_LOGIT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Selection:
    """Layers (None: all), query heads of scores and weights (None: all), and how many of the last rows have logits."""

    layers: frozenset[int] | None = None
    heads: tuple[int, ...] | None = None
    logit_rows: int | None = None
    attention: bool = True  # scores and weights, the largest arrays by far

    def keeps(self, name: str) -> bool:
        """Whether an array of this name is recorded. Results outside the layers always are."""
        if not self.attention and name.endswith((".scores", ".weights")):
            return False
        found = _LAYER.match(name)
        return found is None or self.layers is None or int(found[1]) in self.layers

    def check(self, num_layers: int, num_heads: int) -> None:
        """Raise UsageError for layers or heads that the model does not have."""
        _check("layer", self.layers or (), num_layers)
        _check("head", self.heads or (), num_heads)

    def rows_for(self, num_tokens: int, vocab_size: int) -> range:
        """The tokens whose logits are kept: as many of the last as fit, unless a number was asked for."""
        fitting = max(1, MAX_LOGIT_BYTES // (4 * vocab_size))
        count = fitting if self.logit_rows is None else self.logit_rows
        return range(max(0, num_tokens - count), num_tokens)


EVERYTHING = Selection()


def _check(what: str, wanted: Collection[int], count: int) -> None:
    for index in wanted:
        if not 0 <= index < count:
            raise UsageError(f"{what} {index}: the model has {what}s 0 to {count - 1}")


def padded(parts: Sequence[Array], context: int, empty: float) -> Array:
    """Scores or weights of several steps [heads, new tokens, keys of the step] as one [heads, tokens, context]."""
    return np.concatenate(
        [np.pad(p, ((0, 0), (0, 0), (0, context - p.shape[2])), constant_values=empty) for p in parts], axis=1
    )
