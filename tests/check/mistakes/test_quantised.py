"""Blocks read wrongly: every mistake changes what is read, has a name, and is what another reader makes of it.

Covers: karat.check.mistakes.six_bits.
"""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from karat.check.mistakes import six_bits
from karat.check.mistakes.bugs import BUGS
from karat.check.mistakes.quantised import misread, mistakes
from karat.checkpoint.weights import Weight
from karat.quant import FORMATS

pytest.importorskip("torch", reason="the zoo breaks models of transformers")
from tools.zoo import faults_quant, quant_readers

SEED = int(os.environ.get("KARAT_SEED", "20261121"), 36) % 2**31
QUANTISABLE = [name for name, format_ in FORMATS.items() if format_.pack is not None]
_ORDERS = [({"order": "high first"}, "nibbles exchanged"), ({"order": "in turn"}, "nibbles in turn")]
_UPPER = [({"upper": False}, "upper bits")]
_SHIFTS = [({"shift": 1}, "scale: 1"), ({"shift": -1}, "scale: -1")]
_SIGNS = [({"sign": -1}, "minimum: 2"), ({"sign": 0}, "minimum: 1")]
_SUB_SHIFTS = [({"sub_shift": 1}, "sub-scale: 1"), ({"sub_shift": -1}, "sub-scale: -1")]
_SIX = [({"sub_shift": 1}, "six bits: 1"), ({"sub_shift": -1}, "six bits: -1")]
_SIGNED_SIX = [*_SIX, ({"whole": False}, "six bits, low"), ({"less": 0}, "six bits, unsigned")]
HOW = {  # every mistake of the zoo, and what it is called here
    "Q4_0": [*_ORDERS, ({"offset": 0}, "offset: 8"), ({"offset": 7}, "offset: 1"), *_SHIFTS],
    "Q4_1": [*_ORDERS, *_SIGNS, *_SHIFTS],
    "Q5_0": [*_ORDERS, *_UPPER, ({"offset": 0}, "offset: 16"), ({"offset": 15}, "offset: 1"), *_SHIFTS],
    "Q5_1": [*_ORDERS, *_UPPER, *_SIGNS, *_SHIFTS],
    "Q8_0": [({"signed": False}, "unsigned"), *_SHIFTS],
    "Q2_K": [*_SIGNS, *_SHIFTS, *_SUB_SHIFTS],
    "Q3_K": [*_UPPER, ({"offset": 0}, "offset: 4"), ({"offset": 3}, "offset: 1"), *_SHIFTS, *_SIGNED_SIX],
    "Q4_K": [*_ORDERS, *_SIGNS, *_SHIFTS, *_SIX, ({"whole": False}, "six bits")],
    "Q5_K": [*_ORDERS, *_UPPER, *_SIGNS, *_SHIFTS, *_SIX, ({"whole": False}, "six bits")],
    "Q6_K": [
        *_UPPER,
        ({"offset": 0}, "offset: 32"),
        ({"offset": 31}, "offset: 1"),
        *_SHIFTS,
        *_SUB_SHIFTS,
        ({"signed": False}, "unsigned scales"),
    ],
    "IQ4_NL": [*_ORDERS, *_SHIFTS],
    "IQ4_XS": [*_ORDERS, *_SHIFTS, *_SIGNED_SIX],
    "MXFP4": [*_ORDERS, *_SHIFTS],
}


def drawn(stored: str) -> Weight:
    values = np.random.default_rng(SEED).standard_normal((6, 512), np.float32)
    blocks = FORMATS[stored].quantize(values.reshape(-1, FORMATS[stored].block_size))
    return Weight("w", stored, values.shape, blocks.reshape(-1), Path("nowhere"))


@pytest.mark.parametrize("stored", QUANTISABLE)
def test_the_zoos_readers_are_right_without_a_mistake(stored: str) -> None:
    """Against the gguf package."""
    weight = drawn(stored)
    blocks = weight.data.reshape(-1, FORMATS[stored].block_bytes)
    right = gguf.quants.dequantize(weight.data, gguf.GGMLQuantizationType[stored])
    np.testing.assert_allclose(quant_readers.READERS[stored](blocks).reshape(-1), right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("stored", "options", "how"), [(s, o, h) for s, pairs in HOW.items() for o, h in pairs])
def test_a_mistake_is_what_an_independent_reader_makes_of_it(stored: str, options: dict[str, int], how: str) -> None:
    weight = drawn(stored)
    theirs = quant_readers.READERS[stored](weight.data.reshape(-1, FORMATS[stored].block_bytes), **options)
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


@pytest.mark.parametrize("stored", QUANTISABLE)
def test_the_zoo_makes_every_mistake_that_is_known(stored: str) -> None:
    tables = (faults_quant.NIBBLES, faults_quant.ZERO, faults_quant.MINIMA, faults_quant.SCALES)
    made = {tuple(mistake.items()) for table in tables for mistake in table.get(stored, ())}
    assert made == {tuple(options.items()) for options, _ in HOW[stored]}
    beyond_the_zoo = {"offset: -1"} if any(how.startswith("offset") for _, how in HOW[stored]) else set()
    assert {how for how, _, _ in mistakes(stored)} == {how for _, how in HOW[stored]} | beyond_the_zoo


@pytest.mark.parametrize("stored", six_bits.PLACES)
def test_scales_of_six_bits_are_put_where_they_were_taken_from(stored: str) -> None:
    rng = np.random.default_rng(SEED)
    blocks = rng.integers(0, 256, (50, FORMATS[stored].block_bytes), np.uint8)
    scales = six_bits.taken(stored, blocks)
    assert scales.max() == 63 and np.array_equal(six_bits.put(stored, blocks, scales), blocks)
    others = rng.integers(0, 64, scales.shape, np.uint8)
    assert np.array_equal(six_bits.taken(stored, six_bits.put(stored, blocks, others)), others)
