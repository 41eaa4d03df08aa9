"""A choice of experts that rounding decides is no mistake, whoever makes it; any other one is."""

from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.reference import departure
from karat.check.model.right.experts import routing_scores
from karat.check.model.weights import CheckpointWeights
from karat.check.record.executors import Steps, record_model
from karat.check.replay import routing
from karat.check.replay.drift import DRIFT_LIMIT, Apart, compare
from karat.check.replay.replay import Replay
from karat.check.trace.format import Trace
from karat.models.registry import build
from karat.ops.api import Op, Route, Routing
from karat.ops.reference import ReferenceOps
from tests.support import mistakes
from tests.support.weights import weight_of

GRAPH, WEIGHTS = mistakes.model_of("qwen3_moe")
ROUTER = "model.layers.0.mlp.gate.weight"
PROMPT = tuple(np.random.default_rng(3).integers(0, GRAPH.config.vocab_size, 24).tolist())


class Otherwise(ReferenceOps):
    """Of experts `twins`, takes the second where the contract takes the first."""

    def __init__(self, twins: dict[int, int]) -> None:
        super().__init__("float32")
        self._twins, self.changed = twins, 0

    def apply(self, op: Op[Any]) -> Any:
        result = super().apply(op)
        if not isinstance(op, Route):
            return result
        ids, weights = np.array(result[0]), result[1]
        for row in ids:
            for place, one in enumerate(row):
                other = self._twins.get(int(one))
                if other is not None and other not in row:
                    row[place] = other
                    self.changed += 1
        return ids, weights


def with_twins(apart: float) -> CheckpointWeights:
    """The router's rows of experts 2n and 2n + 1 are the same, but for this part of them."""
    rows = WEIGHTS.array(ROUTER, np.dtype(np.float32)).copy()
    rows[1::2] = rows[::2] * np.float32(1 - apart)
    return CheckpointWeights({**WEIGHTS.stored, ROUTER: weight_of(rows, "F32", ROUTER)})


def traced(ops: ReferenceOps, weights: CheckpointWeights) -> Trace:
    model = build(GRAPH.config, ops, SimpleNamespace(path="", weights=weights.stored), num_positions=len(PROMPT))
    return record_model(model, Steps(PROMPT), kv_dtype="float32")


@pytest.mark.parametrize("apart", [0.0, 2.0**-23])
def test_a_close_choice_is_rounding(apart: float) -> None:
    """Neither a finding nor, in the whole run, more than rounding does."""
    ops, weights = Otherwise({expert: expert + 1 for expert in range(0, 16, 2)}), with_twins(apart)
    trace = traced(ops, weights)
    assert ops.changed > 10
    diagnosis = Diagnoser(GRAPH, weights, trace).run()
    assert not diagnosis.named and not diagnosis.unexplained
    replay = Replay(GRAPH, weights, trace)
    assert max(drift.ratio for drift in compare(replay).drift) < DRIFT_LIMIT


def test_another_choice_is_a_bug() -> None:
    ops, weights = Otherwise({expert: expert + 1 for expert in range(0, 16, 2)}), with_twins(0.01)
    replay = Replay(GRAPH, weights, traced(ops, weights))
    assert [finding.name for finding in replay.findings() if finding.is_wrong] == [
        "model.layers.0.mlp.chosen_ids",
        "model.layers.0.mlp.chosen_weights",
    ]


@pytest.mark.parametrize("apart", [0.0, 2.0**-23, 0.01])
def test_engines_are_compared_up_to_a_close_choice(apart: float) -> None:
    """Of two, one takes the twin of an expert: of the one whose twin is left out for the first time last."""
    weights = with_twins(apart)
    ours = traced(ReferenceOps("float32"), weights)
    ids = ours.arrays["model.layers.0.mlp.chosen_ids"].astype(int)
    alone = [[one for one in row if one % 2 == 0 and one + 1 not in row] for row in ids]
    first = {one: token for token in reversed(range(len(ids))) for one in alone[token]}
    taken, token = max(first.items(), key=lambda item: item[1])
    other = Otherwise({taken: taken + 1})
    theirs = traced(other, weights)
    assert other.changed and token > 0
    found = departure(Replay(GRAPH, weights, ours), Replay(GRAPH, weights, theirs))
    assert found.leaves == (apart == 0.01)
    assert "model.layers.1" in {drift.name for drift in found.drift}, "tokens before it are compared to the end"


