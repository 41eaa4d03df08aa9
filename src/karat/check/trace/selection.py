"""Which results a trace keeps."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karat.check.trace.format import Array, Trace
from karat.errors import UsageError

_LAYER = re.compile(r"model\.layers\.(\d+)(?:\.|$)")
_TOKENS = re.compile(r"(-?\d+)(?:-(-?\d+))?")
MAX_LOGIT_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Selection:
    """What is recorded. None stands for all layers, all query heads of scores and weights, all rows of logits that fit.

    logit_rows: the number of last tokens whose logits are kept.
    """

    layers: frozenset[int] | None = None
    heads: tuple[int, ...] | None = None
    logit_rows: int | None = None
    attention: bool = True  # scores and weights, the largest arrays by far

    def keeps(self, name: str) -> bool:
        """Whether an array of this name is recorded. Results outside the layers are always recorded."""
        if not self.attention and name.endswith((".scores", ".weights")):
            return False
        found = _LAYER.match(name)
        return found is None or self.layers is None or int(found[1]) in self.layers

    def check(self, num_layers: int, num_heads: int) -> None:
        """Raise UsageError for layers or heads that the model does not have."""
        _check("layer", self.layers or (), num_layers)
        _check("head", self.heads or (), num_heads)

    def rows_for(self, num_tokens: int, vocab_size: int) -> range:
        """The tokens whose logits are kept: the last `logit_rows`, or the last that fit MAX_LOGIT_BYTES in float32."""
        fitting = max(1, MAX_LOGIT_BYTES // (4 * vocab_size))
        count = fitting if self.logit_rows is None else self.logit_rows
        return range(max(0, num_tokens - count), num_tokens)


EVERYTHING = Selection()


def _check(what: str, wanted: Collection[int], count: int) -> None:
    for index in wanted:
        if not 0 <= index < count:
            raise UsageError(f"{what} {index}: the model has {what}s 0 to {count - 1}")


def tokens_of(text: str, total: int) -> tuple[int, ...]:
    """The token indices of a list such as "0,5,17-20,-1", in order; negative ones count from the end of `total` tokens.

    Raises UsageError.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _TOKENS.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"tokens {text!r}: expected indices and ranges, from the end where negative: 0,5,17-20,-1")
        ends = [int(end) for end in match.groups() if end is not None]
        for end in ends:
            if not -total <= end < total:
                raise UsageError(f"token {end}: the trace has tokens 0 to {total - 1}, or -{total} to -1 from the end")
        first, last = (end % total for end in (ends[0], ends[-1]))
        if last < first:
            raise UsageError(f"tokens {part.strip()}: token {last} comes before token {first}")
        found |= {*range(first, last + 1)}
    return tuple(sorted(found))


def only_tokens(trace: Trace, tokens: Collection[int]) -> Trace:
    """The trace with the rows of these tokens alone. Arrays without such rows are left out; RoPE's frequencies stay."""
    arrays, rows = {}, {}
    for name, array in trace.arrays.items():
        if name.endswith("inv_freq"):
            arrays[name] = array
            continue
        there = trace.rows_of(name)
        chosen = np.flatnonzero(np.isin(there, list(tokens)))
        if not len(chosen):
            continue
        arrays[name] = array[:, chosen] if name.endswith((".scores", ".weights")) else array[chosen]
        if len(chosen) < trace.info.num_tokens:
            rows[name] = tuple(there[chosen].tolist())
    heads = {name: found for name, found in trace.info.heads.items() if name in arrays}
    return Trace(replace(trace.info, rows=rows, heads=heads), arrays, trace.path)


def padded(parts: Sequence[Array], context: int, empty: float) -> Array:
    """Scores or weights of several steps [heads, new tokens, keys of the step] as one [heads, tokens, context].

    Keys behind the last token, which an engine has in the slots of a block, are left out.
    """
    cut = [part[:, :, :context] for part in parts]
    return np.concatenate(
        [np.pad(p, ((0, 0), (0, 0), (0, context - p.shape[2])), constant_values=empty) for p in cut], axis=1
    )
