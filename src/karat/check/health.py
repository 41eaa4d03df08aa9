"""Good signs and red flags, read from a trace: what a person would look for by eye."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from karat.check.graph import Graph
from karat.check.trace import Trace

_DECISIVE = ("no NaN and no infinity", "attention weights sum to 1")
_SUM_SLACK = 64  # roundings of a softmax that was stored in the engine's type
_ALIKE = 0.999


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing looked at. good is False for a red flag; some flags a healthy model may raise, too (is_decisive)."""

    name: str
    good: bool
    detail: str

    @property
    def is_decisive(self) -> bool:
        """Whether a red flag alone shows that something is wrong."""
        return self.name in _DECISIVE


def signs(graph: Graph, trace: Trace, precision: float) -> list[Sign]:
    """Every sign, in the order of computation. `precision` is half a unit in the last place of the engine's type."""
    arrays = trace.arrays
    found = [_finite(trace)]
    found += _attention(graph, trace, precision)
    found += _projections(graph, trace)
    hidden = [name for name, node in graph.nodes.items() if node.role == "layer" and name in arrays]
    still = [name for name in hidden if len(arrays[name]) > 1 and _all_rows_equal(arrays[name])]
    if hidden and len(set(trace.info.token_ids)) > 1:
        found.append(Sign("hidden states differ between tokens", not still, ", ".join(still[:4])))
    if "lm_head" in arrays and len(arrays["lm_head"]) > 7 and np.isfinite(arrays["lm_head"]).all():
        ids = arrays["lm_head"].reshape(len(trace.rows_of("lm_head")), -1).argmax(axis=-1)
        distinct = len(np.unique(ids))
        found.append(Sign("the likeliest token changes", distinct > 1, f"{distinct} in {len(ids)} rows"))
    return found


def _finite(trace: Trace) -> Sign:
    bad = []
    for name, array in trace.arrays.items():
        wrong = np.isnan(array) | np.isposinf(array) | (np.isneginf(array) & (not name.endswith(".scores")))
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            bad.append(f"{name}{list(where)}")
    return Sign("no NaN and no infinity", not bad, f"first at {bad[0]}, in {len(bad)} results" if bad else "")


def _attention(graph: Graph, trace: Trace, precision: float) -> Iterator[Sign]:
    names = [name for name, node in graph.nodes.items() if node.kind == "softmax" and name in trace.arrays]
    if not names:
        return
    off, same, single, num_heads = 0.0, 0, 0, 0
    flagged: list[str] = []
    for name in names:
        weights = np.asarray(trace.arrays[name], np.float64)  # [heads, tokens, keys]
        off = max(off, float(np.abs(np.nan_to_num(weights, nan=np.inf).sum(axis=-1) - 1).max()))
        late = weights[:, weights.shape[1] // 2 :]
        if late.shape[1] < 3:
            continue
        num_heads += len(weights)
        for head, rows in enumerate(late):
            top = rows.argmax(axis=-1)
            if np.isfinite(rows).all() and (top == top[0]).all() and rows.max(axis=-1).min() > _ALIKE:
                single += 1
                flagged.append(f"{name.removesuffix('.weights')} head {head}")
        same += len(weights) > 1 and bool(np.ptp(weights, axis=0).max() == 0)
    yield Sign("attention weights sum to 1", off <= _SUM_SLACK * precision + 1e-12, f"off by at most {off:.2g}")
    yield Sign("heads differ from each other", same == 0, f"identical in {same} of {len(names)} layers" if same else "")
    if num_heads:
        detail = f"{single} of {num_heads} heads look at one position only" + (f": {flagged[0]}" if flagged else "")
        yield Sign("heads look at more than one position", single < max(1, num_heads // 2), detail)


def _projections(graph: Graph, trace: Trace) -> Iterator[Sign]:
    arrays = trace.arrays
    zero, unturned, turned = [], [], 0
    positions = np.array(trace.info.positions)
    for name, node in graph.nodes.items():
        if node.kind == "linear" and node.params.get("head_dim") and name in arrays and not arrays[name].any():
            zero.append(name)
        if node.kind == "rope" and name in arrays and node.inputs[0] in arrays:
            before = np.asarray(arrays[node.inputs[0]]).reshape(len(positions), -1)
            after = np.asarray(arrays[name]).reshape(len(positions), -1)
            if (positions > 0).any():
                turned += 1
                if np.array_equal(before[positions > 0], after[positions > 0]):
                    unturned.append(name)
    if any(node.kind == "linear" and node.params.get("head_dim") and n in arrays for n, node in graph.nodes.items()):
        yield Sign("q, k and v are not all zero", not zero, ", ".join(zero[:4]))
    if turned:
        yield Sign("RoPE changes q and k", not unturned, ", ".join(unturned[:4]))


def _all_rows_equal(array: np.ndarray) -> bool:
    rows = array.reshape(-1, array.shape[-1])
    return bool((rows == rows[0]).all())
