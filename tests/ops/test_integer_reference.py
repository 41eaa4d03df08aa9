"""The executor of measurements computes linear layers by the definition, and everything else as the reference does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.batch import plain_batch
from karat.errors import ExecutorError
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS, CodedMatrix, coded, linear
from karat.ops.leaves import leaf_ends
from karat.ops.reference import ReferenceOps
from karat.quant import CODINGS
from tests.support.thread_group import ThreadGroup, on_all_ranks
from tests.support.weights import random_blocks, stored_weight, weight_of

every_width = pytest.mark.parametrize("width", list(WIDTHS.values()), ids=list(WIDTHS))


@every_width
@pytest.mark.parametrize("stored", CODINGS)
def test_linear_layers_are_the_definition_with_leaves_and_bias(stored: str, width: object) -> None:
    ops = IntegerOps(width)  # type: ignore[arg-type]
    rng = np.random.default_rng(4)
    weight, x = random_blocks(stored, 300, 512, rng), rng.standard_normal((3, 512)).astype(np.float32)
    bias, ends = rng.standard_normal(300).astype(np.float32), leaf_ends(512, 256)
    loaded = ops.load(weight)
    want = linear(x, coded(weight), ops.width, ends)
    np.testing.assert_array_equal(ops.linear(x, loaded, leaves=ends, name="op"), want)
    np.testing.assert_array_equal(ops.linear(x, loaded, bias, leaves=ends, name="op"), want + bias)
    alone = linear(x, coded(weight), ops.width, (512,))
    np.testing.assert_array_equal(ops.linear(x, loaded, name="op"), alone)
    gate, up = ops.gate_up(x, (loaded, loaded), None, names=("gate", "up"))
    np.testing.assert_array_equal(np.stack([gate, up]), np.stack([alone, alone]))


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_ranks_continue_the_tree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((20, 512)).astype(np.float32)
    x = rng.standard_normal((3, 512)).astype(np.float32)
    ops, ends = IntegerOps(WIDTHS["int16"]), leaf_ends(512, 32)
    whole = ops.linear(x, ops.load(weight_of(values, "Q5_1")), leaves=ends, name="op")

    def on_rank(group: ThreadGroup) -> np.ndarray:
        own = slice(256 * group.rank, 256 * (group.rank + 1))
        loaded = ops.load(weight_of(np.ascontiguousarray(values[:, own]), "Q5_1"))
        return ops.linear(x[:, own], loaded, leaves=ends[:4], group=group, name="op")

    for found in on_all_ranks(2, on_rank):
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("stored", ["F32", "BF16", "TQ2_0"])
def test_other_weights_are_multiplied_as_the_reference_does(stored: str) -> None:
    rng = np.random.default_rng(5)
    weight = random_blocks(stored, 7, 256, rng)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    ops, reference = IntegerOps(WIDTHS["int8"]), ReferenceOps("float32")
    got, want = (each.linear(x, each.load(weight), name="op") for each in (ops, reference))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("stored", CODINGS)
def test_embeddings_and_what_is_read_back_are_the_stored_values(stored: str) -> None:
    ops = IntegerOps(WIDTHS["int8"])
    table = random_blocks(stored, 11, 256, np.random.default_rng(6))
    values, loaded = table.to_array(np.dtype(np.float32)), ops.load(table)
    ids = [3, 3, 10, 0]
    np.testing.assert_array_equal(ops.embedding(plain_batch(ids), loaded, name="op"), values[ids])
    held = ops.held(loaded)
    np.testing.assert_array_equal(held.data.view(np.float32), values.reshape(-1))
    assert held.dtype == "F32" and isinstance(loaded, CodedMatrix)
    parts = (loaded.codes, loaded.scales, loaded.minimums)
    assert sum(0 if part is None else part.nbytes for part in parts) <= ops.bytes_of(stored, table.shape)


def test_facts_and_refusals() -> None:
    ops = IntegerOps(WIDTHS["int16"])
    assert (ops.executor, ops.dtype, ops.default_kv_dtype, ops.activations) == (
        "reference",
        "float32",
        "float32",
        "int16",
    )
    weight = stored_weight("Q8_0", 4, 64, np.random.default_rng(7))
    with pytest.raises(ExecutorError, match=r"op: weight \[out, in\] \(4, 64\) for rows of 32"):
        ops.linear(np.zeros((1, 32), np.float32), ops.load(weight), name="op")
