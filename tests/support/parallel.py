"""Models in every stored type for tensor-parallel tests, written as files, and their logits on one process or many."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize

from karat.checkpoint.gguf.writer import NewTensor, scalar, write_gguf
from karat.checkpoint.overrides import NO_OVERRIDES
from karat.config import FloatName, ModelConfig
from karat.convert.metadata import model_pairs
from karat.engine.engine import Engine
from karat.engine.engine_config import EngineConfig
from karat.engine.model_running import open_runner
from karat.engine.ranks.messages import LoadRank
from karat.engine.ranks.rank_model import ParallelModel
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import bytes_of_state
from karat.models.decoder import outline, weight_specs
from karat.models.families import FAMILIES
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops import registry
from karat.ops.executor import Runner
from karat.quant import FORMATS
from karat.ranks.group import SINGLE, Group
from karat.text.placeholder import placeholder_tokenizer
from tests.support.sideways import sideways

# What a family's models need that others do not.
_OWN: dict[str, dict[str, Any]] = {
    "exaone4": {"sliding_window": None, "pad_token_id": 0},  # a cache of one group
    "gemma2": {"sliding_window": 512, "attn_logit_softcapping": 5.0},
    "gemma3_text": {"sliding_window": 512, "rope_local_base_freq": 100.0},
    "gemma4_text": {
        "global_head_dim": 128,
        "sliding_window": 512,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 32,
        "enable_moe_block": True,
        "num_experts": 16,
        "top_k_experts": 3,
        "moe_intermediate_size": 256,
        "final_logit_softcapping": 5.0,
    },
    "gemma4_unified_text": {"global_head_dim": 128, "sliding_window": 512, "attention_k_eq_v": True},
    "granite": {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.0625,
        "residual_multiplier": 0.22,
        "logits_scaling": 0.5,
    },
    "qwen3_moe": {
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
    },
    "muse_glimmer_text": {"sliding_window": 512, "post_norm_eps": 1e-8, "output_multiplier": 1.5},
    "olmo2": {"pad_token_id": 0},
    "olmo3": {"pad_token_id": 0, "sliding_window": 512, "rope_theta": 500000.0},
    "olmoe": {"num_experts": 16, "num_experts_per_tok": 3, "head_dim": 16},
    "qwen2_moe": {
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 2304,
    },
    "gpt_oss": {
        "num_local_experts": 16,
        "num_experts_per_tok": 3,
        "intermediate_size": 256,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
    "lfm2": {
        "rms_norm_eps": None,
        "norm_eps": 1e-6,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 2,
        "full_attn_idxs": [1, 3, 5, 7, 9],
        "pad_token_id": 0,
    },
    "lfm2_moe": {
        "rms_norm_eps": None,
        "norm_eps": 1e-6,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "moe_intermediate_size": 256,
        "num_dense_layers": 1,
        "num_experts": 16,
        "num_experts_per_tok": 3,
    },
    "phi3": {"pad_token_id": 0},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "ministral3": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        }
    },
    "qwen3_5_text": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 128,
        "full_attention_interval": 2,
        "num_hidden_layers": 2,
    },
    "qwen3_5_moe_text": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 128,
        "full_attention_interval": 2,
        "num_hidden_layers": 2,
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 2304,
    },
    "qwen3_next": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 128,
        "full_attention_interval": 2,
        "num_hidden_layers": 2,
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 2304,
    },
    "smollm3": {"pad_token_id": 0},  # transformers' default is beyond these vocabularies
}
_NAMES_OF_LFM2 = {
    "self_attn.o_proj": "self_attn.out_proj",
    "q_norm": "q_layernorm",
    "k_norm": "k_layernorm",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "mlp": "feed_forward",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "norm": "embedding_norm",
}
_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SCALES_AT = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q5_0": (0,),
    "Q4_K": (0, 2),
    "Q6_K": (208,),
    "NVFP4": (),
}  # float16 scales of a block


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json whose tree can be shared out over 2, 4 and 8 ranks in any stored type."""
    config = {
        "model_type": family,
        "architectures": [FAMILIES[family].architecture],
        "vocab_size": 601,
        "hidden_size": 256,
        "intermediate_size": 2304,
        "num_hidden_layers": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config |= _OWN.get(family, {}) | changes
    if family == "lfm2_moe":
        kinds = ("conv", "full_attention")
        config["layer_types"] = [kinds[index % 2] for index in range(config["num_hidden_layers"])]
    if config.get("hidden_size_per_layer_input"):
        config["vocab_size_per_layer_input"] = config["vocab_size"]
    if family.startswith("gemma4"):
        rope = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
        config["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
        del config["rope_theta"]
        if "sliding_window" not in changes:  # a cache of one group
            config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    elif family.startswith("gemma"):
        config = {"query_pre_attn_scalar": config["head_dim"]} | config  # what GGUF means
        if "sliding_window" not in changes:  # a cache of one group
            config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    if family == "exaone4" and config["sliding_window"] is None:  # which transformers wants stated then
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    if (
        family == "muse_glimmer_text" and "sliding_window" not in changes
    ):  # a cache of one group, and RoPE as GGUF means
        config["layer_types"] = ["sliding_attention"] * config["num_hidden_layers"]
        config["layer_rope_theta"] = [config["rope_theta"]] * config["num_hidden_layers"]
    if family == "olmo3" and "sliding_window" not in changes:  # a cache of one group
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    if family == "gpt_oss" and "sliding_window" not in changes:  # a cache of one group
        config |= {"sliding_window": 512, "layer_types": ["full_attention"] * config["num_hidden_layers"]}
    return config


def hub_name(model_type: str, name: str) -> str:
    """The name of a tensor in folders of the hub."""
    if model_type.startswith("lfm2"):
        for ours, theirs in _NAMES_OF_LFM2.items():
            name = re.sub(rf"(?<=\.){ours}(?=\.)", theirs, name)
        return name
    if model_type != "mixtral":
        return name
    for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        name = re.sub(rf"(\.experts\.\d+)\.{ours}_proj\.", rf"\1.{theirs}.", name)
    return name.replace(".mlp.", ".block_sparse_moe.")


def joined(arrays: dict[str, Any], parts: Mapping[str, str]) -> dict[str, Any]:
    """Arrays of rows, of which those of one whole (`GgufForm.joined`) are one."""
    found: dict[str, list[Any]] = {}
    for name, array in arrays.items():
        part = next((each for each in parts if f".{each}." in name), "")
        found.setdefault(name.replace(f".{part}.", f".{parts[part]}.") if part else name, []).append(array)
    return {name: np.concatenate(each) if len(each) > 1 else each[0] for name, each in found.items()}


def _join_qkvz(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    """One matrix of in_proj_qkv and in_proj_z, as published folders have it: the rows of one key head after another."""
    heads, k_rows = config["linear_num_key_heads"], config["linear_key_head_dim"]
    v_rows = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    for name in [name for name in tensors if name.endswith("in_proj_qkv.weight")]:
        dtype, (_, columns), of_qkv = tensors.pop(name)
        of_z = tensors.pop(name.replace("qkv", "z"))[2]
        parts = np.split(of_qkv.reshape(-1, of_z.size // (heads * v_rows)), [heads * k_rows, 2 * heads * k_rows])
        by_head = [part.reshape(heads, -1) for part in (*parts, of_z)]
        shape = (heads * 2 * (k_rows + v_rows), columns)
        tensors[name.replace("qkv", "qkvz")] = (dtype, shape, np.concatenate(by_head, axis=1).reshape(-1))


def _stacked(tensors: dict[str, Any]) -> dict[str, Any]:
    """The experts of a layer as one tensor, with gate and up of each as one matrix."""
    found: dict[str, Any] = {}
    stacks: dict[str, dict[tuple[int, bool], Any]] = {}
    for name, tensor in tensors.items():
        if (expert := re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)) is None:
            found[name] = tensor
            continue
        whole = "down_proj" if expert[3] == "down" else "gate_up_proj"
        stacks.setdefault(f"{expert[1]}.{whole}", {})[int(expert[2]), expert[3] == "up"] = tensor
    for name, parts in stacks.items():
        of_expert = 2 if name.endswith("gate_up_proj") else 1
        dtype, (rows, columns), _ = parts[0, False]
        data = np.concatenate([parts[key][2] for key in sorted(parts)])
        found[name] = dtype, (len(parts) // of_expert, of_expert * rows, columns), data
    return found


def write(folder: Path, config: dict[str, Any], stored: str, seed: int = 0, odd: str = "F32") -> Path:
    """A model of random weights: a folder for F32, F16 and BF16, else a GGUF file in it, whose path is returned.

    Rows that are no whole blocks of the type are of type `odd`, vectors are float32.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    if stored in FORMATS and "linear_num_key_heads" in config:
        config = config | {"stored_as_gguf": True}
    read = read_config(config)
    tensors = {}
    for spec in weight_specs(read):
        dtype = stored
        if stored in FORMATS and (len(spec.shape) == 1 or spec.shape[-1] % FORMATS[stored].block_size):
            dtype = "F32" if len(spec.shape) == 1 else odd
        mean = -2.0 if spec.source.endswith("A_log") else float("norm" in spec.source)  # rates of decay
        tensors[spec.source] = (dtype, spec.shape, _draw(rng, dtype, spec.shape, mean=mean))
        if spec.stored:  # filters
            tensors[spec.source] = (dtype, spec.stored[stored in FORMATS], tensors[spec.source][2])
    if parts := FAMILIES[read.model_type].gguf.joined:
        rows = joined({name: data.reshape(shape[0], -1) for name, (_, shape, data) in tensors.items()}, parts)
        firsts = {
            next(iter(joined({name: data}, parts))): (dtype, shape) for name, (dtype, shape, data) in tensors.items()
        }
        tensors = {
            name: (firsts[name][0], (len(data), *firsts[name][1][1:]), data.reshape(-1)) for name, data in rows.items()
        }
    if stored not in FORMATS:
        if read.model_type == "gpt_oss":
            size = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}
            arrays = {name: data.view(size[dtype]).reshape(shape) for name, (dtype, shape, data) in tensors.items()}
            turned = sideways(arrays).items()
            tensors = {name: (stored, each.shape, each.reshape(-1).view(np.uint8)) for name, each in turned}
        if read.model_type == "qwen3_next":
            _join_qkvz(tensors, config)
        if read.model_type == "gemma4_text":
            tensors = _stacked(tensors)
        specs = {
            hub_name(read.model_type, name): TensorSpec(
                dtype=_TORCH_NAMES[dtype], shape=list(shape), data_ptr=data.ctypes.data, data_len=data.nbytes
            )
            for name, (dtype, shape, data) in tensors.items()
        }
        (folder / "model.safetensors").write_bytes(bytes(serialize(specs)))
        (folder / "config.json").write_text(json.dumps(config))
        return folder
    pairs = [*model_pairs(read, "random"), ("general.file_type", scalar("UINT32", 0))]
    form = FAMILIES[read.model_type].gguf
    named = [
        NewTensor(
            str(form.stored_name(name)),
            dtype,
            shape[1:] if form.is_single_row(name) else shape,
            partial(list, [data]),
        )
        for name, (dtype, shape, data) in tensors.items()
    ]
    path = folder / f"{stored}.gguf"
    write_gguf(path, pairs, named)
    return path


def _draw(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], mean: float) -> NDArray[np.uint8]:
    """Stored bytes of numbers whose rows, multiplied with normal ones, give a deviation of about 1."""
    deviation = 0.3 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1])
    if dtype not in FORMATS:
        values = (mean + deviation * rng.standard_normal(shape)).astype(np.float32)
        if dtype == "BF16":
            return (values.reshape(-1).view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.reshape(-1).astype("<f2" if dtype == "F16" else "<f4").view(np.uint8)
    format_ = FORMATS[dtype]
    blocks = rng.integers(0, 256, (prod(shape) // format_.block_size, format_.block_bytes), np.uint8)
    if dtype == "MXFP4":  # codes have a deviation of about 3, and a scale is a power of two in one byte
        blocks[:, 0] = 127 + round(np.log2(deviation / 3)) + rng.integers(-1, 2, len(blocks))
        return blocks.reshape(-1)
    for at in _SCALES_AT[dtype]:
        blocks[:, at : at + 2] = np.array([1.0], "<f2").view(np.uint8)
    typical = float(np.abs(format_.dequantize(blocks[:64])).mean())
    scales = deviation / typical * rng.uniform(0.5, 1.5, (len(blocks), 1)) * rng.choice([-1, 1], (len(blocks), 1))
    for at in _SCALES_AT[dtype]:
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8)
    return blocks.reshape(-1)


def logits_of(
    run: Runner, config: ModelConfig, texts: Sequence[Sequence[int]], *, chunk: int, together: bool = True
) -> list[NDArray[np.floating]]:
    """Logits [tokens, vocab] of each text, computed in chunks, all texts together or one by one."""
    sizes, vocab_size = sizes_for(config, texts, chunk), config.vocab_size
    engine = Engine(run, placeholder_tokenizer(vocab_size), sizes)
    logits: list[NDArray[np.floating]] = [np.empty((len(text), vocab_size), np.float32) for text in texts]
    readers = []
    for text, target in zip(texts, logits, strict=True):
        readers.append(engine.add_logits(tuple(text), target))
        while not together and not readers[-1].done:
            engine.step()
    while not all(reader.done for reader in readers):
        engine.step()
    for reader in readers:
        if reader.error:
            raise reader.error
    return logits


def sizes_for(config: ModelConfig, texts: Sequence[Sequence[int]], chunk: int) -> EngineConfig:
    num_blocks = sum(-(-len(text) // BLOCK_SIZE) for text in texts)
    return EngineConfig(
        vocab_size=config.vocab_size,
        max_model_len=max(map(len, texts)),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=min(len(texts), chunk),
        max_num_batched_tokens=chunk,
        state_bytes=bytes_of_state(outline(config).keeps, "float32"),
    )


def single(
    path: Path,
    texts: Sequence[Sequence[int]],
    *,
    chunk: int,
    executor: str = "native",
    threads: int = 1,
    dtype: FloatName = "float32",
    kv_dtype: FloatName = "float16",
    together: bool = True,
    group: Group = SINGLE,
) -> list[NDArray[np.floating]]:
    """Logits of the texts in this process, or of a rank of `group` in it."""
    checkpoint = open_model(path)
    config = read_config(checkpoint.config)
    ops = registry.create(executor, dtype, {"threads": threads})
    model = build(config, ops, checkpoint, num_positions=max(map(len, texts)), group=group)
    sizes = sizes_for(config, texts, chunk)
    states = sizes.num_state_slots
    run = open_runner(model, kv_dtype, sizes.group_blocks, sizes.step_limits, num_states=states)
    return logits_of(run, config, texts, chunk=chunk, together=together)


def parallel(
    ranks: ParallelModel,
    path: Path,
    texts: Sequence[Sequence[int]],
    *,
    chunk: int,
    executor: str = "native",
    threads: int = 1,
    dtype: FloatName = "float32",
    kv_dtype: FloatName = "float16",
    together: bool = True,
    isa: str | None = None,
    guard: bool = False,
) -> list[NDArray[np.floating]]:
    """Logits of the texts, computed by ranks."""
    config = read_config(open_model(path).config)
    ranks.load(
        load_of(
            path,
            texts,
            chunk=chunk,
            executor=executor,
            options={"threads": threads, "isa": isa},
            dtype=dtype,
            kv_dtype=kv_dtype,
            guard=guard,
        ),
        config,
    )
    return logits_of(ranks, config, texts, chunk=chunk, together=together)


def load_of(path: Path, texts: Sequence[Sequence[int]], *, chunk: int, **changes: Any) -> LoadRank:
    sizes = sizes_for(read_config(open_model(path).config), texts, chunk)
    given: dict[str, Any] = {
        "executor": "native",
        "overrides": NO_OVERRIDES,
        "dtype": "float32",
        "options": {"threads": 1},
        "kv_dtype": "float16",
        "quantize": None,
        "guard": False,
    } | changes
    return LoadRank(
        path=str(path),
        num_positions=sizes.max_model_len,
        num_blocks=sizes.group_blocks,
        block_size=BLOCK_SIZE,
        num_states=sizes.num_state_slots,
        limits=sizes.step_limits,
        **given,
    )
