"""The version of the numeric contract that a model's bits depend on."""

import pytest

import karat
from karat.models.registry import read_config
from karat.ops.contract import activations_read, contract_of
from karat.quant import CODINGS, FORMATS
from tests.support import parallel

PLAIN, ALL_HEADS = (read_config(parallel.config_of(family)) for family in ("qwen3", "olmo2"))


@pytest.mark.parametrize("stored", ["F32", "BF16", *FORMATS])
def test_integers_are_of_contract_5_and_only_for_blocks_with_codes(stored: str) -> None:
    for width in ("int8", "int16", "int24"):
        integers = stored in CODINGS
        assert activations_read({stored}, width) == (width if integers else "float32")
        assert contract_of(PLAIN, {stored}, False, width) == (5 if integers else 2)
        assert contract_of(PLAIN, {stored, "Q4_0"}, False, width) == 5 <= karat.NUMERIC_CONTRACT
        assert contract_of(ALL_HEADS, {stored}, False, width) == 6
        for config in (PLAIN, ALL_HEADS):
            assert contract_of(config, {stored}, True, width) == 7
    assert activations_read({stored}, "float64") == "float64"
