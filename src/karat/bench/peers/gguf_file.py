"""A GGUF file of exactly the weights that Karat runs: the same blocks for every matrix, embedding and head included.

Vectors are float32, as the format wants them. The vocabulary is made up: token ids are all that is measured with.
"""

import math
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from karat.bench.peers.api import PeerModel
from karat.config import ModelConfig, RopeConfig
from karat.errors import UsageError
from karat.text.made_up import made_up_tokens

_ARCHITECTURES = {
    "qwen2": (gguf.MODEL_ARCH.QWEN2, "qwen2"),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, "qwen2"),
    "llama": (gguf.MODEL_ARCH.LLAMA, "llama-bpe"),
}
_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


def write_gguf(path: Path, model: PeerModel) -> None:
    """Writes `path`, one tensor in memory at a time. UsageError for what the file cannot say as config.json does."""
    config = model.config
    if config.model_type not in _ARCHITECTURES or config.rope.rope_type not in ("default", "llama3"):
        raise UsageError(
            f"a peer's GGUF file cannot be made of model type {config.model_type} with {config.rope.rope_type} RoPE; "
            f"expected {', '.join(_ARCHITECTURES)} with default or llama3"
        )
    if any(window is not None for window in config.layer_windows):
        raise UsageError("a peer's GGUF file cannot be made of a model with a sliding window; measure it without peer")
    arch, pre_tokenizer = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    try:
        _write_metadata(writer, config)
        if (file_type := _FILE_TYPES.get(model.stored("model.embed_tokens.weight").dtype)) is not None:
            writer.add_file_type(file_type)  # else it is a mix, or a name for none
        _write_vocabulary(writer, config.vocab_size, pre_tokenizer)
        names = gguf.get_tensor_name_map(arch, config.num_layers)
        if config.rope.rope_type == "llama3":
            factors = _llama3_factors(config.rope, config.head_dim)
            writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
        for name in model.weights:
            data, kind = _tensor(model, name)
            target = names.get_name(name, try_suffixes=(".weight", ".bias"))
            writer.add_tensor_info(target, data.shape, data.dtype, data.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if config.rope.rope_type == "llama3":
            writer.write_tensor_data(factors)
        for name in model.weights:
            writer.write_tensor_data(_tensor(model, name)[0])
    finally:
        writer.close()


def _write_metadata(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_name("karat bench")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _write_vocabulary(writer: gguf.GGUFWriter, vocab_size: int, pre_tokenizer: str) -> None:
    tokens = made_up_tokens(vocab_size)
    last = len(tokens) - 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * last + [gguf.TokenType.CONTROL])  # OpenVINO fails without one
    writer.add_token_merges(["Ġ a"])  # llama.cpp wants one
    writer.add_bos_token_id(last)
    writer.add_eos_token_id(last)
    writer.add_pad_token_id(last)
    writer.add_add_bos_token(False)


def _tensor(model: PeerModel, name: str) -> tuple[NDArray[np.generic], gguf.GGMLQuantizationType]:
    """The bytes of a weight [rows, row bytes] and their type; a vector in float32."""
    weight = model.stored(name)
    if len(weight.shape) < 2:
        return weight.to_array(np.dtype(np.float32)), gguf.GGMLQuantizationType.F32
    rows = weight.data.reshape(weight.shape[0], -1)
    heads = {"q_proj.weight": model.config.num_heads, "k_proj.weight": model.config.num_kv_heads}
    if model.config.model_type == "llama" and (num_heads := heads.get(".".join(name.split(".")[-2:]))):
        rows = _permuted(rows, num_heads)
    return rows, gguf.GGMLQuantizationType[weight.dtype]


def _permuted(rows: NDArray[np.uint8], num_heads: int) -> NDArray[np.uint8]:
    """llama.cpp turns neighbouring rows of a Llama head, Hugging Face those half a head apart."""
    split = rows.reshape(num_heads, 2, -1, rows.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(split).reshape(rows.shape)


def _llama3_factors(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """By what llama.cpp divides each frequency [head_dim / 2]; Llama 3.1's smoothing between the two wavelengths."""
    factors = []
    for i in range(0, head_dim, 2):
        turns = rope.original_max_position_embeddings / (2 * math.pi * rope.theta ** (i / head_dim))
        smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        smooth = min(1.0, max(0.0, smooth))
        factors.append(1 / ((1 - smooth) / rope.factor + smooth))
    return np.array(factors, np.float32)
