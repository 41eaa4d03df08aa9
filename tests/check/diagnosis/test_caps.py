"""What only Gemma has is named where it is wrong: caps, GELU, norms of 1 + weight, a RoPE of its own behind windows.

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
from karat.ops.api import GeluMul, Op, PagedAttention, RmsNorm, Scale, SiluMul, SoftCap
from karat.ops.executor import Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.support import mistakes

MODELS = {family: mistakes.model_of(family) for family in ("gemma2", "gemma3_text")}
PROMPT = tuple(np.random.default_rng(3).integers(0, 64, 48).tolist())  # longer than the windows
Change = Callable[[Op[Any]], Op[Any]]


class Other(ReferenceOps):
    """Computes what `change` makes of each op."""

    def __init__(self, change: Change) -> None:
        super().__init__("float32")
        self._change = change

    def apply(self, op: Op[Any]) -> Any:
        return super().apply(self._change(op))


def traced(family: str, ops: Executor) -> Trace:
    graph, weights = MODELS[family]
    model = build(graph.config, ops, SimpleNamespace(path="", weights=weights.stored), num_positions=len(PROMPT))
    return record_model(model, Steps(PROMPT), kv_dtype="float32")


def of(kind: type[Op[Any]], change: Change) -> Change:
    return lambda op: change(op) if isinstance(op, kind) else op


SILU = of(GeluMul, lambda op: SiluMul(op.gate, op.up, name=op.name))  # type: ignore[attr-defined]
WRONG: dict[str, tuple[str, str, Change]] = {
    "scores without a cap": ("gemma2", "softcap", of(PagedAttention, lambda op: replace(op, cap=None))),
    "scores with another cap": ("gemma2", "softcap", of(PagedAttention, lambda op: replace(op, cap=20.0))),
    "logits without a cap": ("gemma2", "softcap", of(SoftCap, lambda op: Scale(op.x, 1.0, name=op.name))),  # type: ignore[attr-defined]
    "logits with another cap": ("gemma3_text", "softcap", of(SoftCap, lambda op: replace(op, cap=15.0))),
    "silu": ("gemma3_text", "activation", SILU),
    "a norm without 1": ("gemma2", "norm-offset", of(RmsNorm, lambda op: replace(op, plus_one=False))),
    "the window by one": (
        "gemma3_text",
        "mask-window",
        of(PagedAttention, lambda op: replace(op, window=op.window and op.window - 1)),  # type: ignore[attr-defined]
    ),
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
    assert {finding.name for finding in findings} >= {"lm_head", "model.layers.1.mlp.act"}
    assert max(finding.ratio for finding in findings) < LIMIT / 2
