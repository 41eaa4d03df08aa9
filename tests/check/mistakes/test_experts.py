"""Wrong routers and wrong experts are named with their layer; right ones stay within the floor."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser, Diagnosis
from karat.check.mistakes.experts import CLAMPED
from karat.check.model.right.elementwise import silu
from karat.check.model.right.experts import Inner, inner
from karat.check.record.executors import Steps, record_model
from karat.check.replay.finding import LIMIT
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace
from karat.models.registry import build
from karat.ops.api import Add, Experts, Linear, Op, PagedAttention, Route, SigmoidMul
from karat.ops.executor import Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.support import mistakes
from tests.support.biased import BIAS

GRAPH, WEIGHTS = mistakes.model_of("qwen3_moe")
PROMPT = tuple(np.random.default_rng(3).integers(0, GRAPH.config.vocab_size, 24).tolist())
MLP = "model.layers.0.mlp"  # layer 1 has no experts
Change = Callable[[Any], Any]


class Other(ReferenceOps):
    """Computes each mixture after `before` has changed the record, and changes results of the router by `after`."""

    def __init__(self, before: Change = lambda op: op, after: Change = lambda routed: routed) -> None:
        super().__init__("float32")
        self._before, self._after = before, after

    def apply(self, op: Op[Any]) -> Any:
        if not isinstance(op, Route | Experts):
            return super().apply(op)
        result = super().apply(self._before(op))
        return self._after(result) if isinstance(op, Route) else result


def traced(ops: Executor) -> Trace:
    files = SimpleNamespace(path="", weights=WEIGHTS.stored)
    model = build(GRAPH.config, ops, files, num_positions=len(PROMPT))
    return record_model(model, Steps(PROMPT), kv_dtype="float32")


def diagnosed(ops: Executor) -> Diagnosis:
    return Diagnoser(GRAPH, WEIGHTS, traced(ops)).run()


def of_experts(**changes: Callable[[Experts], Any]) -> Change:
    return lambda op: replace(op, **{k: f(op) for k, f in changes.items()}) if isinstance(op, Experts) else op


def of_stacks(cut: Callable[[Any, Any], tuple[Any, Any]]) -> Change:
    """gate and up of each expert, as `cut` takes them out of both."""

    def change(op: Any) -> Any:
        if not isinstance(op, Experts):
            return op
        pairs = [cut(gate, up) for gate, up in zip(op.gates, op.ups, strict=True)]
        return replace(op, gates=tuple(gate for gate, _ in pairs), ups=tuple(up for _, up in pairs))

    return change


def every_second(gate: Any, up: Any) -> tuple[Any, Any]:
    both = np.concatenate([gate, up])
    return both[::2], both[1::2]


def halves(gate: Any, up: Any) -> tuple[Any, Any]:
    both = np.stack([gate, up], axis=1).reshape(-1, gate.shape[1])
    return both[: len(gate)], both[len(gate) :]


def sorted_ids(routed: Any) -> Any:
    return np.sort(routed[0], axis=-1), routed[1]


WRONG: dict[str, tuple[Executor, str, str]] = {
    "softmax before top-k, and no sum": (
        Other(lambda op: replace(op, routing=replace(op.routing, renormalised=False)) if isinstance(op, Route) else op),
        "expert-weights",
        "do not add up to 1",
    ),
    "the weights stay where they were": (Other(after=sorted_ids), "expert-weights", "the largest first"),
    "the router gives no weights": (Other(after=lambda r: (r[0], np.ones_like(r[1]))), "expert-weights", "all 1"),
    "the router gives equal weights": (
        Other(after=lambda r: (r[0], np.full_like(r[1], 1 / r[1].shape[-1]))),
        "expert-weights",
        "all equal",
    ),
    "no weights": (Other(of_experts(weights=lambda op: np.ones_like(op.weights))), "expert-weights", "all 1"),
    "ids from 1 on": (Other(after=lambda r: ((r[0] + 1) % 16, r[1])), "expert-choice", "the next expert"),
    "experts off by one": (
        Other(
            of_experts(
                **{k: lambda op, k=k: getattr(op, k)[1:] + getattr(op, k)[:1] for k in ("gates", "ups", "downs")}
            )
        ),
        "expert-matrices",
        "those of the next expert",
    ),
    "only down is off by one": (
        Other(of_experts(downs=lambda op: op.downs[1:] + op.downs[:1])),
        "expert-matrices",
        "the next one's down",
    ),
    "gate and up exchanged": (Other(of_stacks(lambda gate, up: (up, gate))), "gate-up-swapped", "of each expert"),
    "gate and up interleaved": (Other(of_stacks(every_second)), "gate-up-split", "every second row of halves"),
    "interleaved rows read as halves": (Other(of_stacks(halves)), "gate-up-split", "halves of every second row"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_mixture_is_named(wrong: str) -> None:
    ops, bug, detail = WRONG[wrong]
    diagnosis = diagnosed(ops)
    assert {classes for named in diagnosis.named for classes in named.classes} == {frozenset({bug})}
    assert all(detail in text for named in diagnosis.named for text in named.details)
    places = {place for named in diagnosis.named for place in named.places}
    assert places and all(place.startswith(MLP) for place in places)
    assert not diagnosis.unexplained


BY_BIAS, BIASED = mistakes.model_of(mistakes.BIASED)


class ByBias(ReferenceOps):
    """Routes by sigmoid and bias: whether the choice has the bias, and whether the weight has it."""

    def __init__(self, *, choice: bool = True, weight: bool = False) -> None:
        super().__init__("float32")
        self._choice, self._weight = choice, weight

    def apply(self, op: Op[Any]) -> Any:
        if not isinstance(op, Route):
            return super().apply(op)
        bias, scores = BIASED.array(f"model.layers.0.{BIAS}", np.dtype(np.float32)), 1 / (1 + np.exp(-op.logits))
        ids = np.argsort(-(scores + bias * self._choice), axis=-1)[:, : op.routing.num_chosen].astype(np.int32)
        weights = np.take_along_axis(scores + bias * self._weight, ids, axis=-1)
        return ids, (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


ROUTERS = {
    "the bias is forgotten": (ByBias(choice=False), "expert-choice", "the router's bias"),
    "the bias is in the weight": (ByBias(weight=True), "expert-weights", "for choosing only"),
}


@pytest.mark.parametrize("wrong", [None, *ROUTERS])
def test_a_wrong_bias_of_the_choice_is_named(wrong: str | None) -> None:
    ops, bug, detail = ROUTERS[wrong] if wrong else (ByBias(), "", "")
    diagnosis = Diagnoser(BY_BIAS, BIASED, traced(ops)).run()
    assert not diagnosis.unexplained
    assert [named.classes for named in diagnosis.named] == ([(frozenset({bug}),)] if wrong else [])
    assert all(detail in text for named in diagnosis.named for text in named.details)


@pytest.mark.parametrize("part", ["router", "sinks", "shared", "gate"])
def test_a_part_that_is_forgotten_is_named(part: str) -> None:
    """gpt-oss' bias of the router and its sinks, left out or scaled; Qwen2's shared expert, and what it is made of."""
    family = "gpt_oss" if part in ("router", "sinks") else "qwen2_moe"
    graph, weights = mistakes.model_of(family)
    for ops, bug, detail in FORGOTTEN[part]:
        files = SimpleNamespace(path="", weights=weights.stored)
        model = build(graph.config, ops, files, num_positions=len(PROMPT))
        trace = record_model(model, Steps(PROMPT), kv_dtype="float32")
        diagnosis = Diagnoser(graph, weights, trace).run()
        assert not diagnosis.unexplained
        assert {classes for named in diagnosis.named for classes in named.classes} == {frozenset({bug})}, diagnosis
        assert all(detail in text for named in diagnosis.named for text in named.details)


class Changed(ReferenceOps):
    """Computes each op after `change` has changed its record."""

    def __init__(self, change: Change) -> None:
        super().__init__("float32")
        self._change = change

    def apply(self, op: Op[Any]) -> Any:
        return super().apply(self._change(op))


class WeightedWithoutBias(ReferenceOps):
    """Chooses by the router's logits, and weights by its product alone."""

    def apply(self, op: Op[Any]) -> Any:
        routed = super().apply(op)
        if not isinstance(op, Route):
            return routed
        bias = mistakes.model_of("gpt_oss")[1].array(
            op.names[0].replace("chosen_ids", "router.bias"), np.dtype(np.float32)
        )
        chosen = np.take_along_axis(op.logits - bias, routed[0], axis=-1)
        powers = np.exp(chosen - chosen.max(axis=-1, keepdims=True))
        return routed[0], (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)


