"""RoPE tables: frequencies against transformers' own, cosine and sine against exact arithmetic."""

import random
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.config import RopeConfig
from karat.ops.rope_table import cos_sin, cos_sin_table, growths, inverse_frequencies


def exact_cos_sin(angle: float) -> tuple[Decimal, Decimal]:
    """By Taylor series in 120 digits, with no range reduction: slow, obvious, independent."""
    with localcontext() as context:
        context.prec = 120
        x = Decimal(angle)
        cos, sin, term, k = Decimal(0), Decimal(0), Decimal(1), 0
        while abs(term) > Decimal(10) ** -40 or k < abs(x):
            sign = -1 if k % 4 >= 2 else 1
            if k % 2:
                sin += sign * term
            else:
                cos += sign * term
            k += 1
            term = term * x / k
        return cos, sin


@given(st.floats(0, 60, width=32) | st.integers(0, 40).map(lambda k: float(np.float32(k * np.pi / 2))))
def test_cos_sin_are_exact_to_the_last_bit_of_float64(angle: float) -> None:
    cos, sin = cos_sin(np.array([angle]))
    exact_cos, exact_sin = exact_cos_sin(angle)
    assert abs(Decimal(float(cos[0])) - exact_cos) < Decimal("3e-16")
    assert abs(Decimal(float(sin[0])) - exact_sin) < Decimal("3e-16")


@given(st.floats(0, 2.0**20, width=32))
def test_large_angles(angle: float) -> None:
    """Against the C library, which reduces exactly: positions up to a million."""
    cos, sin = cos_sin(np.array([angle]))
    assert abs(cos[0] - np.cos(np.float64(angle))) < 4e-16
    assert abs(sin[0] - np.sin(np.float64(angle))) < 4e-16


def test_table_is_rounded_once() -> None:
    rope = RopeConfig(
        theta=10000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.25
    )
    wide = cos_sin_table(rope, head_dim=20, num_positions=300, dtype=np.dtype(np.float64))
    narrow = cos_sin_table(rope, head_dim=20, num_positions=300, dtype=np.dtype(np.float32))
    assert narrow.cos.dtype == narrow.sin.dtype == np.float32
    np.testing.assert_array_equal(narrow.cos, wide.cos.astype(np.float32))
    np.testing.assert_array_equal(narrow.sin, wide.sin.astype(np.float32))
    np.testing.assert_allclose(np.hypot(wide.cos, wide.sin), 1.25, rtol=1e-15)


def test_growth_is_transformers_and_multiplies_the_table() -> None:
    """To a last bit of float32: torch's logarithm is not always rounded correctly."""
    torch = pytest.importorskip("torch")
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    rope = RopeConfig(theta=1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=7)
    positions = np.arange(3000)
    factors = growths(rope, 0.1, positions)
    theirs = get_llama_4_attn_scale(torch.tensor([positions.tolist()]), 0.1, 7).numpy().reshape(-1)
    np.testing.assert_allclose(factors, theirs, rtol=2.0**-22)
    assert factors[[0, 6, 7]] == pytest.approx([1, 1, 1 + 0.1 * np.log(2)], rel=1e-7)
    grown, plain = (
        cos_sin_table(rope, head_dim=8, num_positions=3000, dtype=np.dtype(np.float64), growth=growth)
        for growth in (0.1, 0.0)
    )
    np.testing.assert_array_equal(grown.cos, plain.cos * factors[:, None])
    np.testing.assert_array_equal(grown.sin, plain.sin * factors[:, None])


@pytest.mark.parametrize("index", range(40))
def test_frequencies_equal_transformers(index: int) -> None:
    """Within a few last bits: torch's float32 power is not always rounded correctly."""
    pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tests.support.random_models import draw_rope

    rng = random.Random(index)
    raw: dict[str, Any] = draw_rope(rng)
    head_dim = rng.choice([8, 20, 34, 64, 80, 128])
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, rope_parameters=raw)
    )
    from karat.models.reader import ConfigReader
    from karat.models.ropes import read_rope

    rope = read_rope(ConfigReader({"rope_parameters": raw}), 512)
    ours = inverse_frequencies(rope, head_dim)
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=4 * 2.0**-23)
    assert rope.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-15)


def test_a_long_table_is_made_of_the_same_rows() -> None:
    """It is computed in pieces; every position must have its own angle."""
    rope = RopeConfig(theta=10000.0)
    table = cos_sin_table(rope, head_dim=8, num_positions=5000, dtype=np.dtype(np.float64))
    angles = np.arange(5000, dtype=np.float32)[:, None] * inverse_frequencies(rope, 8)
    np.testing.assert_allclose(table.cos, np.cos(angles.astype(np.float64)), rtol=0, atol=4e-16)
    np.testing.assert_allclose(table.sin, np.sin(angles.astype(np.float64)), rtol=0, atol=4e-16)
