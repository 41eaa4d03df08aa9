"""What an unknown key says by its value alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.neutral import says_nothing

WORDS = st.sampled_from("foo alibi frobs scale_emb dropout num_frobs residual_scale no_rope_layers".split())


@given(WORDS, st.sampled_from([None, "", [], {}, (), False, 0, 0.0, -0.0]))
def test_nothing_is_nothing(name: str, value: object) -> None:
    assert says_nothing(name, value) and says_nothing(f"{name}.of_layers", value)


@given(WORDS, st.sampled_from([True, "0", [0], {"a": None}, 2, -1, 0.5, 1e-30, float("nan")]))
def test_whatever_else_is_said_may_change_a_result(name: str, value: object) -> None:
    assert not says_nothing(name, value)


@pytest.mark.parametrize("name", ["residual_scale", "scale_emb", "rope.factor", "a_multiplier", "moe_step", "X.SCALE"])
def test_one_is_nothing_of_a_factor(name: str) -> None:
    assert says_nothing(name, 1) and says_nothing(name, 1.0) and not says_nothing(name, True)


@pytest.mark.parametrize(
    "name", ["softmax_scale", "attention.scale", "qk_scale", "attn_factor", "query_pre_attn_scale", "escalefoo", "foo"]
)
def test_one_is_something_of_a_scale_of_scores_and_of_other_numbers(name: str) -> None:
    assert not says_nothing(name, 1)


@pytest.mark.parametrize(
    "name", ["use_rope", "rope", "is_causal_attention", "rms_norm", "use_swiglu", "rotary_pct", "gated_mlp"]
)
def test_what_every_model_has_is_not_taken_away(name: str) -> None:
    assert not says_nothing(name, False) and not says_nothing(name, 0) and says_nothing(name, None)
