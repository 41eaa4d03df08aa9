"""Tensors of a GGUF file that hold one number of the model, once for each element of a head."""

from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint.gguf.repeated import read_repeated
from karat.checkpoint.weights import Weight
from karat.errors import ConfigError
from karat.models.families import FAMILIES

FORM = FAMILIES["muse_glimmer_text"].gguf


def tensors(q: list[list[float]], k: list[float]) -> dict[str, Weight]:
    each = {f"blk.{layer}.attn_q_norm.weight": values for layer, values in enumerate(q)}
    arrays = {name: np.array(values, "<f4") for name, values in (each | {"blk.0.attn_k_norm.weight": k}).items()}
    arrays["blk.0.attn_norm.weight"] = np.array([0.5, 1.5], "<f4")
    return {
        name: Weight(name, "F32", array.shape, array.view(np.uint8), Path("file.gguf"))
        for name, array in arrays.items()
    }


def test_one_number_is_the_key_and_others_stay() -> None:
    left = tensors([[3.87] * 4, [3.87] * 4], [1.0] * 4)
    assert read_repeated(left, FORM) == {"qk_scale_factor": 3.87}
    assert list(left) == ["blk.0.attn_norm.weight"]
    assert read_repeated(left, FORM) == {} and len(left) == 1


@pytest.mark.parametrize(
    ("q", "k", "told"),
    [
        ([[3.87, 3.87, 4.0]], [1.0], "blk.0.attn_q_norm.weight has values from 3.87 to 4; expected one number"),
        ([[3.87], [4.0]], [1.0], "blk.1.attn_q_norm.weight has values from 4 to 4; expected one number, the same in"),
        ([[3.87]], [2.0], "blk.0.attn_k_norm.weight has values from 2 to 2; expected 1 alone"),
    ],
)
def test_other_numbers_are_refused(q: list[list[float]], k: list[float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_repeated(tensors(q, k), FORM)
