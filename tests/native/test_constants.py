"""Numbers that Python needs without the extension are those that the extension was compiled with."""

import pytest

from karat.checkpoint.weights import PLAIN_BYTES
from karat.models.degrees import DEGREES
from karat.ops import leaves, rows
from karat.quant import FORMATS

native = pytest.importorskip("karat._native", reason="the kernels are not built")


def test_the_tree_of_sums_has_the_same_leaves() -> None:
    assert leaves.NUM_LEAVES == native.NUM_LEAVES


def test_a_vocabulary_is_cut_at_panels() -> None:
    assert native.PANEL_ROWS == leaves.ROWS_TOGETHER
    assert native.PANEL_ROWS % native.GROUP_ROWS == 0


def test_every_degree_has_room_for_its_ranks() -> None:
    assert max(DEGREES) == native.MAX_RANKS == native.NUM_LEAVES


def test_exponentials_are_summed_alike() -> None:
    assert rows._NUM_SUMS == native.EXP_SUMS


@pytest.mark.parametrize("name", native.formats())
def test_blocks_of_a_format_have_the_same_size(name: str) -> None:
    if name in PLAIN_BYTES:
        assert native.format_blocks()[name] == (1, PLAIN_BYTES[name])
    else:
        assert native.format_blocks()[name] == (FORMATS[name].block_size, FORMATS[name].block_bytes)
