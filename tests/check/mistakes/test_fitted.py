"""A mistake with a number of its own is found beside another one at the same op: shift and base of rotary angles.

Shifts by which the slowest pair, turned twice, goes round less than half a turn.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.check.mistakes.fitted import fits
from karat.check.mistakes.nodes import changed, evaluate
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.tokens import Tokens
from karat.check.trace.format import TraceInfo
from karat.config import RopeConfig

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
    node = changed(Node("q_rope", "rope", ("q",), {"rope": RopeConfig(theta=10_000.0)}), beside)
    x = np.random.default_rng(seed).standard_normal((40, 3, HEAD_DIM))
    got = evaluate(changed(node, mistake), [x], context, F64)
    return [dict(params) for v in fits(node, [x], got, context) for params in v.edits.values()]


turning = st.fixed_dictionaries({}, optional={"times": st.just(2), "direction": st.just(-1)})
seeds = st.integers(0, 2**32 - 1)


@given(turning, st.integers(-8000, 8000).filter(bool), seeds)
@settings(max_examples=60, deadline=None)
def test_a_shift_of_positions_is_found_however_often_and_which_way_a_head_is_turned(
    beside: dict[str, int], shift: int, seed: int
) -> None:
    assert {"positions": shift} in _found(beside, {"positions": shift}, seed)


@given(turning, st.sampled_from([500.0, 1000.0, 50_000.0, 500_000.0, 1_000_000.0]), seeds)
@settings(max_examples=60, deadline=None)
def test_a_base_is_found_however_often_and_which_way_a_head_is_turned(
    beside: dict[str, int], theta: float, seed: int
) -> None:
    bases = {
        params["rope"].theta for params in _found(beside, {"rope": RopeConfig(theta=theta)}, seed) if "rope" in params
    }
    assert theta in bases
