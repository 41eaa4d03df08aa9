"""What is never cut follows from the types of a model's weights, for all layers alike; then no block is ever cut.

Covers: karat.models.degrees.
"""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.slices import block_of, cut_block
from karat.checkpoint.weights import Weight, num_stored_bytes
from karat.config import LayerShape, ModelConfig
from karat.engine.model_running import Preparation
from karat.layers.shards import Cut, CutUnits, tree_ends, vocab_ends
from karat.models.cut_units import cut_units
from karat.models.decoder import rank_specs, weight_specs
from karat.models.degrees import working_degrees
from karat.models.registry import read_config
from karat.ranks.group import PlannedRank
from tests.support.parallel import config_of
from tests.support.uneven import uneven_config

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "MXFP4", "NVFP4", "Q4_K", "Q6_K", "IQ4_XS", "TQ2_0")


def weights_of(config: ModelConfig, **types: tuple[str, ...]) -> dict[str, Weight]:
    """Weights without numbers; `types` of o_proj and down_proj, one a layer, all else float32."""
    found = {}
    for spec in weight_specs(config):
        parts = spec.source.split(".")
        dtype = types[parts[-2]][int(parts[2])] if parts[-2] in types and parts[-1] == "weight" else "F32"
        stored = np.broadcast_to(np.zeros(1, np.uint8), num_stored_bytes(dtype, spec.shape))
        found[spec.source] = Weight(spec.source, dtype, spec.shape, stored, Path("in-memory"))
    return found


def config_with(heads: int, head_dim: int, inner: int) -> ModelConfig:
    return read_config(
        config_of(
            "llama",
            num_attention_heads=heads,
            num_key_value_heads=1,
            head_dim=head_dim,
            intermediate_size=inner,
            num_hidden_layers=3,
        )
    )


@given(
    data=st.data(),
    heads=st.integers(1, 48),
    head_dim=st.sampled_from([6, 16, 20, 32, 48, 64, 96, 128, 256]),
    inner=st.sampled_from([5, 77, 96, 192, 512, 704, 768, 4864]),
)
def test_no_block_and_no_head_is_cut_at_any_degree(data: st.DataObject, heads: int, head_dim: int, inner: int) -> None:
    config = config_with(heads, head_dim, inner)
    types = {}
    for name, columns in (("o_proj", heads * head_dim), ("down_proj", inner)):
        fitting = [dtype for dtype in TYPES if columns % block_of(dtype)[0] == 0]
        types[name] = tuple(data.draw(st.lists(st.sampled_from(fitting), min_size=3, max_size=3)))
    weights = weights_of(config, **types)
    units = cut_units(config, weights)
    for unit, columns, name in (
        (units[Cut(heads * head_dim, head_dim)], heads * head_dim, "o_proj"),
        (units[Cut(inner, 1)], inner, "down_proj"),
    ):
        wholes = {block_of(dtype)[0] for dtype in types[name]} | {32 if columns % 32 == 0 else 1}
        wholes |= {head_dim} if name == "o_proj" else set()
        legal = [end for end in range(1, columns + 1) if all(end % whole == 0 for whole in wholes)]
        assert unit == legal[0], "the smallest piece that cuts nothing"
    for size in working_degrees(config, units):
        for rank in range(size):
            for spec in rank_specs(config, units, PlannedRank(rank, size)):
                assert cut_block(weights[spec.source], spec) is None
                if spec.pieces and "self_attn" in spec.source:
                    assert all(end % head_dim == 0 for piece in spec.pieces for end in piece)


def units_of(heads: int, inner: int) -> CutUnits:
    """The units of 8 heads of 32 numbers, in heads, and of 768 inner features."""
    return {Cut(256, 32): 32 * heads, Cut(768, 1): inner}


