"""Codes, scales and minimums are the same numbers as the values of `dequantize`, and codes reach both extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.quant import CODINGS, FORMATS, GGML_FORMATS
from tests.support.golden import COMPUTED_AS_STORED

GGML = {format_.name for format_ in GGML_FORMATS.values()}


def test_every_format_with_kernels_of_integers_has_codes() -> None:
    assert {stored for stored in COMPUTED_AS_STORED if stored in GGML} == set(CODINGS)


@pytest.mark.parametrize("name", CODINGS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_scale_times_code_plus_minimum_is_the_value(name: str, seed: int) -> None:
    format_, coding = FORMATS[name], CODINGS[name]
    blocks = np.random.default_rng(seed).integers(0, 256, (50, format_.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        codes, scales, minimums = coding.read(blocks)
        values = np.repeat(scales, coding.sub_block, axis=1) * codes.astype(np.float32)
        if minimums is not None:
            values = values + np.repeat(minimums, coding.sub_block, axis=1)
    np.testing.assert_array_equal(values, format_.dequantize(blocks))
    assert codes.dtype == np.int8 and scales.shape == (50, format_.block_size // coding.sub_block)


@pytest.mark.parametrize("name", CODINGS)
def test_the_extremes_of_codes_are_reached_and_not_passed(name: str) -> None:
    format_, coding = FORMATS[name], CODINGS[name]
    blocks = np.random.default_rng(5).integers(0, 256, (500, format_.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        codes, *_ = coding.read(blocks)
    assert (codes.min(), codes.max()) == (coding.lowest, coding.highest)
