"""A result that is multiplied by a wrong number is named, whether in a layer or at an end of the model."""

from collections.abc import Callable
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
from karat.ops.api import Op, Scale
from karat.ops.executor import Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.support import mistakes

GRAPH, WEIGHTS = mistakes.model_of("granite")
PROMPT = tuple(np.random.default_rng(3).integers(0, GRAPH.config.vocab_size, 24).tolist())
LAYERS = {f"model.layers.{layer}.{part}_scaled" for layer in range(2) for part in ("attention", "mlp")}
PLACES = LAYERS | {"model.embed_tokens_scaled", "lm_head_input"}


class Other(ReferenceOps):
    """Multiplies by `wrong` of the factor."""

    def __init__(self, wrong: Callable[[float], float]) -> None:
        super().__init__("float32")
        self._wrong = wrong

    def apply(self, op: Op[Any]) -> Any:
        return op.x * np.float32(self._wrong(op.factor)) if isinstance(op, Scale) else super().apply(op)


def traced(ops: Executor) -> Trace:
    files = SimpleNamespace(path="", weights=WEIGHTS.stored)
    model = build(GRAPH.config, ops, files, num_positions=len(PROMPT))
    return record_model(model, Steps(PROMPT), kv_dtype="float32")


WRONG: dict[str, Callable[[float], float]] = {
    "left out": lambda factor: 1,
    "applied twice": lambda factor: factor * factor,
    "divided by": lambda factor: 1 / factor,
    "instead of": lambda factor: factor / 3 + 0.1,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_multiplier_is_named(wrong: str) -> None:
    diagnosis = Diagnoser(GRAPH, WEIGHTS, traced(Other(WRONG[wrong]))).run()
    assert {classes for named in diagnosis.named for classes in named.classes} == {frozenset({"multiplier"})}
    assert all(wrong in detail for named in diagnosis.named for detail in named.details)
    assert {place for named in diagnosis.named for place in named.places} == PLACES
    assert not diagnosis.unexplained


def executors() -> list[Executor]:
    native = [] if unavailable_reason() else [NativeOps(threads=2)]
    return [ReferenceOps("float64"), ReferenceOps("float32"), *native]


@pytest.mark.parametrize("ops", executors(), ids=lambda ops: f"{ops.executor}-{ops.dtype}")
def test_right_multipliers_stay_within_the_floor(ops: Executor) -> None:
    findings = Replay(GRAPH, WEIGHTS, traced(ops)).findings()
    assert {finding.name for finding in findings} >= PLACES
    assert max(finding.ratio for finding in findings) < LIMIT / 2
