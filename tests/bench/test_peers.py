"""A peer computes on exactly the weights that Karat has: read back from its file, and seen in its logits.

Covers: karat.bench.peers.api, karat.bench.peers.gguf_file, karat.bench.peers.hf, karat.bench.peers.llamacpp,
karat.bench.peers.ov.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.bench import peers, shape_configs
from karat.bench.peers import PEERS, PeerModel, load_peer
from karat.bench.shapes import STORED_TYPES, RandomModel, random_model
from karat.engine.llm import LLM
from karat.errors import ExecutorError, UsageError
from karat.models.registry import find_weights, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
PROMPT = [3, 99, 280, 7, 7, 511, 0, 42, 130, 5, 77, 200]


@pytest.fixture
def made_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """made_of(family, stored): a random model, untied and with scaled RoPE for llama."""

    def make(family: str, stored: str) -> RandomModel:
        monkeypatch.setattr(shape_configs, "CONFIGS", {"tiny": shape_configs.shape_config("tiny"), "llama": LLAMA})
        return random_model("tiny" if family == "qwen2" else family, stored=stored)

    return make


def peer_model(made: RandomModel, quantize: str | None = None) -> PeerModel:
    config = read_config(made.checkpoint.config)
    weights = {weight.name: weight for weight in find_weights(config, made.checkpoint).values()}
    return PeerModel(
        raw_config=made.checkpoint.config, config=config, weights=weights, quantize=quantize, num_threads=1
    )


def unpermuted(rows: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Rows 0, 2, 4, … of each head first, then 1, 3, 5, …"""
    heads = np.split(rows, num_heads)
    return np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in heads])


@pytest.mark.drawn(3)
@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("stored", STORED_TYPES)
def test_the_file_holds_the_same_bytes(family: str, stored: str, made_of: Any, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from karat.bench.peers.gguf_file import write_peer_file

    model = peer_model(made_of(family, stored))
    write_peer_file(tmp_path / "model.gguf", model)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    factors = tensors.pop("rope_freqs.weight", None)
    assert (factors is not None) == (family == "llama")
    assert len(tensors) == len(model.weights)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), 2)
    for name, weight in model.weights.items():
        tensor = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        assert tuple(reversed(tensor.shape)) == weight.shape
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(weight.shape)
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = unpermuted(values, 4 if "q_proj" in name else 2)
        np.testing.assert_array_equal(values, weight.to_array(np.dtype(np.float32)))
        if len(weight.shape) == 2:
            assert tensor.tensor_type.name == weight.dtype
            assert weight.dtype == stored.upper() or stored.endswith(("_k_m", "_moe"))


def test_weights_are_quantised_as_karat_does(made_of: Any, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from karat.bench.peers.gguf_file import write_peer_file

    model = peer_model(made_of("qwen2", "f32"), quantize="q8_0")
    write_peer_file(tmp_path / "model.gguf", model)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    embedding = model.weights["model.embed_tokens.weight"].to_array(np.dtype(np.float32))
    assert tensors["token_embd.weight"].tensor_type.name == "Q8_0"
    np.testing.assert_array_equal(
        tensors["token_embd.weight"].data, gguf.quants.quantize(embedding, gguf.GGMLQuantizationType.Q8_0)
    )


def test_what_the_file_cannot_say_is_refused(made_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    from karat.bench.peers.gguf_file import write_peer_file

    made_of("qwen2", "f32")
    monkeypatch.setitem(LLAMA, "rope_scaling", {"rope_type": "yarn", "factor": 2.0, "attention_factor": 3.0})
    with pytest.raises(UsageError, match=r"yarn with attention_factor=3\.0 .*; measure it without peer"):
        write_peer_file(tmp_path / "model.gguf", peer_model(random_model("llama", stored="f32")))


def deviation(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> float:
    return float(np.sqrt(np.mean((ours - theirs) ** 2)) / ours.std())


def exercise(peer: peers.Peer, prompts: Sequence[Sequence[int]]) -> None:
    """Everything that a measurement asks of a side, twice."""
    for _ in range(2):
        assert peer.prefill(prompts[0]).seconds > 0
        peer.start(prompts, 3)
        assert [sample.seconds > 0 for sample in peer.steps(3)] == [True] * 3
        peer.stop()
    assert peer.details["threads"] == 1 and peer.version


# llama.cpp keeps keys and values in float16 and rounds activations to 8 bits before quantised weights.
@pytest.mark.parametrize(
    ("name", "stored", "bound"),
    [
        ("transformers", "f32", 1e-5),
        ("transformers", "q4_0", 1e-5),
        ("transformers", "bf16", 0.05),
        ("llama.cpp", "f32", 2e-3),
        ("llama.cpp", "f16", 5e-3),
        ("llama.cpp", "q8_0", 0.05),
        ("llama.cpp", "q4_0", 0.05),
    ],
)
@pytest.mark.peers
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_peer_computes_the_same_model(name: str, stored: str, bound: float, family: str, made_of: Any) -> None:
    if any(importlib.util.find_spec(module) is None for module in PEERS[name].imports):
        pytest.skip(f"{name} is not installed")
    made = made_of(family, stored)
    peer = load_peer(name, peer_model(made))
    try:
        theirs = peer.logits(PROMPT)
        assert theirs is not None
        ours = LLM(made.checkpoint, tokenizer=made.tokenizer, executor="reference").logits(PROMPT)
        assert deviation(ours[-1], theirs) < bound < deviation(ours[-2], theirs)
        exercise(peer, [PROMPT, PROMPT[::-1], PROMPT])
    finally:
        peer.close()


@pytest.mark.parametrize("name", ["openvino", "openvino-f32"])
@pytest.mark.parametrize("stored", ["q4_0", "f16"])
def test_openvino_loads_the_file_and_goes_on(stored: str, name: str, made_of: Any) -> None:
    pytest.importorskip("openvino_genai")
    pytest.importorskip("gguf")
    peer = load_peer(name, peer_model(made_of("qwen2", stored)))
    try:
        assert peer.name == name
        assert peer.logits(PROMPT) is None
        exercise(peer, [PROMPT, PROMPT[::-1], PROMPT])
    finally:
        peer.close()


def test_a_peer_that_is_missing_says_how_to_get_it(made_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    model = peer_model(made_of("qwen2", "f32"))
    for name in PEERS:
        with pytest.raises(ExecutorError, match=rf"the peer {name} needs .*; install with: pip install "):
            load_peer(name, model)
    with pytest.raises(UsageError, match=r"peer 'vllm' is not known; there are llama\.cpp, "):
        load_peer("vllm", model)
