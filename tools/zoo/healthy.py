"""Runs without a fault, of everything that may round differently: the diagnosis may name none of them.

`python -m tools.zoo healthy --cases 1000` draws a model and a way to run it for each. Kinds take turns: transformers in
float32 and bfloat16; Karat's executors, with a cache of float16 too; weights stored in every block format (random
blocks of those that Karat only reads); every sum in another order (one number after the other, as another BLAS might);
linears computed by shards, and traces that hold the shards of several ranks; traces that say what their prompt was
and what was generated; and models with recurrent layers.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.record.executors import record_model
from karat.check.record.hf import record_hf
from karat.check.replay.gathering import gathered
from karat.check.trace.format import Trace
from karat.models.registry import build
from karat.ops.reference import ReferenceOps
from karat.ops.registry import create
from karat.quant import FORMATS
from tests.support import forward
from tools.zoo.fault import linears, replace_linear
from tools.zoo.faults_linear import Sharded
from tools.zoo.faults_tokens import token_run
from tools.zoo.models import Subject, draw

RECURRENT = ("qwen3_5_text", "qwen3_5_moe_text")
KINDS = (
    "transformers",
    "transformers bfloat16",
    "reference",
    "native",
    "float16 cache",
    "sums in order",
    "shards",
    "ranks",
    "prompt and generation",
    *(f"{family} {side}" for family in RECURRENT for side in ("native", "transformers")),
    *(f"{name} {side}" for name in FORMATS for side in ("native", "transformers")),
)


def subject_of(kind: str, seed: str) -> Subject:
    first = kind.split()[0]
    if first in FORMATS:
        return draw(seed, stored=first)
    if first in RECURRENT:
        return draw(seed, family=first)
    if kind == "transformers bfloat16":
        return draw(seed, stored="BF16", dtype=torch.bfloat16)
    if kind == "ranks":  # sizes that two ranks share
        return draw(
            seed,
            changes={"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 64},
        )
    return draw(seed)


def trace_of(kind: str, subject: Subject) -> Trace:
    """A right run of the subject."""
    side = kind.split()[-1]
    if kind == "sums in order":
        with summed_in_order():
            return record_hf(subject.hf, subject.steps)
    if kind == "shards":
        shard(subject)
    if kind == "ranks":
        return in_ranks(record_hf(subject.hf, subject.steps), subject)
    if side in ("transformers", "bfloat16", "shards"):
        return record_hf(subject.hf, subject.steps)
    ops = create("auto") if side == "native" else ReferenceOps("float32")
    if subject.checkpoint.is_quantised:
        model = build(subject.graph.config, ops, subject.checkpoint, num_positions=len(subject.steps.prompt))
    else:
        model = forward.from_transformers(subject.raw, subject.hf, ops)
    return record_model(model, subject.steps, kv_dtype="float16" if kind == "float16 cache" else None)


@contextmanager
def summed_in_order() -> Iterator[None]:
    """Linear layers that add up one product after the other in float32."""
    original = torch.nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows, columns = x.reshape(-1, x.shape[-1]).numpy(), weight.detach().numpy()
        parts = [np.add.accumulate(row[None] * columns, axis=1)[:, -1] for row in rows]
        out = torch.from_numpy(np.stack(parts)).reshape(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    torch.nn.functional.linear = linear
    try:
        yield
    finally:
        torch.nn.functional.linear = original


def shard(subject: Subject) -> None:
    """Every linear by as many ranks as divide it, summed as ranks sum."""
    for layer in subject.hf.model.layers:
        for name, module in linears(layer).items():
            row_parallel = name in ("o", "down")
            size = module.weight.shape[1 if row_parallel else 0]
            n = next(n for n in (4, 2, 3, 5, 1) if size % n == 0)
            parts = list(module.weight.data.chunk(n, dim=1 if row_parallel else 0))
            replace_linear(layer, name, Sharded(parts, module.bias, "row" if row_parallel else "column"))


def in_ranks(trace: Trace, subject: Subject) -> Trace:
    """The same run as two ranks would have written it: heads and inner features are split, and each rank has all the
    rest.
    """
    split_by_columns = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "act")
    split_by_heads = ("q_norm", "k_norm", "q_rope", "k_rope", "attention")
    axes = dict.fromkeys((*split_by_columns, *split_by_heads), 1) | {"scores": 0, "weights": 0}
    shape = subject.graph.config.shape(0)  # families of the zoo have layers alike
    heads = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    arrays: dict[str, Any] = {}
    for name, array in trace.arrays.items():
        part = name.rpartition(".")[2]
        x = np.asarray(array)
        if part in axes and name.startswith("model.layers."):
            if part[:2] in ("q_", "k_", "v_") and x.ndim == 2:
                x = x.reshape(len(x), heads[part[0]], -1)
            for rank, piece in enumerate(np.split(x, 2, axis=axes[part])):
                arrays[f"{name}@{rank}"] = np.ascontiguousarray(piece)
        else:
            arrays |= {f"{name}@{rank}": x for rank in range(2)}
    whole, differing = gathered(subject.graph, Trace(replace(trace.info, ranks=2), arrays))
    assert not differing
    return whole


def one_run(kind: str, seed: str) -> tuple[float, list[str]]:
    """A right run: its largest ratio to the floor, and the results that were called wrong."""
    if kind == "prompt and generation":
        run = token_run(None, seed)
        assert run is not None
        return run.ratio, [*run.said, *run.wrong]
    subject = subject_of(kind, seed)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace_of(kind, subject), seconds=1).run()
    names = [bug for named in diagnosis.named for bug in sorted(named.bugs)]
    return max(finding.ratio for finding in diagnosis.findings), names + [w.finding.name for w in diagnosis.unexplained]


def healthy(cases: int, seed: str) -> int:
    """Print the findings of each kind; return the number of runs that were called wrong."""
    kinds = list(KINDS)
    random.Random(seed).shuffle(kinds)
    runs: Counter[str] = Counter()
    said: Counter[str] = Counter()
    largest: dict[str, float] = {}
    for index in range(cases):
        kind = kinds[index % len(kinds)]
        ratio, wrong = one_run(kind, f"{seed}-healthy-{index}")
        runs[kind] += 1
        largest[kind] = max(largest.get(kind, 0.0), ratio)
        if wrong:
            said[kind] += 1
            print(f"<!-- {seed}-healthy-{index} {kind}: {wrong} -->", flush=True)
    print("| runs | number | called wrong | largest ratio to the floor |\n|---|---|---|---|")
    for kind in KINDS:
        if runs[kind]:
            print(f"| {kind} | {runs[kind]} | {said[kind]} | {largest[kind]:.2f} |")
    total = sum(said.values())
    print(f"\n{cases} healthy runs: {total} called wrong; largest ratio {max(largest.values()):.2f}; seed {seed}")
    return total
