"""The shapes are those of the released models; their weights are random, reproducible and cheap in memory.

Covers: karat.bench.shape_configs.
"""

import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.bench import shape_configs
from karat.bench.shape_configs import SHAPES, shape_config
from karat.bench.shapes import DEVIATION, STORED_TYPES, random_model, write_shape, written
from karat.checkpoint.gguf.form import AS_GGUF
from karat.convert import convert
from karat.convert.mix import MIXES
from karat.engine.llm import LLM
from karat.errors import UsageError
from karat.models.decoder import weight_specs
from karat.models.opening import open_gguf
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS
from karat.request import SamplingParams
from karat.text.placeholder import placeholder_tokens
from tests.convert.folders import FAMILIES, folder_of

WINDOWS = ["sliding_attention", "full_attention"]
WINDOWS = ["sliding_attention", "full_attention"]
MIXED = ("q4_k_m", "mxfp4_moe")
RELEASED = {  # parameters
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "llama-3.2-1b": 1_235_814_400,
    "gemma-3-1b": 999_885_952,
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_shape_has_the_parameters_of_the_released_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    raw = shape_config(name)
    fields = {key: value for key, value in raw.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(raw["model_type"], **fields)
        )
    theirs = {parameter: tuple(tensor.shape) for parameter, tensor in model.named_parameters()}
    ours = {spec.source: spec.shape for spec in weight_specs(read_config(raw))}
    assert ours == theirs
    assert sum(map(prod, ours.values())) == model.num_parameters() == RELEASED[name]


@pytest.mark.parametrize(
    ("name", "whole", "parameters"),
    [
        ("qwen3-30b-a3b-cut", {"num_hidden_layers": 48, "vocab_size": 151936}, 30_532_122_624),
        (
            "gpt-oss-20b-cut",
            {
                "num_hidden_layers": 24,
                "vocab_size": 201088,
                "layer_types": WINDOWS * 12,
            },
            20_914_757_184,
        ),
        (
            "gemma-4-26b-a4b-cut",
            {"num_hidden_layers": 30, "vocab_size": 262144, "vocab_size_per_layer_input": 262144},
            25_233_141_790,
        ),
    ],
)
def test_with_all_layers_and_tokens_it_has_those_of_the_released_model(
    name: str, whole: dict[str, Any], parameters: int
) -> None:
    specs = weight_specs(read_config(shape_config(name) | whole))
    assert sum(prod(spec.shape) for spec in specs) == parameters


@pytest.mark.parametrize("name", [name for name in SHAPES if name.startswith("qwen3.5")])
def test_a_hybrid_has_the_tensors_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    raw = {key: value for key, value in shape_config(name).items() if key != AS_GGUF}
    fields = {key: value for key, value in raw.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(raw["model_type"], **fields)
        )
    theirs = {parameter: tuple(tensor.shape) for parameter, tensor in model.named_parameters()}
    ours = {spec.source: (spec.stored or (spec.shape,))[0] for spec in weight_specs(read_config(raw))}
    assert sum(map(prod, ours.values())) == model.num_parameters()
    assert {name: ours[name] for name in ours if ".experts." not in name} == {
        name: theirs[name] for name in theirs if ".experts." not in name
    }, "all but experts, which transformers joins"


@pytest.mark.parametrize(("name", "stored"), [("qwen3.5-9b-cut", "q4_k_m"), ("qwen3.5-35b-a3b-cut", "q8_0")])
def test_a_hybrid_and_its_file_are_one_model(
    name: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiled value heads, of which two are in one block of a K format; a state that decays."""
    small = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 4, "head_dim": 32, "intermediate_size": 256}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
    kept = {key: size for key, size in small.items() if key in shape_config(name)}
    monkeypatch.setitem(shape_configs.CONFIGS, name, shape_config(name) | kept)
    made = random_model(name, stored=stored)
    write_shape(tmp_path / "it.gguf", name, stored)
    ids = np.random.default_rng(0).integers(0, 500, 90).tolist()
    found = [
        LLM(source, tokenizer=made.tokenizer, max_model_len=128).logits(ids)
        for source in (made.checkpoint, open_gguf(tmp_path / "it.gguf"))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isfinite(found[0]).all() and found[0].std() > 0.05
    rates = made.checkpoint.weights["model.layers.0.linear_attn.A_log"].to_array(np.dtype(np.float32))
    assert rates.max() < -0.5


def test_there_is_one_whose_hidden_size_is_a_multiple_of_256() -> None:
    assert {name for name in SHAPES if read_config(shape_config(name)).hidden_size % 256 == 0} >= {
        "qwen2.5-1.5b",
        "llama-3.2-1b",
    }


@pytest.mark.parametrize("stored", STORED_TYPES)
def test_the_same_seed_gives_the_same_bits(stored: str) -> None:
    first, again, other = (random_model("tiny", stored=stored, seed=seed).checkpoint.weights for seed in (3, 3, 4))
    assert all(np.array_equal(first[name].data, again[name].data) for name in first)
    assert not any(np.array_equal(first[name].data, other[name].data) for name in first)
    assert len({weight.data.tobytes()[:256] for weight in first.values()}) == len(first), "two tensors are one"


@pytest.mark.parametrize("stored", STORED_TYPES)
def test_the_values_are_those_of_a_fresh_model(stored: str) -> None:
    made = random_model("tiny", stored=stored)
    for weight in find_weights(read_config(made.checkpoint.config), made.checkpoint).values():
        values = weight.to_array(np.dtype(np.float32))
        assert values.shape == weight.shape and np.isfinite(values).all() and not weight.data.flags.writeable
        if len(weight.shape) == 2:
            assert weight.dtype == stored.upper() or (stored in MIXED and weight.dtype in FORMATS)
            assert values.std() == pytest.approx(DEVIATION, rel=0.1)
            assert abs(values.mean()) < DEVIATION / 4  # the codes of Q4_0 are from -8 to 7
        else:
            assert weight.dtype == (stored.upper() if stored in ("f32", "f16", "bf16") else "F32")
            assert values.mean() == pytest.approx(1.0 if "norm" in weight.name else 0.0, abs=0.02)


@pytest.mark.parametrize("stored", STORED_TYPES)
def test_a_model_runs_on_it(stored: str) -> None:
    made = random_model("tiny", stored=stored)
    llm = LLM(made.checkpoint, tokenizer=made.tokenizer, max_model_len=32)
    logits = llm.logits([5, 6, 7, 8])
    assert np.isfinite(logits).all() and logits.std() > 0.05
    assert llm.path == made.checkpoint.path


def test_only_the_largest_tensor_is_in_memory() -> None:
    tracemalloc.start()
    try:
        weights = random_model("qwen2.5-0.5b", stored="q4_0").checkpoint.weights.values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(weight.num_bytes for weight in weights) == 494_032_768 * 18 // 32 + _vectors_extra()
    assert peak < max(weight.num_bytes for weight in weights) * 1.1 + (120 << 20)  # the rest: drawing, the tokenizer


def _vectors_extra() -> int:
    """Vectors are float32 beside the blocks: 49 norms, and the biases of 24 layers."""
    num_values = 49 * 896 + 24 * (896 + 128 + 128)
    return num_values * 4 - num_values * 18 // 32


def test_every_token_has_a_text_of_its_own() -> None:
    tokenizer = random_model("tiny").tokenizer
    texts = [tokenizer.decode([i]) for i in range(256, 512)]
    assert len(set(texts)) == 256 and all(text.startswith(" ") for text in texts)
    assert tokenizer.vocab_size == 512
    tokens = placeholder_tokens(151936)
    assert len(set(tokens)) == len(tokens) == 151936
    assert placeholder_tokens(100) == tokens[:100]


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"shape 'gpt' is not known; there are qwen2\.5-0\.5b, "):
        random_model("gpt")
    with pytest.raises(UsageError, match=r"weights 'int3': expected one of f32, f16"):
        random_model("tiny", stored="int3")


@pytest.mark.parametrize(("name", "stored"), [("qwen3-30b-a3b-cut", "q4_k_m"), ("gpt-oss-20b-cut", "mxfp4_moe")])
def test_a_file_with_experts_is_the_same_model(
    name: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer and smaller layers: the types that `karat convert` chooses, and the same logits."""
    small: dict[str, Any] = {"vocab_size": 300, "hidden_size": 256, "num_hidden_layers": 2, "head_dim": 64}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}
    small |= {"layer_types": WINDOWS} if "gpt" in name else {"moe_intermediate_size": 256}
    monkeypatch.setitem(shape_configs.CONFIGS, name, shape_config(name) | small)
    made, path = random_model(name, stored=stored), tmp_path / "model.gguf"
    write_shape(path, name, stored)
    again = convert(open_gguf(path), tmp_path / "again.gguf", MIXES[stored.upper()])  # refuses to quantise again
    assert {report.dtype for report in again.tensors} == {weight.dtype for weight in made.checkpoint.weights.values()}
    prompt = [5, 6, 7, 8, 200]
    with LLM(made.checkpoint, tokenizer=made.tokenizer, max_model_len=64) as llm:
        want = llm.logits(prompt)
    with LLM(path, max_model_len=64) as llm:
        np.testing.assert_array_equal(llm.logits(prompt), want)


@pytest.mark.parametrize("stored", ["bf16", "q8_0"])
def test_a_file_of_a_shape_is_the_same_model(stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of llama's architecture, whose files have rows of Q and K in another order; written anew from a file, too."""
    small = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "head_dim": 16,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 256,
    }
    monkeypatch.setitem(shape_configs.CONFIGS, "small", shape_config("llama-3.2-1b") | small)
    made = random_model("small", stored=stored).checkpoint
    once = written(made, tmp_path / "once.gguf")
    twice = written(once, tmp_path / "twice.gguf")
    for back in (once, twice):
        assert back.weights.keys() == made.weights.keys()
        for name, weight in made.weights.items():
            same = np.dtype(np.float32)
            np.testing.assert_array_equal(back.weights[name].to_array(same), weight.to_array(same), err_msg=name)
        assert read_config(back.config).rope == read_config(made.config).rope


def test_the_file_of_a_shape_is_a_whole_model(tmp_path: Path) -> None:
    write_shape(tmp_path / "tiny.gguf", "tiny", "q8_0")
    with LLM(tmp_path / "tiny.gguf", generation_config="none") as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3


def test_of_a_shape_that_is_none_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not known"):
        write_shape(tmp_path / "x.gguf", "no-shape", "bf16")
    assert not list(tmp_path.iterdir())


KINDS = (
    "exaone4 with windows",
    "gemma2",
    "gemma3_text",
    "granite",
    "ministral3",
    "muse_glimmer_text",
    "olmo2",
    "olmo3",
    "phi3 with longrope",
    "seed_oss",
    "smollm3",
)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", KINDS)
def test_any_config_is_a_shape(kind: str, tmp_path: Path) -> None:
    """And the file that is written of it for a peer, or for ranks, is the same model."""
    config = folder_of(tmp_path / "model", **FAMILIES[kind]) / "config.json"
    made = random_model(str(config), stored="q8_0")
    file = written(made.checkpoint, tmp_path / "model.gguf")
    prompt = [5, 6, 7, 8, 200]
    with LLM(made.checkpoint, tokenizer=made.tokenizer, max_model_len=32) as llm:
        want = llm.logits(prompt)
    with LLM(file, tokenizer=made.tokenizer, max_model_len=32) as llm:
        np.testing.assert_array_equal(llm.logits(prompt), want)
