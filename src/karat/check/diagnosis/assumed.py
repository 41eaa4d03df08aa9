"""Roundings that a trace does not state: of a narrower cache, and of activations before a product.

Neither is a mistake, and both look like one. They are tried before any mistake. A result that they explain is rounding,
and the diagnosis says what it took for granted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from karat.check.replay.distances import distance
from karat.check.replay.finding import Finding
from karat.check.replay.noise import PRECISION
from karat.check.replay.replay import Replay
from karat.check.trace.format import TraceInfo
from karat.config import FloatName
from karat.quant import FORMATS

CACHES: tuple[FloatName, ...] = ("float16", "bfloat16")
_SCREENED = 3  # wrong results that are tried first; the rest are tried only if one of these is explained
# A cache's rounding is reproduced, but for numbers that fall to the other side of a tie: half of the error may be left.
_LEFT_BY_CACHE = 0.5
# Rounded activations cannot be reproduced, and only raise the floor. So the errors must be as large as such rounding
# makes them, and all results behind such a product must be off.
_LEAST_OF_ACTIVATIONS, _MANY = 0.05, 4
STATE_ALL = ("karat ", "transformers ")  # executors whose traces leave nothing out


@dataclass(frozen=True, slots=True)
class Assumed:
    """Roundings that are taken for granted; None: none of that kind."""

    kv_dtype: FloatName | None = None
    activations: str | None = None

    @property
    def what(self) -> str:
        """In words: a float16 cache."""
        parts = [] if self.kv_dtype is None else [f"a {self.kv_dtype} cache"]
        parts += [] if self.activations is None else [f"activations rounded as {self.activations} rounds them"]
        return " and ".join(parts)

    def text(self, *, alone: bool = True) -> str:
        """What explains the results, and what the trace should state. alone: no mistake is left beside it."""
        stated = [] if self.kv_dtype is None else [f'kv_dtype="{self.kv_dtype}"']
        stated += [] if self.activations is None else [f'activations="{self.activations}"']
        if not alone:
            return f"taken for granted: {self.what}, which the trace does not state"
        text = f"explained by {self.what}, which the trace does not state"
        if self.activations is None:
            return f"{text}: state {stated[0]}"
        return (
            f"{text}: is this an engine that rounds activations, as llama.cpp does? State {' and '.join(stated)} then; "
            'of an engine that does not, it is a bug: state activations="none"'
        )


def assumptions(replay: Replay) -> Iterator[Assumed]:
    """The roundings that this trace may leave out, the likeliest first."""
    info = replay.trace.info
    if info.executor.startswith(STATE_ALL):
        return
    narrower: list[FloatName] = [name for name in CACHES if info.kv_dtype is None and PRECISION[name] > replay.unit]
    yield from (Assumed(kv_dtype) for kv_dtype in narrower)
    if info.activations is None and any(_has_blocks(replay, name) for name in replay.graph.nodes):
        yield from (Assumed(kv_dtype, "ggml") for kv_dtype in (None, *narrower[:1]))


def info_with(info: TraceInfo, assumed: Assumed) -> TraceInfo:
    """The trace's description with the assumed roundings stated."""
    return replace(
        info, kv_dtype=assumed.kv_dtype or info.kv_dtype, activations=assumed.activations or info.activations
    )


def explains(replay: Replay, assumed: Assumed, findings: Sequence[Finding]) -> bool:
    """Whether results that are wrong in `findings` are right in `replay`, which has the roundings of `assumed`.

    For a cache some of the wrong results are enough, as a mistake may be there too. For activations it takes all.
    """
    wrong = [finding for finding in findings if finding.is_wrong]
    if assumed.activations is None and not any(_is_closer(replay, finding) for finding in wrong[:_SCREENED]):
        return False
    right = 0
    largest = 0.0
    for number, before in enumerate(wrong):
        (after,) = replay.findings((before.name,))
        if not after.is_wrong and (assumed.activations is not None or after.error <= _LEFT_BY_CACHE * before.error):
            right += 1
            largest = max(largest, after.ratio)
        elif assumed.activations is not None or (number + 1 >= _SCREENED and not right):
            return False
    return right > 0 if assumed.activations is None else largest >= _LEAST_OF_ACTIVATIONS


def _is_closer(replay: Replay, finding: Finding) -> bool:
    """Whether the error of a wrong result is at most half of what it was; its floor is not measured for this."""
    recorded = replay.recorded[finding.name]
    error = distance(recorded.values, replay.run(finding.segment))
    if recorded.present is not None:
        error = np.where(recorded.present, error, 0)
    return float(error.max()) <= _LEFT_BY_CACHE * finding.error


def is_throughout(replay: Replay, findings: Sequence[Finding]) -> bool:
    """Whether nine of ten results behind a product with blocks are wrong, and there are at least four such results."""
    held = [finding for finding in findings if any(_has_blocks(replay, name) for name in finding.segment)]
    return len(held) >= _MANY and sum(finding.is_wrong for finding in held) >= 0.9 * len(held)


def _has_blocks(replay: Replay, name: str) -> bool:
    """Whether an op is a product with a weight that is stored in blocks."""
    node = replay.graph.nodes[name]
    return node.kind == "linear" and replay.context.weights.stored_type(node.params["weight"]) in FORMATS
