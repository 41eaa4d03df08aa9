"""A mistake with a number of its own is found, also beside another one at the same op: angles, factors, rows.

Shifts by which the slowest pair, turned twice, goes round less than half a turn.

Covers: karat.check.mistakes.fitted_rope.
"""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.check.mistakes.fitted import fits
from karat.check.mistakes.nodes import changed, evaluate
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.tokens import Tokens
from karat.check.trace.format import TraceInfo
from karat.config import RopeConfig, RopeType
from tests.support.drawn import examples

HEAD_DIM = 32
F64 = np.dtype(np.float64)


class NoWeights:
    """RoPE has none."""


def _context(num_tokens: int) -> Context:
    info = TraceInfo(
        token_ids=tuple(range(num_tokens)), positions=tuple(range(num_tokens)), sequences=(0,) * num_tokens
    )
    return Context(NoWeights(), Tokens.of(info), np.arange(num_tokens))  # type: ignore[arg-type]


def _found(beside: dict[str, int], mistake: dict[str, object], seed: int) -> list[dict[str, object]]:
    """What is fitted to the output of a node with both, where the first is known."""
    context = _context(40)
    node = changed(
        Node("q_rope", "rope", ("q",), {"dim": HEAD_DIM, "growth": 0.0, "rope": RopeConfig(theta=10_000.0)}), beside
    )
    x = np.random.default_rng(seed).standard_normal((40, 3, HEAD_DIM))
    got = evaluate(changed(node, mistake), [x], context, F64)
    return [dict(params) for v in fits(node, [x], got, context) for params in v.edits.values()]


turning = st.fixed_dictionaries({}, optional={"times": st.just(2), "direction": st.just(-1)})
seeds = st.integers(0, 2**32 - 1)


@given(turning, st.integers(-8000, 8000).filter(bool), seeds)
@settings(max_examples=examples(60), deadline=None)
def test_a_shift_of_positions_is_found_however_often_and_which_way_a_head_is_turned(
    beside: dict[str, int], shift: int, seed: int
) -> None:
    assert {"positions": shift} in _found(beside, {"positions": shift}, seed)


@given(turning, st.sampled_from([500.0, 1000.0, 50_000.0, 500_000.0, 1_000_000.0]), seeds)
@settings(max_examples=examples(60), deadline=None)
def test_a_base_is_found_however_often_and_which_way_a_head_is_turned(
    beside: dict[str, int], theta: float, seed: int
) -> None:
    bases = {
        params["rope"].theta for params in _found(beside, {"rope": RopeConfig(theta=theta)}, seed) if "rope" in params
    }
    assert theta in bases


@given(st.sampled_from(["default", "linear", "llama3", "yarn"]), st.integers(2000, 90_000), seeds)
@settings(max_examples=examples(60), deadline=None)
def test_a_base_of_five_digits_is_found_in_float32_beside_a_scaling(rope_type: RopeType, theta: int, seed: int) -> None:
    """Of heads so short that the turn from one token to the next does not say the fifth digit."""
    rope = RopeConfig(theta=1e6, rope_type=rope_type, factor=4.0, original_max_position_embeddings=128)
    wrong = RopeConfig(theta=float(theta)) if rope_type == "default" else replace(rope, theta=float(theta))
    node = Node("q_rope", "rope", ("q",), {"dim": 8, "growth": 0.0, "rope": rope})
    x = np.random.default_rng(seed).standard_normal((24, 3, 8)).astype(np.float32)
    context = _context(24)
    got = evaluate(changed(node, {"rope": wrong}), [x], context, np.dtype(np.float32))
    assert wrong in [v.edits["q_rope"].get("rope") for v in fits(node, [x], got, context)]


