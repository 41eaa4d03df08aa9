"""What families share whose layers are gated delta nets and, every few of them, attention with a gate.

Their weights are stored in two ways, which `as_gguf` tells apart. Folders: norms multiply by 1 + weight, A_log is the
logarithm of the rates of decay, value heads are grouped by key heads. GGUF files: 1 + weight is stored, A_log is the
rates, below 0, and value heads are tiled: head h reads key head h % key_heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import AS_GGUF, IN_LAYER, restated
from karat.checkpoint.joins import Grouped
from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight, WeightSpec
from karat.config import LayerShape
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.delta_net import DeltaShape, GatedDeltaNet
from karat.layers.mixer import Mixer
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.qwen3 import must_normalise
from karat.models.reader import ConfigReader, read_num_kv_heads
from karat.models.ropes import read_rotary_part
from karat.request import shown

ROPE_KEYS = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")  # text has one position for all sections
_ROTARY_PART = 0.25  # of a head, where none is stated

# Of GGUF: a layer's tensors, those with names of their own, and keys.
TENSORS = {
    **IN_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
del TENSORS["ffn_norm"]
WHOLE_NAMES = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
_INTERVAL = "full_attention_interval"
_COUNTS = {
    _INTERVAL: _INTERVAL,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_RECURRENT = "attention.recurrent_layers"  # of newer files: which layers are delta nets
_DIMENSION_SECTIONS = "rope.dimension_sections"  # they are for images
_SECTIONS = 4  # of which files state all
OWN_KEYS = (*_COUNTS, _RECURRENT, "ssm.inner_size", _DIMENSION_SECTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridShape:
    """Which layers are delta nets, their sizes, and the numbers of a head that RoPE turns in the others.

    `sections` are the pairs of these numbers by what their position counts, of which a text has one (mrope_section).
    """

    linear_layers: tuple[int, ...]
    delta: DeltaShape
    rotary_dim: int
    sections: tuple[int, ...]
    as_gguf: bool


def mixer(
    place: Place,
    hidden_size: int,
    shape: LayerShape,
    hybrid: HybridShape,
    index: int,
    *,
    eps: float,
    joined: bool = False,
) -> Mixer:
    """What layer `index` at `place` does between its first norm and the sum; `joined` is of its delta net."""
    if index in hybrid.linear_layers:
        at, of_log = place / "linear_attn", not hybrid.as_gguf
        return GatedDeltaNet(at, hidden_size, hybrid.delta, eps=eps, of_log=of_log, joined=joined)
    plus_one = not hybrid.as_gguf
    return Attention(place / "self_attn", hidden_size, shape, qk_norm_eps=eps, gated=True, plus_one=plus_one)


def norm(place: Place, hidden_size: int, hybrid: HybridShape, *, eps: float) -> RMSNorm:
    """A norm before a part of a layer."""
    return RMSNorm(place, hidden_size, eps, plus_one=not hybrid.as_gguf)


def joins(hybrid: HybridShape, hidden_size: int) -> tuple[Grouped, ...]:
    """in_proj_qkvz, which some families' files have: for each key head the rows of q, k, v and z."""
    delta = hybrid.delta
    values = delta.value_heads // delta.key_heads * delta.value_dim
    rows = (delta.key_dim, delta.key_dim, values), (values,)
    found = []
    for index in hybrid.linear_layers:
        whole, *parts = (
            WeightSpec(
                f"model.layers.{index}.linear_attn.in_proj_{name}.weight", (sum(each) * delta.key_heads, hidden_size)
            )
            for name, each in (("qkvz", (*rows[0], *rows[1])), ("qkv", rows[0]), ("z", rows[1]))
        )
        found.append(Grouped(whole, tuple(parts), rows, delta.key_heads))
    return tuple(found)


def read_kv_heads(reader: ConfigReader, default: int) -> int:
    """The number of KV heads; null means as many as there are heads."""
    return read_num_kv_heads(reader) if reader.present("num_key_value_heads") else default


