"""Partial traces, as engines write them: some results, some tokens, some heads, some layers."""

import random
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from karat.check.trace.format import Trace

# What is left: results drawn at random; the same tokens of every result; some tokens of some results; some heads of
# scores and weights; all results of some layers and, of the others, nothing or their output.
WAYS = ("results", "tokens", "rows", "heads", "layers", "layers and outputs")


def thinned(trace: Trace, rng: random.Random, way: str, *, keep: Collection[int] = ()) -> Trace:
    """A part of a full trace of one sequence. Layers in `keep` stay complete, in any way but "tokens"."""
    total = trace.info.num_tokens
    chosen = _some(rng, total)
    share = rng.choice((0.1, 0.5, 0.8))
    complete = {*keep, *(layer for layer in range(len(trace.arrays)) if rng.random() < 0.4)}
    arrays, rows, heads = {}, {}, {}
    for name, array in trace.arrays.items():
        x = np.asarray(array)
        layer = _layer_of(name)
        spared = name.startswith("model.rotary_emb") or (layer in keep and way != "tokens")
        is_attention = name.endswith((".scores", ".weights"))
        match "all" if spared else way:
            case "results" if rng.random() > share:
                continue
            case "layers" if layer is not None and layer not in complete:
                continue
            case "layers and outputs" if layer is not None and layer not in complete and name.count(".") > 2:
                continue
            case "heads" if is_attention:
                heads[name] = _some(rng, len(x))
                x = x[list(heads[name])]
            case "tokens" | "rows" if way == "tokens" or rng.random() < 0.4:
                rows[name] = chosen if way == "tokens" else _some(rng, total)
                index = list(rows[name])
                x = x[:, index] if is_attention else x[index]
        arrays[name] = x
    return Trace(replace(trace.info, rows=rows, heads=heads), arrays)


def _some(rng: random.Random, count: int) -> tuple[int, ...]:
    """At least one of the numbers below `count`, ascending."""
    return tuple(sorted(rng.sample(range(count), rng.randrange(1, count + 1))))


def _layer_of(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else None