@given(st.sampled_from(["linear", "llama3", "yarn"]), st.sampled_from([1.5, 3.0, 10.0, 24.0]), seeds)
@settings(max_examples=30, deadline=None)
def test_the_factor_of_a_scaling_is_found(rope_type: RopeType, factor: float, seed: int) -> None:
    """Another one than the model's 4, with the attention_factor that goes with it."""
    rope = RopeConfig(theta=500.0, rope_type=rope_type, factor=4.0, original_max_position_embeddings=64)
    wrong = replace(rope, factor=factor, attention_factor=1.25 if rope_type == "yarn" else 1.0)
    context = _context(40)
    node = Node("q_rope", "rope", ("q",), {"dim": HEAD_DIM, "growth": 0.0, "rope": rope})
    x = np.random.default_rng(seed).standard_normal((40, 3, HEAD_DIM))
    got = evaluate(changed(node, {"rope": wrong}), [x], context, F64)
    found = [v.edits["q_rope"].get("rope") for v in fits(node, [x], got, context)]
    assert any(
        r is not None and r.factor == factor and abs(r.attention_factor - wrong.attention_factor) < 1e-5 for r in found
    )


class Table:
    """An embedding of 32 rows."""

    table = np.random.default_rng(3).standard_normal((32, 8))

    def shape(self, _: str) -> tuple[int, ...]:
        return self.table.shape

    def rows(self, _: str, dtype: np.dtype[np.floating], start: int, stop: int) -> np.ndarray:
        return self.table[start:stop].astype(dtype)


@given(st.dictionaries(st.integers(0, 29), st.integers(-1, 31), min_size=1, max_size=4))
def test_rows_of_an_embedding_that_are_zeros_or_others_are_found(others: dict[int, int]) -> None:
    context = _context(30)
    context.weights = Table()  # type: ignore[assignment]
    node = Node("model.embed_tokens", "embedding", (), {"weight": "w"})
    others = {i: other for i, other in others.items() if i != other}
    got = evaluate(changed(node, {"rows": tuple(others.items())}), [], context, F64)
    found = [dict(v.edits[node.name].get("rows", ())) for v in fits(node, [], got, context)]
    assert not others or others in found


def test_a_row_at_the_edge_of_a_rank_is_said_to_be_there() -> None:
    context = _context(30)
    context.weights = Table()  # type: ignore[assignment]
    node = Node("model.embed_tokens", "embedding", (), {"weight": "w"})
    got = evaluate(changed(node, {"rows": ((15, -1),)}), [], context, F64)
    details = [v.detail for v in fits(node, [], got, context) if "rows" in v.edits[node.name]]
    assert details == ["id 15 reads zeros; the edge of a rank of 2"]


class OneNorm:
    """The weight of a norm over all heads together."""

    weight = np.random.default_rng(4).standard_normal(24)

    def shape(self, _: str) -> tuple[int, ...]:
        return self.weight.shape

    def array(self, _: str, dtype: np.dtype[np.floating]) -> np.ndarray:
        return self.weight.astype(dtype)


@given(st.integers(0, 23), st.sampled_from([{}, {"offset": 1.0}]))
def test_an_element_of_a_norm_over_all_heads_is_found(column: int, beside: dict[str, float]) -> None:
    context = _context(20)
    context.weights = OneNorm()  # type: ignore[assignment]
    node = changed(Node("q_norm", "norm", ("q",), {"weight": "w", "eps": 1e-6, "plus_one": False}), beside)
    x = np.random.default_rng(column).standard_normal((20, 3, 8))
    got = evaluate(changed(node, {"elements": ((column, 0.5),)}), [x], context, F64)
    details = [v.detail for v in fits(node, [x], got, context) if v.bug == "weight-element"]
    assert details == [f"element [{column}] differs by 0.5"]


@given(st.sampled_from([0.5, 1e-3]), st.sampled_from([{}, {"eps_outside": True}]))
def test_the_eps_of_a_norm_over_all_heads_is_found(eps: float, outside: dict[str, bool]) -> None:
    context = _context(20)
    context.weights = OneNorm()  # type: ignore[assignment]
    node = Node("q_norm", "norm", ("q",), {"weight": "w", "eps": 1e-6, "plus_one": False})
    x = np.random.default_rng(1).standard_normal((20, 3, 8))
    got = evaluate(changed(node, {"eps": eps, **outside}), [x], context, F64)
    assert {"eps": eps, **outside} in [dict(v.edits["q_norm"]) for v in fits(node, [x], got, context)]
