"""Tensors that are stored as one: each part has the bytes of its rows, in the file's own memory."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint import WeightSpec, assign
from karat.checkpoint.joins import Grouped
from karat.checkpoint.slices import block_of, sliced
from karat.checkpoint.weights import Weight
from karat.errors import CheckpointError
from tests.checkpoint.test_assign import FakeCheckpoint

QKV = ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
GATE_UP = ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
LAYER = "model.layers.3."


def made(name: str, dtype: str, rows: int, blocks: int) -> tuple[Weight, np.ndarray]:
    """A weight [rows, blocks × block] (without blocks: a vector), and its bytes [rows, …]."""
    size, num_bytes = block_of(dtype)
    content = np.random.default_rng(rows).integers(0, 256, (rows, max(blocks, 1) * num_bytes), np.uint8)
    shape = (rows, blocks * size) if blocks else (rows,)
    return Weight(name, dtype, shape, content.reshape(-1), Path("in-memory")), content


@given(
    join=st.sampled_from([QKV, GATE_UP]),
    dtype=st.sampled_from(["F32", "BF16", "Q8_0", "Q4_K"]),
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    blocks=st.integers(1, 3),
    data=st.data(),
)
def test_each_part_has_its_rows(
    join: tuple[str, tuple[str, ...]], dtype: str, sizes: list[int], blocks: int, data: st.DataObject
) -> None:
    """Whole, as a rank's rows, and as a rank's columns."""
    joined, parts = join
    whole, content = made(f"{LAYER}{joined}.weight", dtype, sum(sizes[: len(parts)]), blocks)
    specs = [
        WeightSpec(f"{LAYER}{part}.weight", (rows, whole.shape[1])) for part, rows in zip(parts, sizes, strict=False)
    ]
    other, _ = made("other.weight", dtype, 2, 1)
    specs.insert(data.draw(st.integers(0, len(parts))), WeightSpec(other.name, other.shape))
    found = assign(specs, FakeCheckpoint({whole.name: whole, other.name: other}))
    assert list(found) == [spec.source for spec in specs]
    start = 0
    for part, rows in zip(parts, sizes, strict=False):
        weight = found[f"{LAYER}{part}.weight"]
        assert (weight.name, weight.dtype, weight.shape) == (f"{LAYER}{part}.weight", dtype, (rows, whole.shape[1]))
        assert np.shares_memory(weight.stored, whole.stored)
        mine = content[start : start + rows]
        np.testing.assert_array_equal(weight.data, mine.reshape(-1))
        first = data.draw(st.integers(0, rows - 1))
        some = sliced(weight, WeightSpec(weight.name, weight.shape, 0, ((first, rows),)))
        np.testing.assert_array_equal(some.data, mine[first:].reshape(-1))
        size, num_bytes = block_of(dtype)
        cut = sliced(weight, WeightSpec(weight.name, weight.shape, 1, ((0, size),)))
        np.testing.assert_array_equal(cut.data, mine[:, :num_bytes].reshape(-1))
        start += rows


def test_biases_are_joined_as_their_weights_are() -> None:
    whole, content = made(f"{LAYER}self_attn.qkv_proj.bias", "F32", 8, 0)
    specs = [WeightSpec(f"{LAYER}{part}.bias", (rows,)) for part, rows in zip(QKV[1], (4, 2, 2), strict=True)]
    found = assign(specs, FakeCheckpoint({whole.name: whole}))
    assert b"".join(weight.data.tobytes() for weight in found.values()) == content.tobytes()


@given(
    experts=st.integers(1, 12),
    rows=st.integers(1, 5),
    dtype=st.sampled_from(["F32", "Q8_0"]),
    ending=st.sampled_from(["", ".weight"]),
    is_both=st.booleans(),
)
def test_experts_in_one_tensor(experts: int, rows: int, dtype: str, ending: str, is_both: bool) -> None:
    """All experts' gates one after the other, or of each its gate and its up: [experts, rows, columns]."""
    joined, parts = ("gate_up_proj", ["gate_proj", "up_proj"]) if is_both else ("gate_proj", ["gate_proj"])
    flat, content = made(f"{LAYER}mlp.experts.{joined}{ending}", dtype, experts * rows * len(parts), 2)
    whole = replace(flat, shape=(experts, rows * len(parts), flat.shape[1]))
    names = [f"{LAYER}mlp.experts.{expert}.{part}.weight" for expert in range(experts) for part in parts]
    specs = [WeightSpec(name, (rows, flat.shape[1])) for name in names]
    found = assign(specs, FakeCheckpoint({whole.name: whole}))
    for number, name in enumerate(names):
        weight = found[name]
        assert (weight.name, weight.dtype, weight.shape) == (name, dtype, (rows, flat.shape[1]))
        assert np.shares_memory(weight.stored, whole.stored)
        np.testing.assert_array_equal(weight.data, content[number * rows :][:rows].reshape(-1))


