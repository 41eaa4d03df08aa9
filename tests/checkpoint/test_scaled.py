"""Folders with FP8 and NVFP4 against torch's numbers and transformers' model of the values that they stand for.

Covers: karat.checkpoint.quantization, karat.quant.e4m3.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.checkpoint.quantization import held_type
from karat.checkpoint.slices import sliced
from karat.checkpoint.weights import Weight, WeightSpec
from karat.errors import CheckpointError, ConfigError
from karat.models.opening import open_model
from karat.models.registry import build, find_weights, read_config
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.quant import FORMATS
from tests.support.parallel import config_of
from tests.support.seed import SEED

torch = pytest.importorskip("torch", reason="FP8 is made by torch")
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.support import forward, fp8, parallel, random_models  # noqa: E402
from tests.support.float64 import InFloat64, frequencies_of  # noqa: E402

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason="no native executor")
FAMILIES = ("llama", "ministral3", "mistral", "mixtral", "olmo2", "qwen2", "qwen3", "qwen3_moe")
EXACT = np.dtype(np.float64)


def write(folder: Path, config: Mapping[str, Any], stored: Mapping[str, Any], quantization: Any) -> Path:
    folder.mkdir(parents=True)
    save_file(dict(stored), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return folder


def drawn(rng: random.Random, family: str) -> dict[str, Any]:
    """A configuration with rows of whole blocks of 128 and others."""
    config = random_models.draw_config(rng, family, rng.choice(random_models.ROPE_TYPES))
    heads, kv_heads = rng.choice([(2, 1), (4, 2), (4, 4), (8, 2)])
    config |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    config["hidden_size"] = rng.choice([128, 192, 256, 272, 384]) // heads * heads
    if "head_dim" in config and family != "olmo2":
        config["head_dim"] = rng.choice([32, 48, 64])
    elif family in ("llama", "olmo2", "qwen2", "qwen3_moe"):
        config["head_dim"] = config["hidden_size"] // heads
    for key in ("intermediate_size", "moe_intermediate_size"):
        if key in config:
            config[key] = rng.choice([64, 128, 144, 256, 320])
    return config


CASES = [pytest.param(index, marks=[pytest.mark.long] if index >= 12 else [], id=str(index)) for index in range(60)]


@pytest.mark.parametrize("index", CASES)
def test_logits_are_those_of_transformers_with_the_values(index: int, tmp_path: Path) -> None:
    """Transformers' model with each quantised matrix replaced by number * scale; tolerances as in test_exactness.py.

    In float64 matrices that are held as float32, because their rows are no whole blocks or they are NVFP4, round each
    weight once: 2^-24 of it. Products of a row then err by at most 2^-24 of their sizes, a few layers deep.
    """
    rng = random.Random(f"{SEED}-fp8-{index}")
    family, kind = FAMILIES[index % len(FAMILIES)], list(fp8.KINDS)[index % len(fp8.KINDS)]
    config = drawn(rng, family)
    ids = [rng.randrange(config["vocab_size"]) for _ in range(60)]
    hf = random_models.build_decided(rng, config, ids)
    path, values = folder_of(tmp_path, config, hf, kind)
    checkpoint = open_model(path)
    stored = {weight.dtype for weight in checkpoint.weights.values() if weight.made is not None}
    assert values and stored <= {"E4M3", "F32"}
    truth = build(read_config(checkpoint.config), ReferenceOps("float64"), checkpoint, num_positions=128)
    hf = hf.double()
    with torch.no_grad(), InFloat64(hf, frequencies_of(truth.config, by_kind=False)):
        for name, exact in values.items():
            hf.get_parameter(name).copy_(exact)
        want = hf(torch.tensor([ids])).logits[0].numpy()
    (got,) = forward.run(truth, [ids])
    assert np.abs(got - want).max() <= (1e-9 if stored == {"E4M3"} else 1e-4 * want.std()), (family, kind)
    if not unavailable_reason():
        narrow = build(read_config(checkpoint.config), NativeOps(), checkpoint, num_positions=128)
        (logits,) = forward.run(narrow, [ids], kv_dtype="float32")
        assert np.abs(logits - want).max() <= 1e-4 * want.std(), (family, kind)


def folder_of(tmp_path: Path, config: Mapping[str, Any], hf: Any, kind: str) -> tuple[Path, dict[str, Any]]:
    """A folder of a transformers model's tensors, and the values of those that are quantised in it."""
    state = {name: tensor for name, tensor in hf.state_dict().items() if not name.endswith("inv_freq")}
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    stored, values, quantization = fp8.quantised(state, kind)
    return write(tmp_path / "model", config, stored, quantization), values


