"""Every layer gets its tensor and every tensor has a layer; else one error lists all that is wrong, and why.

Covers: karat.checkpoint.mismatch.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint import Weight, WeightSpec, assign, open_folder
from karat.errors import CheckpointError

ASSIGN_MODULE = importlib.import_module("karat.checkpoint.assign")  # whose name the package gives to its function
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED = {HEAD: EMBEDDING}


@dataclass(frozen=True)
class FakeCheckpoint:
    weights: Mapping[str, Weight]
    path: Path = field(default=Path("models/fox"))


def weight(name: str, shape: tuple[int, ...], fill: int = 0, file: str = "model.safetensors") -> Weight:
    data = np.full(2 * int(np.prod(shape, dtype=int)), fill, np.uint8)
    return Weight(name, "BF16", shape, data, Path("models/fox") / file)


def model_shapes(num_layers: int = 3, *, bias: bool = True, head: bool = True) -> dict[str, tuple[int, ...]]:
    """The tensors of a small Qwen2."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (16, 8)}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (8,)
        for name in "qkv":
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (8, 8) if name == "q" else (4, 8)
            if bias:
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (8,) if name == "q" else (4,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (8, 8)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (8, 12)
    shapes["model.norm.weight"] = (8,)
    if head:
        shapes[HEAD] = (16, 8)
    return shapes


def specs(shapes: Mapping[str, tuple[int, ...]]) -> list[WeightSpec]:
    return [WeightSpec(name, shape) for name, shape in shapes.items()]


def stored(shapes: Mapping[str, tuple[int, ...]]) -> FakeCheckpoint:
    return FakeCheckpoint({name: weight(name, shape) for name, shape in shapes.items()})


def refused(
    wanted: Mapping[str, tuple[int, ...]], checkpoint: FakeCheckpoint, tied: Mapping[str, str] | None = None
) -> str:
    with pytest.raises(CheckpointError) as caught:
        assign(specs(wanted), checkpoint, tied=tied or {})
    message = str(caught.value)
    assert message.startswith("models/fox")
    assert all(line.isprintable() for line in message.splitlines())
    return message


SHAPES = model_shapes()
NAMES = sorted(SHAPES)


class TestMatching:
    def test_complete(self) -> None:
        checkpoint = stored(SHAPES)
        assigned = assign(specs(SHAPES), checkpoint)
        assert list(assigned) == list(SHAPES)
        assert all(assigned[name] is checkpoint.weights[name] for name in SHAPES)

    @given(
        removed=st.sets(st.sampled_from(NAMES)),
        added=st.sets(st.sampled_from([f"extra.{i}" for i in range(15)])),
        reshaped=st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(0, 9), max_size=3).map(tuple)),
    )
    def test_every_change_is_found(
        self, removed: set[str], added: set[str], reshaped: dict[str, tuple[int, ...]]
    ) -> None:
        kept = {name: reshaped.get(name, shape) for name, shape in SHAPES.items() if name not in removed}
        checkpoint = stored(kept | dict.fromkeys(added, (2, 3)))
        misshapen = {name for name in kept if kept[name] != SHAPES[name]}
        if not (removed or added or misshapen):
            assert assign(specs(SHAPES), checkpoint) == checkpoint.weights
            return
        message = refused(SHAPES, checkpoint)
        summary, *lines = message.splitlines()
        counts = {"missing": removed, "unexpected": added, "of another shape": misshapen}
        for kind, names in counts.items():
            assert (f"{len(names)} {kind}" in summary) == bool(names)
            (line,) = [line for line in lines if line.startswith(f"  {kind}: ")] if names else [""]
            listed = [name for name in names if f"{name} " in line.replace("'", "")]
            assert len(listed) == min(len(names), 10)
            assert (f" and {len(names) - 10} more" in line) == (len(names) > 10)

    @given(renamed=st.sampled_from(NAMES))
    def test_renamed(self, renamed: str) -> None:
        shapes = {f"{name}s" if name == renamed else name: shape for name, shape in SHAPES.items()}
        message = refused(SHAPES, stored(shapes))
        assert "1 missing, 1 unexpected" in message
        assert f"\n  missing: {renamed} {list(SHAPES[renamed])}" in message
        assert f"\n  unexpected: '{renamed}s' {list(SHAPES[renamed])} in model.safetensors" in message

    def test_shape_names_file_and_both_shapes(self) -> None:
        weights = dict(stored(SHAPES).weights)
        weights["model.norm.weight"] = weight("model.norm.weight", (8, 1), file="model-00002-of-00002.safetensors")
        message = refused(SHAPES, FakeCheckpoint(weights))
        assert "1 of another shape; config.json is that of a model of another size" in message
        assert "model.norm.weight is [8, 1] in model-00002-of-00002.safetensors, expected [8]" in message

    def test_transposed_is_another_shape(self) -> None:
        name = "model.layers.0.mlp.down_proj.weight"
        assert f"{name} is [12, 8]" in refused(SHAPES, stored(SHAPES | {name: (12, 8)}))

    def test_rotary_buffers_alone_are_ignored(self) -> None:
        buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": (2,) for i in range(3)}
        assert assign(specs(SHAPES), stored(SHAPES | buffers)).keys() == SHAPES.keys()
        message = refused(SHAPES, stored(SHAPES | buffers | {"model.rotary_emb.inv_freqs": (2,), "inv_freq": (2,)}))
        assert "2 unexpected" in message

    def test_hostile_names(self) -> None:
        assert r"'\x1b[31m\n'" in refused(SHAPES, stored(SHAPES | {"\x1b[31m\n": (1,)}))

    def test_specs_that_name_a_tensor_twice_are_our_bug(self) -> None:
        with pytest.raises(AssertionError):
            assign([*specs(SHAPES), WeightSpec(HEAD, (16, 8))], stored(SHAPES))

    def test_tie_to_nothing_is_our_bug(self) -> None:
        with pytest.raises(AssertionError):
            assign(specs(SHAPES), stored(SHAPES), tied={"alias": "nowhere"})


