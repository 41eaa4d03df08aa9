"""A gate that is computed wrongly is named, whether it is one of elements, of heads or of rows.

No family has gates yet, so the model is Karat's llama with gates put in. The wrong engine is an executor with one wrong
function.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.record.executors import Steps, record_model
from karat.check.replay.finding import LIMIT
from karat.check.replay.replay import Replay
from karat.check.trace.format import Array, Trace
from karat.models.registry import build
from karat.ops.api import Op, SigmoidMul
from karat.ops.executor import Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.support import mistakes
from tests.support.gated import gated

GRAPH, WEIGHTS = mistakes.model_of(mistakes.GATED)
PROMPT = tuple(np.random.default_rng(3).integers(0, GRAPH.config.vocab_size, 24).tolist())
GATES = {name: weight for name, weight in WEIGHTS.stored.items() if "gate_proj" in name and "self_attn" in name}

Wrong = Callable[[Array, Array], Array]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Other(ReferenceOps):
    """`wrong` of x and a gate of its shape in place of sigmoid_mul."""

    def __init__(self, wrong: Wrong, spread: Callable[[Array, int], Array] = lambda gate, n: gate.repeat(n, 1)) -> None:
        super().__init__("float32")
        self._wrong, self._spread = wrong, spread

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, SigmoidMul):
            return self._wrong(op.x, self._spread(op.gate, op.x.shape[1] // op.gate.shape[1])).astype(self.dtype)
        return super().apply(op)


def traced(ops: Executor) -> Trace:
    others = {name: weight for name, weight in WEIGHTS.stored.items() if name not in GATES}
    model = build(GRAPH.config, ops, SimpleNamespace(path="", weights=others), num_positions=len(PROMPT))
    with gated({name: ops.load(weight) for name, weight in GATES.items()}):
        return record_model(model, Steps(PROMPT), kv_dtype="float32")


EVERYWHERE = (0, 1, 2)
WRONG: dict[str, tuple[Other, tuple[int, ...]]] = {
    "left out": (Other(lambda x, gate: x), EVERYWHERE),
    "tanh": (Other(lambda x, gate: x * np.tanh(gate)), EVERYWHERE),
    "silu": (Other(lambda x, gate: x * gate * sigmoid(gate)), EVERYWHERE),
    "softplus": (Other(lambda x, gate: x * np.log1p(np.exp(gate))), EVERYWHERE),
    "nothing": (Other(lambda x, gate: x * gate), EVERYWHERE),
    "tiled": (Other(lambda x, gate: x * sigmoid(gate), lambda gate, n: np.tile(gate, n)), (1,)),  # gates by head
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gate_is_named(wrong: str) -> None:
    executor, layers = WRONG[wrong]
    diagnosis = Diagnoser(GRAPH, WEIGHTS, traced(executor)).run()
    (named,) = diagnosis.named
    assert named.classes == (frozenset({"gate"}),)
    assert all(wrong in detail for detail in named.details)
    assert named.places == tuple(f"model.layers.{layer}.self_attn.gated" for layer in layers)
    assert not diagnosis.unexplained


def executors() -> list[Executor]:
    native = [] if unavailable_reason() else [NativeOps(threads=2)]
    return [ReferenceOps("float64"), ReferenceOps("float32"), *native]


@pytest.mark.parametrize("ops", executors(), ids=lambda ops: f"{ops.executor}-{ops.dtype}")
def test_right_gates_stay_within_the_floor(ops: Executor) -> None:
    findings = Replay(GRAPH, WEIGHTS, traced(ops)).findings()
    assert {finding.name for finding in findings} >= {f"model.layers.{layer}.self_attn.gated" for layer in EVERYWHERE}
    assert max(finding.ratio for finding in findings) < LIMIT / 2