def test_only_what_is_stored_in_large_blocks_needs_them() -> None:
    """The two kinds apart, and one layer is enough."""
    config = config_with(8, 32, 768)
    plain = ("BF16",) * 3
    assert cut_units(config, weights_of(config, o_proj=plain, down_proj=plain)) == units_of(1, 32)
    assert cut_units(config, weights_of(config, o_proj=plain, down_proj=("F32", "Q4_0", "Q6_K"))) == units_of(1, 256)
    assert cut_units(config, weights_of(config, o_proj=("Q4_K", "F32", "F32"), down_proj=plain)) == units_of(8, 32)
    assert working_degrees(config, units_of(1, 32)) == (1, 2, 4, 8)
    assert working_degrees(config, units_of(1, 256)) == (1, 2)
    assert working_degrees(config, units_of(8, 32)) == (1,)


def test_the_types_are_those_after_quantising() -> None:
    config = config_with(8, 32, 768)
    weights = weights_of(config)

    class ToK(Preparation):
        def stored_type(self, weight: Weight) -> str:
            return "Q4_K"

    assert cut_units(config, weights, Preparation("q4_0").stored_type) == units_of(1, 32)
    assert cut_units(config, weights, ToK(None).stored_type) == units_of(8, 256)


@given(
    columns=st.integers(1, 600),
    unit=st.sampled_from([1, 2, 3]),
    vocab=st.integers(1, 1200),
    size=st.sampled_from([2, 4, 8]),
)
def test_no_rank_has_fewer_pieces_than_the_first(columns: int, unit: int, vocab: int, size: int) -> None:
    """So a degree is possible if the first rank has something of all (karat.models.degrees)."""
    for ends in (tree_ends(columns * unit, unit, PlannedRank(0, size)), vocab_ends(vocab, PlannedRank(0, size))):
        parts = [end - start for start, end in pairwise((0, *ends))]
        assert len(parts) == size and min(parts) == parts[0]


@pytest.mark.parametrize(
    ("inner", "types", "unit", "working"),
    [
        (768, ("Q8_0", "Q8_0"), 32, (1, 2, 4, 8)),
        (768, ("MXFP4", "BF16"), 32, (1, 2, 4, 8)),
        (768, ("Q4_K", "Q8_0"), 256, (1, 2, 4, 8)),  # one layer decides for all
        (100, ("F32", "F16"), 1, (1, 2, 4, 8)),
    ],
)
def test_experts_have_units_of_their_own(
    inner: int, types: tuple[str, str], unit: int, working: tuple[int, ...]
) -> None:
    """The MLP beside them has as many columns, in other types. Ranges of ids ask for nothing."""
    config = read_config(
        config_of(
            "qwen2_moe",
            num_attention_heads=8,
            num_key_value_heads=1,
            head_dim=32,
            num_hidden_layers=2,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=inner,
            shared_expert_intermediate_size=inner,
        )
    )
    weights = weights_of(config, down_proj=("F32", "F32"))
    for name, weight in weights.items():
        if ".experts." in name and "down_proj" in name:
            weights[name] = replace(weight, dtype=types[int(name.split(".")[2])])
    units = cut_units(config, weights)
    assert units[Cut(inner, 1, of_experts=True)] == unit
    assert units[Cut(inner, 1)] == (1 if inner % 32 else 32)
    assert working_degrees(config, units) == working
    for rank in range(8):
        of_experts = [spec for spec in rank_specs(config, units, PlannedRank(rank, 8)) if ".experts." in spec.source]
        by_columns = inner // unit >= 8
        assert all(bool(spec.pieces) == by_columns for spec in of_experts)
        assert len(of_experts) == 2 * 3 * (3 if by_columns else (rank + 1) * 3 // 8 - rank * 3 // 8)
        assert all(cut_block(weights[spec.source], spec) is None for spec in of_experts)


def test_weights_of_other_cuts_have_units_of_their_own() -> None:
    """A layer in the middle with larger heads and a wider MLP."""
    shape = LayerShape(num_heads=8, num_kv_heads=1, head_dim=32, inner_size=768, window=None, rope=None)
    config = uneven_config(shape, replace(shape, head_dim=64, inner_size=1536), shape)
    weights = weights_of(config, o_proj=("F32", "Q4_K", "F32"), down_proj=("F32", "F32", "Q6_K"))
    assert cut_units(config, weights) == {Cut(256, 32): 32, Cut(512, 64): 256, Cut(768, 1): 256, Cut(1536, 1): 32}
