"""Layers that only predict further tokens are set aside, and a number for each layer is one number where all agree."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.checkpoint.gguf import GgufCheckpoint
from karat.checkpoint.gguf.checkpoint import read_gguf
from karat.checkpoint.weights import Weight
from karat.convert import MIXES, convert
from karat.convert.conversion import stored_order
from karat.errors import CheckpointError, ConfigError
from karat.models.families import FAMILIES
from karat.models.opening import open_gguf
from karat.models.registry import find_weights, read_config
from tests.checkpoint.gguf.builders import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    Tensor,
    build,
    paired,
    pairs,
    tensors,
    tiny,
)
from tests.support.uneven import SHAPES, uneven_config

REWRITTEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NEXTN = ("nextn.eh_proj.weight", "nextn.enorm.weight")


def opened(path: Path, content: bytes) -> GgufCheckpoint:
    path.write_bytes(content)
    return open_gguf(path)


def predicting(layer: int, *names: str) -> list[Tensor]:
    """The tensors of a whole layer that predicts further tokens."""
    own = [(name.replace("blk.0.", f"blk.{layer}."), *rest) for name, *rest in tensors() if name.startswith("blk.0.")]
    data = np.ones(8, np.float32).tobytes()
    return [*own, *((f"blk.{layer}.{name}", (8,), 0, data) for name in names or NEXTN)]  # type: ignore[list-item]


CHANGES: dict[str, tuple[int, Any]] = {"llama.block_count": (U32, 3), "llama.nextn_predict_layers": (U32, 2)}


class TestPrediction:
    def test_its_layers_are_not_the_models(self, tmp_path: Path) -> None:
        plain = opened(tmp_path / "plain.gguf", tiny())
        content = build(pairs(CHANGES), [*tensors(), *predicting(1), *predicting(2)])
        found = opened(tmp_path / "model.gguf", content)
        assert found.config == plain.config and found.weights.keys() == plain.weights.keys()
        (unused,) = found.unused.values()
        assert {weight.name for weight in unused} == {name for name, *_ in [*predicting(1), *predicting(2)]}
        told = f"{len(unused)} of multi-token prediction (it proposes tokens, and changes none)"
        assert found.warnings == (f"tensors that are not used: {told}",)

    def test_arrays_may_say_other_things_of_them(self, tmp_path: Path) -> None:
        numbers = {"llama.feed_forward_length": (ARRAY, (I32, [32, 64, 0]))}
        content = build(pairs(CHANGES | numbers), [*tensors(), *predicting(1), *predicting(2)])
        assert opened(tmp_path / "model.gguf", content).config["intermediate_size"] == 32

    def test_converted_they_are_left_out(self, tmp_path: Path) -> None:
        content = build(pairs(CHANGES), [*tensors(), *predicting(1), *predicting(2)])
        source = opened(tmp_path / "model.gguf", content)
        done = convert(source, tmp_path / "converted.gguf", MIXES["F32"])
        assert done.warnings == [*source.warnings]
        back = open_gguf(tmp_path / "converted.gguf")
        assert back.config == source.config and back.warnings == ()
        for name, weight in find_weights(read_config(back.config), back).items():
            assert weight.data.tobytes() == source.weights[name].data.tobytes(), name

    @pytest.mark.parametrize(
        ("blocks", "predicted", "more"),
        [
            (2, 2, predicting(1)),  # none is left
            (2, 1, predicting(1)[: -len(NEXTN)]),  # a layer like any other
            (3, 1, [*predicting(1), *predicting(2)[: -len(NEXTN)]]),  # the wrong one
            (1 << 31, (1 << 31) - 1, predicting(1)),
        ],
    )
    def test_what_is_not_said_clearly_is_refused(
        self, blocks: int, predicted: int, more: list[Tensor], tmp_path: Path
    ) -> None:
        changes = {"llama.block_count": (U32, blocks), "llama.nextn_predict_layers": (U32, predicted)}
        with pytest.raises(ConfigError, match=f"llama.nextn_predict_layers={predicted} is not supported"):
            opened(tmp_path / "model.gguf", build(pairs(changes), [*tensors(), *more]))

    def test_without_the_key_its_tensors_are_unknown(self, tmp_path: Path) -> None:
        content = build(pairs({"llama.block_count": (U32, 2)}), [*tensors(), *predicting(1)])
        with pytest.raises(CheckpointError, match="2 tensors that no llama model has"):
            opened(tmp_path / "model.gguf", content)


SCALARS: dict[str, tuple[int, Any]] = {
    "llama.attention.head_count": (U32, 2),
    "llama.attention.head_count_kv": (I32, 1),
    "llama.attention.key_length": (U32, 4),
    "llama.feed_forward_length": (I32, 32),
    "llama.rope.freq_base": (F32, 500.1),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-6),
    "llama.attention.causal": (BOOL, True),
    "llama.expert_count": (U32, 0),
}


class TestNumbersByLayer:
    @settings(REWRITTEN)
    @given(keys=st.sets(st.sampled_from(sorted(SCALARS)), min_size=1))
    def test_equal_ones_are_one(self, keys: set[str], tmp_path: Path) -> None:
        layer = [(name.replace("blk.0.", "blk.1."), *rest) for name, *rest in tensors() if name.startswith("blk.0.")]
        both = [*tensors(), *layer]
        scalars = SCALARS | {"llama.block_count": (U32, 2)}
        arrays = {key: (ARRAY, (kind, [value] * 2)) for key, (kind, value) in scalars.items() if key in keys}
        expected = opened(tmp_path / "a.gguf", build(pairs(scalars), both))  # type: ignore[arg-type]
        found = opened(tmp_path / "b.gguf", build(pairs(scalars | arrays), both))  # type: ignore[arg-type]
        assert found.config == expected.config

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("attention.key_length", (U32, [4, 8]), "llama.attention.key_length is 4, 8; expected one number"),
            ("attention.head_count_kv", (I32, [2, 1]), "llama.attention.head_count_kv is 1, 2; expected one number"),
            ("rope.freq_base", (F32, [1e4, 5e5]), "llama.rope.freq_base is 10000.0, 500000.0; expected one number"),
            ("expert_count", (U32, [0, 4]), "llama.expert_count is 0, 4; expected one number"),
            ("feed_forward_length", (U32, []), "llama.feed_forward_length has 0 numbers; expected one number"),
        ],
    )
    def test_different_ones_are_refused_by_name(
        self, key: str, value: tuple[int, list[float]], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match=words):
            opened(tmp_path / "a.gguf", tiny({f"llama.{key}": (ARRAY, value)}))

    def test_different_ones_are_a_list_where_a_family_takes_them(self, tmp_path: Path) -> None:
        """As config.json has them; the number of all layers is the largest."""
        by_layer = {"feed_forward_length": "intermediate_sizes", "rope.freq_base": "rope_thetas"}
        form = replace(FAMILIES["llama"].gguf, by_layer=by_layer)
        layer = [(name.replace("blk.0.", "blk.1."), *rest) for name, *rest in tensors() if name.startswith("blk.0.")]
        found = {}
        for name, sizes in (("equal", [32, 32]), ("different", [16, 32])):
            values: dict[str, tuple[int, Any]] = {
                "llama.block_count": (U32, 2),
                "llama.feed_forward_length": (ARRAY, (U32, sizes)),
                "llama.rope.freq_base": (ARRAY, (F32, [500.1, 500.1 if name == "equal" else 1e4])),
            }
            path = tmp_path / f"{name}.gguf"
            path.write_bytes(build(pairs(values), [*tensors(), *layer]))  # type: ignore[list-item]
            found[name] = read_gguf(path, {"llama": form}).config
        lists = {"intermediate_sizes": [16, 32], "rope_thetas": [500.1, 1e4]}
        assert found["equal"]["intermediate_size"] == found["different"]["intermediate_size"] == 32
        assert found["different"] == found["equal"] | lists | {"rope_theta": 1e4}

    def test_the_rows_of_a_layer_are_those_of_its_own_heads(self, tmp_path: Path) -> None:
        """Rows are stored in pairs, as llama.cpp's converter makes them; the converter here stores them so again."""
        config = uneven_config()
        sizes, kv_heads = ([getattr(shape, name) for shape in SHAPES] for name in ("head_dim", "num_kv_heads"))
        numbers = {
            "attention.key_length": sizes,
            "attention.value_length": sizes,
            "rope.dimension_count": sizes,
            "attention.head_count_kv": kv_heads,
        }
        by_layer = {key: key.rpartition(".")[2] for key in numbers}
        form = replace(
            FAMILIES["llama"].gguf, by_layer=by_layer, head_dim=lambda config, layer: config["key_length"][layer]
        )
        rng, expected, stored = np.random.default_rng(0), {}, []
        for layer, shape in enumerate(SHAPES):
            for name, heads in (("q", shape.num_heads), ("k", shape.num_kv_heads), ("v", shape.num_kv_heads)):
                weight = rng.standard_normal((heads * shape.head_dim, 8), np.float32)
                expected[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = weight
                data = (weight if name == "v" else paired(weight, heads)).tobytes()
                stored.append((f"blk.{layer}.attn_{name}.weight", (8, len(weight)), 0, data))
        values: dict[str, tuple[int, Any]] = {f"llama.{key}": (ARRAY, (U32, each)) for key, each in numbers.items()}
        values |= {"llama.block_count": (U32, len(SHAPES)), "llama.attention.head_count": (U32, SHAPES[0].num_heads)}
        others = [one for one in tensors() if not one[0].startswith("blk.0.attn_")]
        path = tmp_path / "model.gguf"
        path.write_bytes(build(pairs(values), [*others, *stored]))
        found = read_gguf(path, {"llama": form}).weights
        for (name, weight), (*_, data) in zip(expected.items(), stored, strict=True):
            np.testing.assert_array_equal(found[name].to_array(np.dtype(np.float32)), weight, name)
            bare = Weight(name, "F32", weight.shape, weight.reshape(-1).view(np.uint8), path)
            assert stored_order(bare, config).to_array(np.dtype(np.float32)).astype(np.float32).tobytes() == data

    def test_texts_are_no_numbers(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="is an array of 1 STRING; expected an integer"):
            opened(tmp_path / "a.gguf", tiny({"llama.feed_forward_length": (ARRAY, (STRING, ["32"]))}))