def weights_of(path: Path) -> dict[str, Weight]:
    opened = open_model(path)
    return find_weights(read_config(opened.config), opened)


def test_all_numbers_are_torch_s() -> None:
    codes = np.arange(256, dtype=np.uint8)
    blocks = np.concatenate([np.full((2, 1), 1, "<f4").view(np.uint8), codes.reshape(2, 128)], axis=1)
    want = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    got = FORMATS["E4M3"].dequantize(blocks).reshape(-1)
    np.testing.assert_array_equal(np.isnan(want), np.abs(got) == 480)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got[numbers], want[numbers])
    assert np.array_equal(np.signbit(got), codes >= 128)


@needs_kernels
def test_products_of_scale_and_number_in_float32_and_float64(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    blocks = np.concatenate(
        [rng.standard_normal((6, 1)).astype("<f4").view(np.uint8), rng.integers(0, 256, (6, 128), np.uint8)], axis=1
    )
    exact = FORMATS["E4M3"].dequantize(blocks, out=np.empty((6, 128)))
    scales = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float64)
    np.testing.assert_array_equal(exact, scales * FORMATS["E4M3"].dequantize(_ones(blocks)).astype(np.float64))
    np.testing.assert_array_equal(FORMATS["E4M3"].dequantize(blocks), exact.astype(np.float32))


def _ones(blocks: Any) -> Any:
    return np.concatenate([np.full((len(blocks), 1), 1, "<f4").view(np.uint8), blocks[:, 4:]], axis=1)


