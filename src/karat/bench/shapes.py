"""Models of well-known shapes with random weights: to measure, not to talk to. Nothing is downloaded.

All weights of a model are views of one pool of random numbers (deviation 0.02, as models are initialised), at different
places. So only the bytes of the largest tensor are in memory beside the executor's weights, and they are freed with the
checkpoint. Block formats are drawn as blocks, so nothing is quantised.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.bench.peers.api import PeerModel
from karat.bench.peers.gguf_file import write_peer_file
from karat.checkpoint import FolderCheckpoint, GgufCheckpoint, Weight
from karat.checkpoint.gguf.form import AS_GGUF
from karat.checkpoint.gguf.writer import scalar, write_gguf
from karat.checkpoint.weights import PLAIN_BYTES
from karat.config import ModelConfig
from karat.convert.conversion import long_rope, own_tensors, rope_factors
from karat.convert.metadata import model_pairs, rope_of
from karat.convert.mix import MIXES, is_router, type_of
from karat.errors import UsageError
from karat.models.decoder import weight_specs
from karat.models.opening import config_alone, open_gguf
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS
from karat.text import Tokenizer
from karat.text.placeholder import placeholder_tokenizer

DEVIATION = 0.02
_MIXES = ("Q4_K_M", "MXFP4_MOE")
STORED_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", *(name.lower() for name in _MIXES))

_SLACK_BYTES = 8 << 20  # of the pool, beyond the largest tensor, for different places
_CHUNK = 1 << 20  # numbers drawn at a time
_QUANTISED = 1 << 18  # numbers that are quantised for the blocks of a mix

_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "torch_dtype": "bfloat16",
}
_QWEN35 = {  # stored as GGUF files store it: only there a block of 256 columns may lie over two heads
    AS_GGUF: True,
    "vocab_size": 16384,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}
_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-0.5b": {
        **_QWEN2,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_window_layers": 21,
    },
    "qwen2.5-1.5b": {
        **_QWEN2,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_window_layers": 21,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3-30b-a3b-cut": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 16384,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
    "gpt-oss-20b-cut": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 16384,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 6,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "sliding_window": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3.5-0.8b": {
        **_QWEN35,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3.5-9b-cut": {
        **_QWEN35,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3.5-35b-a3b-cut": {
        **_QWEN35,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "linear_num_value_heads": 32,
        "tie_word_embeddings": False,
    },
    "olmoe-small": {  # a whole model of the form of OLMoE-1B-7B, a quarter as wide and half as deep
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "vocab_size": 50304,
        "hidden_size": 512,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "pad_token_id": 1,
        "torch_dtype": "bfloat16",
    },
    "tiny": {
        **_QWEN2,
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "sliding_window": 512,
        "max_window_layers": 2,
    },
}
SHAPES = tuple(_CONFIGS)


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A checkpoint in memory, and a tokenizer with a word for every token id; for karat.engine.llm.LLM."""

    checkpoint: FolderCheckpoint
    tokenizer: Tokenizer


def shape_config(name: str) -> dict[str, Any]:
    """The config.json of a shape, or the one at this path. An unknown name is a UsageError that lists the names."""
    if name.endswith(".json") and Path(name).is_file():
        return config_alone(Path(name))
    if name not in _CONFIGS:
        raise UsageError(f"shape {name!r} is not known; there are {', '.join(SHAPES)}, and any config.json")
    return dict(_CONFIGS[name])


