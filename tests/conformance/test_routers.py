"""Every form of `Routing` is that of transformers' routers, which compute the same logits here: their weight is 1.

In float64, to 1e-12: only the order of sums differs. They do not sort what they choose, so it is compared by id.
"""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.ops.api import Groups, Routing
from karat.ops.reference import ReferenceOps

torch = pytest.importorskip("torch", reason="transformers needs torch")

Made = tuple[Any, tuple[Any, ...], Routing]  # transformers' router, what it takes beside the logits, ours


def _theirs(family: str, router: str, config: SimpleNamespace) -> Any:
    return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), router)(config)


def _deepseek(config: SimpleNamespace, bias: Any) -> Made:
    router = _theirs("deepseek_v3", "DeepseekV3TopkRouter", config)
    router.e_score_correction_bias.copy_(bias)
    return (
        router,
        (),
        Routing(
            config.num_experts_per_tok,
            config.norm_topk_prob,
            "sigmoid",
            bias=router.e_score_correction_bias.double().numpy(),
            groups=Groups(config.n_group, config.topk_group),
            plus=1e-20,
            scale=config.routed_scaling_factor,
        ),
    )


def _mistral(config: SimpleNamespace, bias: Any) -> Made:
    groups = Groups(config.n_group, config.topk_group, 0.0)
    scale = config.routed_scaling_factor
    chosen, renormalised = config.num_experts_per_tok, config.norm_topk_prob
    return (
        _theirs("mistral4", "Mistral4TopkRouter", config),
        (),
        Routing(chosen, renormalised, groups=groups, plus=1e-20, scale=scale),
    )


def _lfm2(config: SimpleNamespace, bias: Any) -> Made:
    routing = Routing(
        config.num_experts_per_tok,
        config.norm_topk_prob,
        "sigmoid",
        bias=bias.numpy() if config.use_expert_bias else None,
        plus=1e-6,
        scale=config.routed_scaling_factor,
    )
    return _theirs("lfm2_moe", "Lfm2MoeTopKRouter", config), (bias,), routing


def _ernie(config: SimpleNamespace, bias: Any) -> Made:
    router = _theirs("ernie4_5_moe", "Ernie4_5_MoeTopKRouter", config)
    router.moe_statics.e_score_correction_bias.copy_(bias)
    held = router.moe_statics.e_score_correction_bias.double().numpy().ravel()
    return router, (), Routing(config.num_experts_per_tok, True, bias=held, least=config.moe_norm_min)


def _minimax(config: SimpleNamespace, bias: Any) -> Made:
    return (
        _theirs("minimax_m2", "MiniMaxM2TopKRouter", config),
        (bias,),
        Routing(config.num_experts_per_tok, True, "sigmoid", bias=bias.numpy()),
    )


def _granite(config: SimpleNamespace, bias: Any) -> Made:
    return _theirs("granitemoe", "GraniteMoeTopKRouter", config), (), Routing(config.num_experts_per_tok, True)


@pytest.mark.parametrize("make", [_deepseek, _mistral, _lfm2, _ernie, _minimax, _granite])
@given(
    size=st.integers(2, 8),
    groups=st.integers(1, 6),
    renormalised=st.booleans(),
    biased=st.booleans(),
    least=st.sampled_from([1e-12, 0.75]),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=25)
def test_a_router_is_transformers_own(
    make: Callable[..., Made], size: int, groups: int, renormalised: bool, biased: bool, least: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    experts, chosen_groups = size * groups, int(rng.integers(1, groups + 1))
    chosen = int(rng.integers(1, size * chosen_groups + 1))
    config = SimpleNamespace(
        hidden_size=experts,
        num_experts=experts,
        num_local_experts=experts,
        num_experts_per_tok=chosen,
        norm_topk_prob=renormalised,
        use_expert_bias=biased,
        n_group=groups,
        topk_group=chosen_groups,
        routed_scaling_factor=float(rng.choice([1.0, 2.5])),
        moe_norm_min=least,
    )
    logits = rng.standard_normal((7, experts)) * 2
    from tests.support.float64 import Widen  # which needs torch

    with torch.no_grad(), Widen():
        router, beside, routing = make(config, torch.from_numpy(rng.standard_normal(experts) / 4))
        router = router.double()
        router.weight.copy_(torch.eye(experts, dtype=torch.float64))
        given_ = router(torch.from_numpy(logits), *beside)
    want_weights, want_ids = (each.numpy() for each in given_[1:])
    ids, weights = ReferenceOps("float64").route(logits, routing, names=("ids", "weights"))
    for row in range(len(logits)):
        order, theirs = np.argsort(ids[row]), np.argsort(want_ids[row])
        np.testing.assert_array_equal(ids[row][order], want_ids[row][theirs])
        np.testing.assert_allclose(weights[row][order], want_weights[row][theirs], rtol=1e-12)