@pytest.mark.parametrize("kind", fp8.KINDS)
@pytest.mark.parametrize("shape", [(272, 384), (3, 144, 256), (48, 128), (130, 144), (3, 130, 208)])
def test_values_of_a_matrix_and_of_its_rows(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Rows that are no multiple of 128 and stacks of experts too; parts of rows for ranks."""
    name = "model.layers.0.mlp.experts.gate_up_proj" if len(shape) == 3 else "model.layers.0.self_attn.q_proj.weight"
    noise = (
        torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 10 ** torch.linspace(-2, 1, shape[-2])[:, None]
    )
    stored, values, quantization = fp8.quantised({name: noise}, kind)
    stored["model.norm.weight"] = torch.ones(4)
    weight = open_model(
        write(tmp_path / "model", config_of("llama") | {"num_hidden_layers": 1}, stored, quantization)
    ).weights[name]
    is_narrow = shape[-1] % 128 == 0 and not kind.startswith("NVFP4")
    assert weight.dtype == ("E4M3" if is_narrow else "F32") and weight.shape == shape
    want = values[name].numpy() if is_narrow else values[name].numpy().astype(np.float32)
    np.testing.assert_array_equal(weight.to_array(EXACT), want)
    if len(shape) == 3:
        for expert in range(shape[0]):
            part = weight.rows(expert, expert + 1)
            np.testing.assert_array_equal(part.to_array(EXACT), want[expert : expert + 1])
        return
    rows = sliced(weight, WeightSpec(name, shape, 0, ((5, 40), (41, 47))))
    np.testing.assert_array_equal(rows.to_array(EXACT), np.concatenate([want[5:40], want[41:47]]))
    if shape[-1] > 128:
        columns = sliced(weight, WeightSpec(name, shape, 1, ((128, shape[-1]),)))
        np.testing.assert_array_equal(columns.to_array(EXACT), want[:, 128:])
    ordered = np.random.default_rng(1).permutation(shape[0])
    turned = replace(weight, row_order=lambda: ordered)
    np.testing.assert_array_equal(turned.to_array(EXACT), want[ordered])
    np.testing.assert_array_equal(turned.rows(3, 9).to_array(EXACT), want[ordered][3:9])


def test_a_row_with_nan_gives_nan(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    stored, _, quantization = fp8.quantised({name: torch.ones(64, 256)}, "blocks")
    stored[name].view(torch.uint8)[3, 200] = 0xFF
    stored["model.norm.weight"] = torch.ones(4)
    config = config_of("llama") | {"num_hidden_layers": 1}
    weight = open_model(write(tmp_path / "model", config, stored, quantization)).weights[name]
    values = weight.to_array(EXACT)
    assert np.isnan(values[3, 128:]).all() and np.isnan(values).sum() == 128
    if not unavailable_reason():
        x = np.ones((1, 256), np.float32)
        ops = NativeOps()
        assert np.flatnonzero(np.isnan(ops.linear(x, ops.load(weight), name="op")[0])).tolist() == [3]


def _small(tmp_path: Path, kind: str = "blocks", change: Any = None, **config: Any) -> Path:
    hf_config = config_of("llama", hidden_size=128, num_hidden_layers=1, vocab_size=64, tie_word_embeddings=True)
    hf = random_models.build(hf_config, 1)
    path, _ = folder_of(tmp_path, hf_config, hf, kind)
    if config:
        raw = json.loads((path / "config.json").read_text())
        raw["quantization_config"] |= config
        (path / "config.json").write_text(json.dumps(raw))
    if change is not None:
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors")
    return path


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    narrow, unused = open_model(_small(tmp_path, "tensor")).warnings
    assert narrow == "7 matrices are FP8: computed on as stored, with activations in float32"
    assert unused == (
        "tensors that are not used: 7 of scales of FP8 activations and caches (activations stay float32, and "
        "--kv-dtype is the cache's)"
    )


_PACKED = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
HELD: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
    "blocks": (
        {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp.gate"]},
        {"0.mlp.gate_proj": "E4M3", "1.mlp.gate": None, "1.mlp.gate_proj": "E4M3"},
    ),
    "rows": (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
            "ignore": ["re:.*self_attn.*", "re:model.language_model.*mlp.gate$"],
        },
        {"0.self_attn.q_proj": None, "0.mlp.gate": None, "0.mlp.gate_proj": "E4M3"},
    ),
    "pairs": (
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": _PACKED}},
        },
        {"0.mlp.up_proj": "F32"},
    ),
    "mxfp4": (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        {"0.mlp.experts.3.up_proj": "MXFP4", "0.mlp.router": None, "0.self_attn.q_proj": None},
    ),
}


@pytest.mark.parametrize("how", HELD)
def test_a_config_alone_tells_the_types_in_memory(how: str) -> None:
    quantization, expected = HELD[how]
    config = {"quantization_config": quantization}
    for name, dtype in expected.items():
        assert held_type(config, f"model.layers.{name}.weight", (64, 256)) == dtype, name
    assert held_type({}, "model.layers.0.mlp.up_proj.weight", (64, 256)) is None
    for name in ("lm_head", "model.embed_tokens", "model.norm"):
        assert held_type(config, f"{name}.weight", (64, 256)[: 1 + (name != "model.norm")]) is None
    if how in ("blocks", "rows"):  # no whole blocks
        assert held_type(config, "model.layers.0.mlp.up_proj.weight", (64, 96)) == "F32"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another block": (
        "blocks",
        {"weight_block_size": [64, 64]},
        "weight_block_size=[64, 64]: expected",
    ),
    "another float": ("blocks", {"fmt": "e5m2"}, "fmt='e5m2': expected 'e4m3'"),
    "scales in powers": ("blocks", {"scale_fmt": "ue8m0"}, "scale_fmt='ue8m0'"),
    "modules by number": ("blocks", {"modules_to_not_convert": [3]}, "expected a list of modules' names"),
    "a key that nobody knows": ("blocks", {"twist": 2}, "twist=2: is not supported with fp8"),
    "integers": ("rows", {"format": "pack-quantized"}, "format='pack-quantized': expected 'float-quantized'"),
    "rotated": ("rows", {"transform_config": {"R1": 1}}, "transform_config"),
    "sparse": ("rows", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    "no groups": ("rows", {"config_groups": None}, "expected an object of groups"),
    "another algorithm": ("modelopt", {"quant_algo": "W4A8_AWQ"}, "quant_algo='W4A8_AWQ': expected 'FP8' or 'NVFP4'"),
    "AWQ": ("blocks", {"quant_method": "awq"}, "quantization method 'awq' is not supported in a Hugging Face folder"),
    "GPTQ": ("blocks", {"quant_method": "gptq"}, "use the model's unquantised folder with --quantize, or a GGUF file"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_kinds_are_refused_by_name(what: str, tmp_path: Path) -> None:
    kind, changes, words = REFUSED[what]
    path = _small(tmp_path, kind, **changes)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        read_config(open_model(path).config)
    assert words in str(caught.value)
    with pytest.raises(ConfigError) as caught_alone:
        read_config(json.loads((path / "config.json").read_text()))
    assert words in str(caught_alone.value)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("q_proj.weight_scale_inv", "there is no 'model.layers.0.self_attn.q_proj.weight_sc"),
        ("q_proj.weight", "q_proj"),
    ],
)
def test_a_part_alone_is_refused(part: str, words: str, tmp_path: Path) -> None:
    path = _small(tmp_path, change=lambda tensors: tensors.pop(f"model.layers.0.self_attn.{part}"))
    with pytest.raises(CheckpointError) as caught:
        weights_of(path)
    assert words in str(caught.value)


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight_scale_inv"
    path = _small(tmp_path, change=lambda tensors: tensors.update({name: torch.ones(3, 7)}))
    with pytest.raises(
        CheckpointError, match=r"q_proj.weight_scale_inv is F32 \[3, 7\].*one for each block of \[128, 128\]"
    ):
        open_model(path)


@needs_kernels
@pytest.mark.parametrize("kind", ["blocks", "rows"])
def test_ranks_and_gguf_files(kind: str, tmp_path: Path) -> None:
    """Two ranks have the bits of one process, and a converted file the values: rows of whole and of cut blocks."""
    from karat.convert import convert
    from karat.convert.mix import MIXES
    from karat.engine.ranks.rank_model import ParallelModel

    config = config_of("llama", hidden_size=384, intermediate_size=640, num_attention_heads=6, num_key_value_heads=2)
    config |= {"head_dim": 64, "num_hidden_layers": 1, "vocab_size": 97, "tie_word_embeddings": True}
    path, values = folder_of(tmp_path, config, random_models.build(config, 3), kind)
    texts = [[random.Random(f"{SEED}-{n}").randrange(97) for _ in range(n)] for n in (40, 1, 9)]
    want = parallel.single(path, texts, chunk=16)
    team = ParallelModel(2)
    try:
        got = parallel.parallel(team, path, texts, chunk=64)
    finally:
        team.close()
    for one, other in zip(want, got, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))
    convert(open_model(path), tmp_path / "f32.gguf", MIXES["F32"])
    stored = weights_of(tmp_path / "f32.gguf")
    for name, exact in values.items():
        np.testing.assert_array_equal(stored[name].to_array(EXACT), exact.numpy().astype(np.float32))