class TestTied:
    body = model_shapes(head=False)

    @pytest.mark.parametrize("asked", [False, True])
    def test_alias_absent(self, asked: bool) -> None:
        checkpoint = stored(self.body)
        assigned = assign(specs(model_shapes(head=asked)), checkpoint, tied=TIED)
        assert assigned[EMBEDDING] is checkpoint.weights[EMBEDDING]
        assert (HEAD in assigned) == asked
        assert assigned.get(HEAD, assigned[EMBEDDING]) is assigned[EMBEDDING]

    @pytest.mark.parametrize("asked", [False, True])
    def test_alias_equal(self, asked: bool) -> None:
        checkpoint = stored(SHAPES)
        assigned = assign(specs(model_shapes(head=asked)), checkpoint, tied=TIED)
        assert assigned.get(HEAD, assigned[EMBEDDING]) is checkpoint.weights[EMBEDDING]

    @pytest.mark.parametrize("position", [0, 1, 100, 255])
    @pytest.mark.parametrize("chunk", [1, 7, 128, 256, 1 << 20])
    def test_alias_that_differs_in_one_bit(self, monkeypatch: pytest.MonkeyPatch, position: int, chunk: int) -> None:
        monkeypatch.setattr(ASSIGN_MODULE, "_COMPARED_BYTES", chunk)
        checkpoint = stored(SHAPES)
        assert assign(specs(self.body), checkpoint, tied=TIED)
        checkpoint.weights[HEAD].data[position] ^= 1
        message = refused(self.body, checkpoint, TIED)
        assert "models/fox/model.safetensors: lm_head.weight (BF16 [16, 8]) differs from model.embed_tokens.weight" in (
            message
        )
        assert "set tie_word_embeddings to false" in message

    @pytest.mark.parametrize("change", [{"shape": (8, 16)}, {"dtype": "F16"}])
    def test_alias_of_other_type_or_shape(self, change: dict[str, object]) -> None:
        weights = dict(stored(SHAPES).weights)
        weights[HEAD] = replace(weights[HEAD], **change)  # type: ignore[arg-type]
        assert "differs from model.embed_tokens.weight" in refused(self.body, FakeCheckpoint(weights), TIED)

    def test_nothing_is_compared_if_something_is_missing(self) -> None:
        checkpoint = stored({name: shape for name, shape in SHAPES.items() if name != "model.norm.weight"})
        checkpoint.weights[HEAD].data[0] ^= 1
        assert "1 missing" in refused(self.body, checkpoint, TIED)

    def test_source_absent(self) -> None:
        checkpoint = stored({name: shape for name, shape in SHAPES.items() if name != EMBEDDING})
        message = refused(SHAPES, checkpoint, TIED)
        assert "1 missing" in message
        assert f"missing: {EMBEDDING} [16, 8]" in message

    def test_alias_without_tie_is_a_tensor_of_its_own(self) -> None:
        message = refused(self.body, stored(SHAPES))
        assert "1 unexpected" in message
        assert f"unexpected: '{HEAD}'" in message


