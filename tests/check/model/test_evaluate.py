"""The right functions of experts against the reference executor: no family has them yet, so no sweep runs them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from karat.check.model.context import Context
from karat.check.model.evaluate import evaluate
from karat.check.model.graph import Node
from karat.ops.api import Routing
from karat.ops.leaves import leaf_ends
from karat.ops.reference import ReferenceOps

F64 = np.dtype(np.float64)
BIASES = ("gate_biases", "up_biases", "down_biases")


@given(experts=st.integers(1, 12), chosen=st.integers(1, 4), renormalised=st.booleans(), seed=st.integers(0, 999))
def test_experts_are_the_reference_executors(experts: int, chosen: int, renormalised: bool, seed: int) -> None:
    """Logits are quarters, so some are equal. 1e-12: only the order of sums differs."""
    chosen, rng, ops = min(chosen, experts), np.random.default_rng(seed), ReferenceOps("float64")
    logits, x = rng.integers(-9, 9, (7, experts)) / 4, rng.standard_normal((7, 6))
    arrays = {
        name: [rng.standard_normal(shape) for _ in range(experts)]
        for name, shape in (("gates", (5, 6)), ("ups", (5, 6)), ("downs", (6, 5)))
    }
    names = {name: tuple(f"{name}.{number}" for number in range(experts)) for name in arrays}
    held = {name: array for kind in arrays for name, array in zip(names[kind], arrays[kind], strict=True)}
    weights: Any = SimpleNamespace(
        array=lambda name, dtype: held[name], shape=lambda name: held[name].shape, stored_type=lambda name: "F32"
    )
    context = Context(weights, tokens=SimpleNamespace(), logit_rows=np.arange(0))  # type: ignore[arg-type]

    routing = Routing(chosen, renormalised=renormalised)
    want_ids, want_weights = ops.route(logits, routing, names=("ids", "weights"))
    ids = evaluate(Node("ids", "chosen_ids", ("logits",), {"routing": routing}), [logits], context, F64)
    np.testing.assert_array_equal(ids, want_ids)
    params: dict[str, Any] = {"routing": routing}
    by = evaluate(Node("weights", "chosen_weights", ("logits", "ids"), params), [logits, ids], context, F64)
    np.testing.assert_allclose(by, want_weights, rtol=1e-12)
    node = Node(
        "mlp", "experts", ("x", "ids", "weights"), {**names, "by_gelu": False, "clamp": None, **dict.fromkeys(BIASES)}
    )
    given_ = evaluate(node, [x, ids, by], context, F64)
    matrices = (tuple(arrays[name]) for name in arrays)
    want = ops.experts(x, want_ids, want_weights, *matrices, leaves=leaf_ends(experts, 1), name="mlp")
    np.testing.assert_allclose(given_, want, rtol=1e-12, atol=1e-12)