def read(reader: ConfigReader, head_dim: int, *, tiles: bool = True) -> HybridShape:
    """The keys of config.json that all of them share. With `tiles` value heads are tiled in GGUF files."""
    must_normalise(reader)
    reader.must_be("attention_bias", False, why="Karat computes this attention without biases")
    reader.must_be("attn_output_gate", True, why="attention of this type has a gate")
    reader.must_be("output_gate_type", "silu", "swish", why="delta nets of this type have a gate with silu")
    reader.must_be("mamba_ssm_dtype", "float32", why="states are float32")
    reader.must_be("mtp_use_dedicated_embeddings", False, why="models of this type have none")
    as_gguf = reader.get(bool, AS_GGUF, False)
    delta = DeltaShape(
        key_heads=reader.get(int, "linear_num_key_heads", 16),
        value_heads=reader.get(int, "linear_num_value_heads", 32),
        key_dim=reader.get(int, "linear_key_head_dim", 128),
        value_dim=reader.get(int, "linear_value_head_dim", 128),
        taps=reader.get(int, "linear_conv_kernel_dim", 4),
        tiled=as_gguf and tiles,
    )
    if min(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.taps - 1) < 1:
        raise ConfigError(f"{delta}: expected positive sizes of linear_…, and a convolution of 2 taps or more")
    if delta.value_heads % delta.key_heads:
        raise ConfigError(
            f"linear_num_value_heads={delta.value_heads} is no multiple of linear_num_key_heads={delta.key_heads}"
        )
    rotary_dim = int(head_dim * read_rotary_part(reader, _ROTARY_PART))
    return HybridShape(
        linear_layers=_read_linear_layers(reader),
        delta=delta,
        rotary_dim=rotary_dim,
        sections=_read_sections(reader, rotary_dim // 2),
        as_gguf=as_gguf,
    )


def _read_linear_layers(reader: ConfigReader) -> tuple[int, ...]:
    num_layers, every = reader.get(int, "num_hidden_layers"), reader.get(int, "full_attention_interval", 4)
    if every < 1:
        raise ConfigError(f"full_attention_interval={every}: expected at least 1")
    stated = reader.raw("layer_types")
    if stated is None:
        return tuple(layer for layer in range(num_layers) if (layer + 1) % every)
    if not isinstance(stated, list) or len(stated) != num_layers:
        raise ConfigError(f"layer_types={shown(stated)}: expected a list of {num_layers} types, one a layer")
    for layer, kind in enumerate(stated):
        if kind not in ("linear_attention", "full_attention"):
            raise ConfigError(
                f"layer_types[{layer}]={shown(kind)} is not supported: expected linear_attention or full_attention"
            )
    return tuple(layer for layer, kind in enumerate(stated) if kind == "linear_attention")


def _read_sections(reader: ConfigReader, pairs: int) -> tuple[int, ...]:
    """The sections of RoPE; those of the released models, thirds, where none are stated."""
    rope = reader.raw("rope_parameters") or reader.raw("rope_scaling") or {}
    inner = rope.get("mrope_section") if isinstance(rope, dict) else None
    stated = reader.raw("mrope_section") if inner is None else inner
    if stated is None:
        return (pairs + 2) // 3, (pairs + 1) // 3, pairs // 3
    if not isinstance(stated, list) or len(stated) > _SECTIONS or not all(type(each) is int for each in stated):
        raise ConfigError(f"mrope_section={shown(stated)}: expected at most {_SECTIONS} numbers of pairs")
    return tuple(stated)


def own_config(metadata: Metadata, architecture: str) -> dict[str, Any]:
    """What a GGUF file states in another way than config.json."""
    head_dim = metadata.get(int, f"{architecture}.attention.key_length", 256)
    heads = metadata.get(int, f"{architecture}.ssm.time_step_rank")
    inner = metadata.get(int, f"{architecture}.ssm.inner_size")
    if heads < 1 or inner % heads or head_dim < 1:
        raise ConfigError(f"{architecture}.ssm.inner_size={inner} does not divide by ssm.time_step_rank={heads}")
    turned = metadata.get(int, f"{architecture}.rope.dimension_count", int(head_dim * _ROTARY_PART))
    layers = metadata.array(f"{architecture}.{_RECURRENT}", "BOOL")
    kinds = ("full_attention", "linear_attention")
    types = None if layers is None else [kinds[each] for each in layers.numbers().astype(int).tolist()]
    predicting = metadata.get(int, f"{architecture}.nextn_predict_layers", 0)
    counts = {name: metadata.optional(int, f"{architecture}.{key}") for key, name in _COUNTS.items()}
    return counts | {
        AS_GGUF: True,
        "layer_types": types[: len(types) - predicting] if types else None,
        "linear_value_head_dim": inner // heads,
        "partial_rotary_factor": turned / head_dim,
    }


def as_stored(hybrid: HybridShape, weight: Weight, *, tiles: bool = True) -> Weight:
    """A weight as GGUF files have it. With `tiles` their value heads are tiled."""
    if hybrid.as_gguf:
        return weight
    delta, part = hybrid.delta, weight.name.rpartition(".linear_attn.")[2]
    if part.endswith("norm.weight"):
        return weight if part == "norm.weight" else restated(weight, lambda values: values + np.float32(1))
    if part == "A_log":
        weight = restated(weight, lambda values: -np.exp(values.astype(np.float64)).astype(np.float32)).settled()
    if not tiles or part == weight.name:
        return weight
    heads = np.arange(delta.value_heads, dtype=np.intp).reshape(delta.key_heads, -1).T.reshape(-1)
    rows = (heads[:, None] * delta.value_dim + np.arange(delta.value_dim)).reshape(-1)
    keys = 2 * delta.key_heads * delta.key_dim
    channels = np.concatenate((np.arange(keys), keys + rows))
    match part:
        case "in_proj_qkv.weight":
            return replace(weight, row_order=lambda: channels)
        case "conv1d.weight":
            return replace(weight, shape=(len(channels), delta.taps), row_order=lambda: channels)
        case "in_proj_z.weight":
            return replace(weight, row_order=lambda: rows)
        case "out_proj.weight":
            return replace(weight, row_order=None, made=partial(_columns, weight, heads))
    return replace(weight, row_order=lambda: heads)  # a row, or a number, for each head


def _columns(weight: Weight, heads: NDArray[np.intp]) -> NDArray[np.uint8]:
    """The bytes of out_proj with the columns of its value heads in this order."""
    rows = weight.shape[0]
    if weight.shape[1] // len(heads) % block_of(weight.dtype)[0]:
        raise ConfigError(f"{weight.name}: a value head is no whole blocks of {weight.dtype}; take another type")
    return np.ascontiguousarray(weight.data.reshape(rows, len(heads), -1)[:, heads]).reshape(-1)


def written(hybrid: HybridShape, num_layers: int, *, with_sections: bool = True) -> dict[str, int | Sequence[int]]:
    """The numbers of a GGUF file's metadata that only these architectures have."""
    delta = hybrid.delta
    found: dict[str, int | Sequence[int]] = {
        "ssm.conv_kernel": delta.taps,
        "ssm.state_size": delta.key_dim,
        "ssm.group_count": delta.key_heads,
        "ssm.time_step_rank": delta.value_heads,
        "ssm.inner_size": delta.value_heads * delta.value_dim,
        "rope.dimension_count": hybrid.rotary_dim,
    }
    if with_sections:
        found[_DIMENSION_SECTIONS] = (*hybrid.sections, *[0] * (_SECTIONS - len(hybrid.sections)))
    if (every := _interval(hybrid, num_layers)) is not None:
        return found | {_INTERVAL: every}
    return found | {_RECURRENT: [layer in hybrid.linear_layers for layer in range(num_layers)]}


def _interval(hybrid: HybridShape, num_layers: int) -> int | None:
    """Every how many layers there is one with attention; None if it is not so."""
    for every in range(1, num_layers + 2):
        if hybrid.linear_layers == tuple(layer for layer in range(num_layers) if (layer + 1) % every):
            return every
    return None


def not_in_llama_cpp(hybrid: HybridShape) -> str | None:
    """Why llama.cpp does not load a model."""
    delta = hybrid.delta
    return None if delta.key_dim == delta.value_dim else "delta nets whose keys and values differ in size"
