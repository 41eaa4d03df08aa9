"""What is said of stored tensors: values that are not finite are counted, whatever their type; odd ones remarked on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.check.model.checked import open_model
from karat.check.stages.weights import _num_not_finite, check_weights
from karat.checkpoint.weights import PLAIN_BYTES, Weight
from karat.quant import FORMATS
from tests.support.drawn import examples

F32 = np.dtype(np.float32)


@settings(max_examples=examples(60), deadline=None)
@given(dtype=st.sampled_from([*PLAIN_BYTES, "Q8_0", "Q4_K"]), seed=st.integers(0, 2**31))
def test_what_is_not_finite_is_counted(dtype: str, seed: int) -> None:
    """Random bits, in which every kind of NaN and infinity comes up, against widening them."""
    rng = np.random.default_rng(seed)
    size = FORMATS[dtype].block_size if dtype in FORMATS else 8
    num_bytes = FORMATS[dtype].block_bytes if dtype in FORMATS else 8 * PLAIN_BYTES[dtype]
    data = rng.integers(0, 256, 3 * num_bytes, np.uint8)
    if dtype in PLAIN_BYTES and rng.random() < 0.7:
        data.reshape(-1, PLAIN_BYTES[dtype])[rng.integers(0, 24, 5), -1] |= 0x7F
        data.reshape(-1, PLAIN_BYTES[dtype])[rng.integers(0, 24, 5), -2:] = 0xFF
    weight = Weight("w", dtype, (3, size), data, Path("x"))
    if dtype == "F64":  # beyond float32 is infinite for every executor
        expected = np.count_nonzero(~np.isfinite(weight.to_array(F32)))
    else:
        with np.errstate(all="ignore"):
            expected = np.count_nonzero(~np.isfinite(weight.to_array(np.dtype(np.float64))))
    assert _num_not_finite(weight, weight.data) == expected


def test_nan_is_a_fault_and_zeros_and_copies_are_remarks() -> None:
    model = open_model(None)
    names = [f"model.layers.{i}.self_attn.o_proj.weight" for i in (0, 3)]
    first, second = (model.stored[name] for name in names)
    zero = replace(second, stored=np.zeros_like(second.stored))
    minus_zero = replace(second, stored=np.tile(np.array([0, 0x80], np.uint8), len(second.stored) // 2))
    assert second.dtype == "BF16" and np.signbit(minus_zero.to_array(F32)).all()
    broken = np.array(first.stored)
    broken.view("<u2")[[5, 77]] = 0x7FC0
    stored = dict(model.stored) | {"model.norm.weight": replace(model.stored["model.norm.weight"])}
    cases = {
        "same bytes": {names[0]: replace(second, name=names[0])},
        "all zero": {names[1]: zero},
        f"{names[1]} is all zero": {names[1]: minus_zero},
        "2 values are NaN": {names[0]: replace(first, stored=broken)},
    }
    for words, changes in cases.items():
        stage = check_weights(replace(model, stored={**stored, **changes}), with_hf=False)
        assert any(words in line for line in stage.lines), (words, stage.lines)
        assert stage.verdict == ("bug" if "NaN" in words else "flagged")


def test_other_bytes_than_the_safetensors_library_reads_are_a_fault() -> None:
    pytest.importorskip("torch", reason="transformers needs torch")
    model = open_model(None)
    name = "model.layers.2.mlp.up_proj.weight"
    data = np.array(model.stored[name].stored)
    data[1234] ^= 1
    changed = replace(model, stored={**model.stored, name: replace(model.stored[name], stored=data)})
    stage = check_weights(changed, with_hf=True)
    assert stage.verdict == "bug" and stage.facts["faults"] == [
        f"{name}: other bytes than the safetensors library reads"
    ]
