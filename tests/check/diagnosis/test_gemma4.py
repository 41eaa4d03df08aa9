"""What only Gemma 4 has is named where it is wrong: v, the number of a layer, a proportional RoPE, experts' GELU.

The wrong engine is an executor with one wrong function.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.record.executors import Steps, record_model
from karat.check.replay.finding import LIMIT
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace
from karat.models.registry import build
from karat.ops.api import Experts, L2Norm, Op, PagedAttention, Rope, Scale, ScaleBy, SoftCap
from karat.ops.executor import Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.ops.rope_table import cos_sin_table
from tests.support import mistakes

MODELS = {family: mistakes.model_of(family) for family in ("gemma4_text", "gemma4_unified_text")}
PROMPT = tuple(np.random.default_rng(3).integers(0, 64, 48).tolist())  # longer than the windows


class Other(ReferenceOps):
    """Computes what `change` makes of each op; it sees the results before."""

    def __init__(self, change: Callable[["Other", Op[Any]], Op[Any]]) -> None:
        super().__init__("float32")
        self._change = change
        self.k: Any = None  # of the latest layer: what k_proj gives, and after its norm

    def apply(self, op: Op[Any]) -> Any:
        result = super().apply(self._change(self, op))
        if getattr(op, "name", "").endswith("k_norm"):
            self.k = result
        return result


def traced(family: str, ops: Executor) -> Trace:
    graph, weights = MODELS[family]
    model = build(graph.config, ops, SimpleNamespace(path="", weights=weights.stored), num_positions=len(PROMPT))
    return record_model(model, Steps(PROMPT), kv_dtype="float32")


def _v_of_normed_k(ops: Other, op: Op[Any]) -> Op[Any]:
    return replace(op, x=ops.k) if isinstance(op, L2Norm) and "layers.1." in op.name else op


def _unscaled(_: Other, op: Op[Any]) -> Op[Any]:
    return Scale(op.x, 1.0, name=op.name) if isinstance(op, ScaleBy) else op


def _partial(_: Other, op: Op[Any]) -> Op[Any]:
    """Of the first quarter of a head, with frequencies of its own, in layers that see all keys."""
    if not isinstance(op, Rope) or "layers.1." not in op.name:
        return op
    config = MODELS["gemma4_text"][0].config.rope
    size, count = op.x.shape[-1] // 4, len(op.table.cos)
    plain = replace(config, rope_type="default")
    table = cos_sin_table(plain, head_dim=size, num_positions=count, dtype=np.dtype(np.float32))
    return replace(op, table=table)


def _of(kind: type[Op[Any]], **fields: Any) -> Callable[[Other, Op[Any]], Op[Any]]:
    return lambda _, op: replace(op, **fields) if isinstance(op, kind) else op


WRONG: dict[str, tuple[str, str, Callable[[Other, Op[Any]], Op[Any]]]] = {
    "v of k after its norm": ("gemma4_text", "v-norm", _v_of_normed_k),
    "the layer's number left out": ("gemma4_text", "multiplier", _unscaled),
    "proportional taken as partial": ("gemma4_text", "rope-partial", _partial),
    "logits without a cap": (
        "gemma4_text",
        "softcap",
        lambda _, op: Scale(op.x, 1.0, name=op.name) if isinstance(op, SoftCap) else op,
    ),
    "experts with silu": ("gemma4_text", "activation", _of(Experts, by_gelu=False)),
    "scores that are scaled": ("gemma4_unified_text", "scale-wrong", _of(PagedAttention, scale=128**-0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_it_is_named(wrong: str) -> None:
    family, bug, change = WRONG[wrong]
    graph, weights = MODELS[family]
    diagnosis = Diagnoser(graph, weights, traced(family, Other(change))).run()
    assert {classes for named in diagnosis.named for classes in named.classes} == {frozenset({bug})}
    assert not diagnosis.unexplained


def executors() -> list[Executor]:
    native = [] if unavailable_reason() else [NativeOps(threads=2)]
    return [ReferenceOps("float64"), ReferenceOps("float32"), *native]


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("ops", executors(), ids=lambda ops: f"{ops.executor}-{ops.dtype}")
def test_what_is_right_stays_within_the_floor(ops: Executor, family: str) -> None:
    graph, weights = MODELS[family]
    findings = Replay(graph, weights, traced(family, ops)).findings()
    assert {finding.name for finding in findings} >= {"lm_head", "model.layers.1", "model.layers.0.self_attn.v_norm"}
    assert max(finding.ratio for finding in findings) < LIMIT / 2