def of_kind(kind: type, role: str, change: Change) -> Changed:
    return Changed(lambda op: change(op) if isinstance(op, kind) and op.name.endswith(role) else op)


FORGOTTEN: dict[str, list[tuple[Executor, str, str]]] = {
    "router": [
        (of_kind(Linear, "mlp.router", lambda op: replace(op, bias=None)), "bias-missing", "no bias"),
        (WeightedWithoutBias("float32"), "expert-weights", "the router's bias is left out of them"),
    ],
    "sinks": [
        (of_kind(PagedAttention, "", lambda op: replace(op, sinks=None)), "sinks", "left out"),
        (of_kind(PagedAttention, "", lambda op: replace(op, sinks=op.sinks * op.scale)), "sinks", "by the scale"),
    ],
    "shared": [
        (of_kind(Add, ".mlp", lambda op: replace(op, y=0 * op.y)), "shared-expert", "left out"),
        (
            of_kind(Linear, "expert.down_proj", lambda op: replace(op, weight=op.weight.reshape(op.weight.T.shape).T)),
            "transposed",
            "mlp.shared_expert.down_proj",
        ),
    ],
    "gate": [
        (of_kind(SigmoidMul, "gated", lambda op: replace(op, gate=np.full_like(op.gate, 40))), "gate", "left out"),
    ],
}


def executors() -> list[Executor]:
    native = [] if unavailable_reason() else [NativeOps(threads=2)]
    return [ReferenceOps("float64"), ReferenceOps("float32"), *native]


@pytest.mark.parametrize("ops", executors(), ids=lambda ops: f"{ops.executor}-{ops.dtype}")
def test_right_mixtures_stay_within_the_floor(ops: Executor) -> None:
    findings = Replay(GRAPH, WEIGHTS, traced(ops)).findings()
    assert {finding.name for finding in findings} >= {f"{MLP}.{part}" for part in ("gate", "chosen_ids")} | {MLP}
    assert max(finding.ratio for finding in findings) < LIMIT / 2


@pytest.mark.parametrize("name", CLAMPED)
def test_a_wrong_clamp_beside_a_clamp_that_is_left_out_is_computed(name: str) -> None:
    """As pairs of mistakes are: one of them says that there is no clamp."""
    gate, up = np.random.default_rng(0).standard_normal((2, 3, 5))
    assert np.isfinite(CLAMPED[name](inner, Inner(gate, up, None, silu))).all()