def random_model(name: str, *, stored: str = "bf16", seed: int = 0) -> RandomModel:
    """The shape `name` with weights stored as `stored`, one of STORED_TYPES; the same bits for the same seed.

    Vectors (norms and biases), routers and matrices whose rows are no whole number of blocks are float32, if `stored`
    is a block format. A mix gives each matrix the type that `karat convert` gives it.
    """
    raw = shape_config(name)
    if stored not in STORED_TYPES:
        raise UsageError(f"weights {stored!r}: expected one of {', '.join(STORED_TYPES)}")
    path = Path(f"random {name}, {stored}, seed {seed}")
    config = read_config(raw)
    specs = weight_specs(config)
    shapes = {spec.source: spec.shape for spec in specs}
    as_stored = {spec.source: spec.stored[-1] for spec in specs if spec.stored}
    types = {source: _stored_type(config, source, shape, stored.upper()) for source, shape in shapes.items()}
    sizes = {source: _num_bytes(types[source], shape) for source, shape in shapes.items()}
    rng = np.random.default_rng(seed)
    pools = {
        dtype: _draw(rng, dtype, _SLACK_BYTES + max(n for source, n in sizes.items() if types[source] == dtype))
        for dtype in sorted(set(types.values()))
    }
    weights = {}
    for source, shape in shapes.items():
        dtype, unit = types[source], _unit_bytes(types[source])
        start = int(rng.integers((len(pools[dtype]) - sizes[source]) // unit + 1)) * unit
        data = pools[dtype][start : start + sizes[source]]
        if len(shape) == 1 and (mean := _mean(source)):
            data = _draw(rng, dtype, sizes[source], mean=mean)
        weights[source] = Weight(source, dtype, as_stored.get(source, shape), data, path)
    return RandomModel(FolderCheckpoint(path, raw, None, weights), placeholder_tokenizer(config.vocab_size))


def written(checkpoint: FolderCheckpoint | GgufCheckpoint, path: Path) -> GgufCheckpoint:
    """The weights of a checkpoint as a GGUF file without a tokenizer, opened: for ranks, which read files."""
    config, weights = read_config(checkpoint.config), checkpoint.weights
    tensors = own_tensors(config, weights, lambda weight: weight.dtype, weights.__getitem__)
    if rope_of(config).rope_type == "llama3":
        tensors.append(rope_factors(config))
    tensors += long_rope(config)
    write_gguf(path, [*model_pairs(config, path.stem), ("general.file_type", scalar("UINT32", 0))], tensors)
    return open_gguf(path)


def write_shape(path: Path, shape: str, stored: str) -> None:
    """A GGUF file of the shape with random weights, stored as `stored`, for servers and programs that read files.

    UsageError for an unknown shape or type.
    """
    checkpoint = random_model(shape, stored=stored).checkpoint
    config = read_config(checkpoint.config)
    weights = {weight.name: weight for weight in find_weights(config, checkpoint).values()}
    write_peer_file(
        path, PeerModel(raw_config=checkpoint.config, config=config, weights=weights, quantize=None, num_threads=1)
    )


def _stored_type(config: ModelConfig, source: str, shape: tuple[int, ...], wanted: str) -> str:
    if wanted in _MIXES:
        layer = re.match(r"model\.layers\.(\d+)\.", source)
        return type_of(MIXES[wanted], source, shape, int(layer[1]) if layer else None, config)
    format_ = FORMATS.get(wanted)
    if format_ is None:
        return wanted
    return wanted if len(shape) > 1 and shape[-1] % format_.block_size == 0 and not is_router(source) else "F32"


def _mean(source: str) -> float:
    """Of a vector: a norm's is 1, and that of rates of decay -1, which is what A_log is in shapes stored as GGUF."""
    return 1.0 if "norm" in source else -1.0 if source.endswith("A_log") else 0.0


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return FORMATS[dtype].num_bytes(prod(shape)) if dtype in FORMATS else prod(shape) * PLAIN_BYTES[dtype]


def _unit_bytes(dtype: str) -> int:
    """A view of the pool begins at a multiple of this many bytes."""
    return FORMATS[dtype].block_bytes if dtype in FORMATS else PLAIN_BYTES[dtype]


def _draw(rng: np.random.Generator, dtype: str, num_bytes: int, mean: float = 0.0) -> NDArray[np.uint8]:
    """At least `num_bytes` bytes of stored numbers, read-only: normal, or of uniform codes in a block format."""
    unit = _unit_bytes(dtype)
    count = -(-num_bytes // unit)
    pool = np.empty((count, unit), np.uint8)
    for start in range(0, count, _CHUNK):
        part = pool[start : start + _CHUNK]
        if dtype in FORMATS:
            part[:] = _draw_blocks(rng, dtype, len(part))
            continue
        numbers = (mean + DEVIATION * rng.standard_normal(len(part), np.float32)).astype(np.float32)
        if dtype == "BF16":
            bits = numbers.view(np.uint32) >> np.uint32(16)
            part[:] = bits.astype("<u2").view(np.uint8).reshape(part.shape)
        else:
            part[:] = numbers.astype("<f4" if dtype == "F32" else "<f2").view(np.uint8).reshape(part.shape)
    flat = pool.reshape(-1)
    flat.flags.writeable = False
    return flat


def _draw_blocks(rng: np.random.Generator, dtype: str, count: int) -> NDArray[np.uint8]:
    """Blocks of a 16-bit scale and uniform codes, which are symmetric but for the lowest code of Q4_0.

    Of the formats of mixes, blocks in random order of as many quantised normal numbers as take a moment.
    """
    format_ = FORMATS[dtype]
    if dtype not in ("Q8_0", "Q4_0"):
        values = DEVIATION * rng.standard_normal((_QUANTISED // format_.block_size, format_.block_size), np.float32)
        return format_.quantize(values.astype(np.float32))[rng.integers(len(values), size=count)]
    blocks = rng.integers(0, 256, (count, format_.block_bytes), np.uint8)
    if dtype == "Q8_0":
        blocks[:, 2:][blocks[:, 2:] == 0x80] = 0x81  # -128, which no quantiser writes
    largest = {"Q8_0": 127, "Q4_0": 8}[dtype]
    scales = DEVIATION * np.sqrt(3) / largest * rng.uniform(0.75, 1.25, (count, 1))  # uniform: largest / √3
    blocks[:, :2] = scales.astype("<f2").view(np.uint8)
    return blocks