class TestReasons:
    def test_head_absent(self) -> None:
        message = refused(SHAPES, stored(model_shapes(head=False)))
        assert 'set "tie_word_embeddings": true there; else the file is incomplete: download it again' in message

    @pytest.mark.parametrize("prefix", ["language_model.", "base_model.model.", "module.", "model."])
    def test_prefix_too_many(self, prefix: str) -> None:
        message = refused(SHAPES, stored({f"{prefix}{name}": shape for name, shape in SHAPES.items()}))
        assert f"most are there with '{prefix}' before the name" in message

    def test_prefix_too_few(self) -> None:
        body = {name.removeprefix("model."): shape for name, shape in model_shapes(head=False).items()}
        message = refused(SHAPES, stored(body))
        assert "most are there without 'model.' before the name: this is a model's body saved without" in message

    def test_biases_absent(self) -> None:
        assert "config.json announces these biases: check model_type" in refused(
            SHAPES, stored(model_shapes(bias=False))
        )

    def test_biases_unexpected(self) -> None:
        assert "config.json announces no such biases: check model_type" in refused(
            model_shapes(bias=False), stored(SHAPES)
        )

    def test_too_many_layers(self) -> None:
        message = refused(SHAPES, stored(model_shapes(num_layers=5)))
        assert "config.json has none of these in layers 3 to 4: is num_hidden_layers right?" in message

    def test_too_few_layers(self) -> None:
        assert "the file is incomplete, or config.json is another model's" in refused(
            SHAPES, stored(model_shapes(num_layers=2))
        )

    def test_norms_of_qwen3(self) -> None:
        norms = {f"model.layers.{i}.self_attn.q_norm.weight": (4,) for i in range(3)}
        for wanted, present in ((SHAPES, SHAPES | norms), (SHAPES | norms, SHAPES)):
            assert "query and key norms, which only some families have: is model_type" in refused(
                wanted, stored(present)
            )

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("base.layers.0.self_attn.q_proj.lora_A.weight", "a LoRA adapter's"),
            ("model.layers.0.self_attn.q_proj.qweight", "a quantised model's"),
            ("model.layers.0.self_attn.q_proj.weight_scale_inv", "a quantised model's"),
            ("blk.0.attn_q.weight", "GGUF names"),
            ("layers.0.attention.wq.weight", "the names of Meta's and Mistral's own releases"),
            ("model.layers.0.self_attn.query_key_value.weight", "projections are fused"),
            (
                "model.layers.0.block_sparse_moe.gate.weight",
                "a mixture of experts', which config.json does not announce",
            ),
            (
                "model.layers.0.mlp.experts.0.down_proj.weight",
                "a mixture of experts', which config.json does not announce",
            ),
            ("vision_tower.patch.weight", "a multimodal model's"),
            ("wholly.unknown", "weights and config.json are of different models"),
        ],
    )
    def test_other_models(self, name: str, reason: str) -> None:
        assert reason in refused(SHAPES, stored({name: (1,)})).splitlines()[0]


def test_a_real_model_assigns_to_itself(data_dir: Path) -> None:
    checkpoint = open_folder(data_dir / "stories260k")
    shapes = {name: weight.shape for name, weight in checkpoint.weights.items()}
    assert assign(specs(shapes), checkpoint) == checkpoint.weights