@given(
    parted=st.lists(st.booleans(), min_size=8, max_size=8),
    apart=st.sampled_from([0.001, 1.0]),
    known=st.none() | st.integers(0, 8),
    kept=st.sets(st.integers(0, 7), min_size=1),
)
def test_rows_that_are_compared(parted: list[bool], apart: float, known: int | None, kept: set[int]) -> None:
    """Experts 1 and 2 have logits that are `apart`; `theirs` takes 2 where it `parted`. Tokens `kept` are recorded."""
    tokens = np.array(sorted(kept))
    logits = np.tile([2.0, 1.0 + apart, 1.0, 0.0], (len(tokens), 1))
    ours = np.tile([0.0, 1.0], (len(tokens), 1))
    theirs = np.where(np.array(parted)[tokens, None], [0.0, 2.0], ours)
    floor = np.full((len(tokens), 1), 0.01)
    free: Any = SimpleNamespace(is_close=lambda ids, other: routing.is_close(ids, other, logits, floor))
    nodes = {"ids": SimpleNamespace(kind="chosen_ids"), "x": SimpleNamespace(kind="linear")}
    replay: Any = SimpleNamespace(
        graph=SimpleNamespace(nodes=nodes),
        domain=lambda node: tokens,
        recorded={"ids": SimpleNamespace(values=ours)},
    )
    rows = None if known is None else tokens < known
    beside = Apart()
    first = next((token for token in tokens if parted[token]), None) if apart < 0.01 else None
    for name, results in (("ids", theirs), ("x", np.zeros((len(tokens), 4)))):
        shared = beside.shared(replay, free, name, results, rows)
        assert beside.first == first
        end = min(8 if known is None else known, 8 if first is None else first)
        np.testing.assert_array_equal(np.ones(len(tokens), bool) if shared is None else shared, tokens < end)


def test_marks_of_the_chosen() -> None:
    logits = np.array([[0.5, -1.0, 2.0]])
    np.testing.assert_array_equal(routing.of_chosen(np.array([[0.0, 2.0]]), logits), [[2.0, 0.5]])
    for wrong in ([3.0, 0.0], [-1.0, 0.0], [0.5, 0.0], [2.0, 2.0], [np.nan, 0.0]):
        assert np.isnan(routing.of_chosen(np.array([wrong]), logits)).any(), wrong


@given(
    logits=st.lists(st.floats(-9, 9), min_size=3, max_size=9),
    chosen=st.integers(1, 3),
    moved=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_what_noise_of_the_spread_chooses_is_close(logits: list[float], chosen: int, moved: float, seed: int) -> None:
    right = np.array([logits])
    noise = moved * np.random.default_rng(seed).uniform(-1, 1, right.shape)
    ids, others = (np.argsort(-x, axis=-1, kind="stable")[:, :chosen].astype(float) for x in (right, right + noise))
    assert routing.is_close(others, ids, right, routing.floor_of(right, Routing(chosen, False), 2.0**-24, moved)).all()


@given(
    score=st.sampled_from(["sigmoid", "softmax"]),
    with_bias=st.booleans(),
    size=st.sampled_from([1.0, 4.0, 12.0]),
    seed=st.integers(0, 9999),
)
def test_what_rounded_scores_choose_is_close(
    score: Literal["sigmoid", "softmax"], with_bias: bool, size: float, seed: int
) -> None:
    """An engine ranks scores in bfloat16, with a bias that outweighs logits: those of two may be far apart."""
    rng = np.random.default_rng(seed)
    logits, bias = size * rng.standard_normal((20, 16)), rng.choice([-0.25, 0.0, 0.5], 16)
    rule = Routing(3, True, score, bias="bias" if with_bias else None)
    weights: Any = SimpleNamespace(array=lambda name, dtype: {"bias": bias}[name].astype(dtype))
    scores = torch.from_numpy(routing_scores(logits, rule)).bfloat16().double().numpy()
    if score == "softmax" and not with_bias:
        scores = logits
    ranked, unit = scores + bias * with_bias, 2.0**-8
    marks = routing.marks_of(logits, rule, weights)
    ids, right = (np.argsort(-x, axis=-1, kind="stable")[:, :3].astype(float) for x in (ranked, marks))
    floor = routing.floor_of(marks, rule, unit)
    assert routing.is_close(ids, right, marks, floor).all()
    without = np.argsort(-logits, axis=-1, kind="stable")[:, :3].astype(float)
    missed = np.sort(-marks, axis=-1)[:, 2] - np.take_along_axis(-marks, without.astype(int), axis=-1).max(axis=-1)
    assert not routing.is_close(without, right, marks, floor)[missed < -floor[:, 0]].any(), "a bias that is left out"
