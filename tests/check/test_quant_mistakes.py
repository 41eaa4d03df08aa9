"""Blocks read wrongly: every mistake changes what is read, has a name, and is what another reader makes of it."""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from karat.check.catalogue import BUGS
from karat.check.quant_mistakes import misread, mistakes
from karat.checkpoint.weights import Weight
from karat.quant import FORMATS

pytest.importorskip("torch", reason="the zoo breaks models of transformers")
from tools.zoo import faults_quant

SEED = int(os.environ.get("KARAT_SEED", "20261121"), 36) % 2**31
QUANTISABLE = [name for name, format_ in FORMATS.items() if format_.pack is not None]
ZOO = {"Q4_0": faults_quant.q4_0, "Q4_1": faults_quant.q4_1, "Q8_0": faults_quant.q8_0, "Q4_K": faults_quant.q4_k,
       "Q6_K": faults_quant.q6_k}  # fmt: skip
HOW = {  # the zoo's mistake, and what it is called here
    "Q4_0": [({"order": "high first"}, "nibbles exchanged"), ({"order": "in turn"}, "nibbles in turn"),
             ({"offset": 0}, "offset: 8"), ({"offset": 7}, "offset: 1"), ({"shift": 1}, "scale: 1")],
    "Q4_1": [({"sign": -1}, "minimum: 2"), ({"sign": 0}, "minimum: 1"), ({"shift": -1}, "scale: -1")],
    "Q8_0": [({"signed": False}, "unsigned"), ({"shift": 1}, "scale: 1")],
    "Q4_K": [({"order": "in turn"}, "nibbles in turn"), ({"sign": -1}, "minimum: 2"), ({"whole": False}, "six bits")],
    "Q6_K": [({"offset": 31}, "offset: 1"), ({"sub_shift": 1}, "sub-scale: 1"), ({"shift": -1}, "scale: -1")],
}  # fmt: skip


def drawn(stored: str) -> Weight:
    values = np.random.default_rng(SEED).standard_normal((6, 512), np.float32)
    blocks = FORMATS[stored].quantize(values.reshape(-1, FORMATS[stored].block_size))
    return Weight("w", stored, values.shape, blocks.reshape(-1), Path("nowhere"))


@pytest.mark.parametrize("stored", ZOO)
def test_the_zoos_readers_are_right_without_a_mistake(stored: str) -> None:
    """Against the gguf package."""
    weight = drawn(stored)
    blocks = weight.data.reshape(-1, FORMATS[stored].block_bytes)
    right = gguf.quants.dequantize(weight.data, gguf.GGMLQuantizationType[stored])
    np.testing.assert_allclose(faults_quant.read_as(stored, blocks).reshape(-1), right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("stored", "options", "how"), [(s, o, h) for s, pairs in HOW.items() for o, h in pairs])
def test_a_mistake_is_what_an_independent_reader_makes_of_it(stored: str, options: dict[str, int], how: str) -> None:
    weight = drawn(stored)
    theirs = faults_quant.read_as(stored, weight.data.reshape(-1, FORMATS[stored].block_bytes), **options)
    np.testing.assert_allclose(misread(weight, how).reshape(-1), theirs.reshape(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stored", QUANTISABLE)
def test_every_mistake_changes_what_is_read_and_has_a_name(stored: str) -> None:
    weight = drawn(stored)
    right = weight.to_array(np.dtype(np.float32))
    found = list(mistakes(stored))
    assert found, "there is a way to get every format wrong"
    seen = [right]
    for how, bug, detail in found:
        values = misread(weight, how)
        assert bug in BUGS and detail.startswith(stored)
        assert all(np.abs(values - other).max() > 1e-4 for other in seen), f"{how} cannot be told from another"
        seen.append(values)
    assert np.array_equal(misread(weight, "no such mistake"), right)