def test_experts_of_another_number_are_refused() -> None:
    flat, _ = made(f"{LAYER}mlp.experts.down_proj.weight", "F32", 12, 2)
    specs = [WeightSpec(f"{LAYER}mlp.experts.{expert}.down_proj.weight", (4, 2)) for expert in range(2)]
    with pytest.raises(CheckpointError, match=r"is \[3, 4, 2\] in in-memory, expected \[2, 4, 2\]"):
        assign(specs, FakeCheckpoint({flat.name: replace(flat, shape=(3, 4, 2))}))


class TestRefused:
    """As any other tensor that does not fit, under the name that the file has."""

    SPECS = (
        WeightSpec(f"{LAYER}self_attn.q_proj.weight", (8, 4)),
        WeightSpec(f"{LAYER}self_attn.k_proj.weight", (2, 4)),
        WeightSpec(f"{LAYER}self_attn.v_proj.weight", (2, 4)),
    )
    NAME = f"{LAYER}self_attn.qkv_proj.weight"

    def refused(self, *weights: Weight, specs: tuple[WeightSpec, ...] = SPECS) -> str:
        with pytest.raises(CheckpointError) as caught:
            assign(specs, FakeCheckpoint({weight.name: weight for weight in weights}))
        return str(caught.value)

    def test_other_rows(self) -> None:
        whole, _ = made(self.NAME, "F32", 11, 4)
        assert f"{self.NAME} is [11, 4] in in-memory, expected [12, 4]" in self.refused(whole)

    def test_both_spellings(self) -> None:
        whole, _ = made(self.NAME, "F32", 12, 4)
        single, _ = made(self.SPECS[0].source, "F32", 8, 4)
        assert "1 unexpected" in self.refused(whole, single)

    def test_parts_that_nobody_needs(self) -> None:
        whole, _ = made(self.NAME, "F32", 12, 4)
        message = self.refused(whole, specs=self.SPECS[:2])
        assert "2 missing, 1 unexpected" in message and "projections are fused" in message

    def test_another_order_is_another_name(self) -> None:
        whole, _ = made(f"{LAYER}self_attn.query_key_value.weight", "F32", 12, 4)
        assert "3 missing, 1 unexpected" in self.refused(whole)


def test_phi_3s_layout_is_this_one() -> None:
    """transformers' Phi-3 with the whole head rotated is a Mistral whose projections are stored as one."""
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    from karat.ops.reference import ReferenceOps
    from tests.support import forward, random_models

    rng = random.Random("phi3")
    raw = random_models.draw_config(rng, "mistral", "default")
    raw |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 48}
    raw |= {"sliding_window": 33, "pad_token_id": 0, "tie_word_embeddings": False}
    hf = random_models.build(raw | {"model_type": "phi3"}, 7)
    names = set(hf.state_dict())
    assert f"{LAYER[:-2]}0.{QKV[0]}.weight" in names and f"{LAYER[:-2]}0.{GATE_UP[0]}.weight" in names
    ids = [rng.randrange(raw["vocab_size"]) for _ in range(120)]
    with torch.no_grad():
        expected = hf(torch.tensor([ids])).logits[0].numpy()
    del raw["pad_token_id"]
    (logits,) = forward.run(forward.from_transformers(raw, hf, ReferenceOps("float32")), [ids])
    assert np.abs(logits - expected).max() <= 1e-4 * expected.std()


def test_rows_that_lie_in_groups_are_rows_of_several(tmp_path: Path) -> None:
    """As in_proj_qkvz of Qwen3-Next: for each of two groups rows of a, of b and of c, of which a and b are one part."""
    values = np.arange(2 * 7 * 3, dtype=np.float32).reshape(14, 3)
    whole = Weight("whole", "F32", values.shape, values.reshape(-1).view(np.uint8), tmp_path)
    parts = (WeightSpec("ab", (6, 3)), WeightSpec("c", (8, 3)))
    join = Grouped(WeightSpec("whole", (14, 3)), parts, ((1, 2), (4,)), 2)
    found = assign(list(parts), FakeCheckpoint({"whole": whole}), grouped=[join])
    rows = {"ab": [0, 7, 1, 2, 8, 9], "c": [3, 4, 5, 6, 10, 11, 12, 13]}
    for name, order in rows.items():
        np.testing.assert_array_equal(found[name].to_array(np.dtype(np.float32)), values[order])
    own = sliced(found["c"], WeightSpec("c", (8, 3), 0, ((2, 5),)))  # of a rank
    np.testing.assert_array_equal(own.to_array(np.dtype(np.float32)), values[rows["c"][2:5]])
