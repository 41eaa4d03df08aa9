"""What families share whose layers are gated delta nets and, every few of them, attention with a gate.

Their weights are stored in two ways, which `as_gguf` tells apart. Folders: norms multiply by 1 + weight, A_log is the
logarithm of the rates of decay, value heads are grouped by key heads. GGUF files: 1 + weight is stored, A_log is the
rates, below 0, and value heads are tiled: head h reads key head h % key_heads.
"""

from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import IN_LAYER
from karat.config import LayerShape
from karat.errors import ConfigError
from karat.layers.attention import Attention
from karat.layers.delta_net import DeltaShape, GatedDeltaNet
from karat.layers.mixer import Mixer
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models.qwen3 import must_normalise
from karat.models.reader import ConfigReader, read_num_kv_heads
from karat.request import shown

AS_GGUF = "stored_as_gguf"  # a key that no folder has
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
OWN_KEYS = (*_COUNTS, "ssm.inner_size", "rope.dimension_sections")  # the sections of RoPE are for images


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridShape:
    """Which layers are delta nets, their sizes, and the numbers of a head that RoPE turns in the others."""

    linear_layers: tuple[int, ...]
    delta: DeltaShape
    rotary_dim: int
    as_gguf: bool


def mixer(place: Place, hidden_size: int, shape: LayerShape, hybrid: HybridShape, index: int, *, eps: float) -> Mixer:
    """What layer `index` at `place` does between its first norm and the sum."""
    if index in hybrid.linear_layers:
        return GatedDeltaNet(place / "linear_attn", hidden_size, hybrid.delta, eps=eps, of_log=not hybrid.as_gguf)
    plus_one = not hybrid.as_gguf
    return Attention(place / "self_attn", hidden_size, shape, qk_norm_eps=eps, gated=True, plus_one=plus_one)


def norm(place: Place, hidden_size: int, hybrid: HybridShape, *, eps: float) -> RMSNorm:
    """A norm before a part of a layer."""
    return RMSNorm(place, hidden_size, eps, plus_one=not hybrid.as_gguf)


def read_kv_heads(reader: ConfigReader, default: int) -> int:
    """The number of KV heads; null means as many as there are heads."""
    return read_num_kv_heads(reader) if reader.present("num_key_value_heads") else default


def read(reader: ConfigReader, head_dim: int) -> HybridShape:
    """The keys of config.json that all of them share."""
    must_normalise(reader)
    reader.must_be("attention_bias", False, why="Karat computes this attention without biases")
    reader.must_be("attn_output_gate", True, why="attention of this type has a gate")
    reader.must_be("output_gate_type", "silu", "swish", why="delta nets of this type have a gate with silu")
    reader.must_be("mamba_ssm_dtype", "float32", why="states are float32")
    for key in ("mlp_only_layers", "mtp_use_dedicated_embeddings"):
        reader.must_be(key, [], False, why="models of this type have none")
    as_gguf = reader.get(bool, AS_GGUF, False)
    delta = DeltaShape(
        key_heads=reader.get(int, "linear_num_key_heads", 16),
        value_heads=reader.get(int, "linear_num_value_heads", 32),
        key_dim=reader.get(int, "linear_key_head_dim", 128),
        value_dim=reader.get(int, "linear_value_head_dim", 128),
        taps=reader.get(int, "linear_conv_kernel_dim", 4),
        tiled=as_gguf,
    )
    if min(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim, delta.taps - 1) < 1:
        raise ConfigError(f"{delta}: expected positive sizes of linear_…, and a convolution of 2 taps or more")
    if delta.value_heads % delta.key_heads:
        raise ConfigError(
            f"linear_num_value_heads={delta.value_heads} is no multiple of linear_num_key_heads={delta.key_heads}"
        )
    return HybridShape(
        linear_layers=_read_linear_layers(reader),
        delta=delta,
        rotary_dim=int(head_dim * _read_rotary_part(reader)),
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


def _read_rotary_part(reader: ConfigReader) -> float:
    """The part of a head that RoPE turns: inside RoPE's parameters, beside them, or the architecture's."""
    rope = reader.raw("rope_parameters") or reader.raw("rope_scaling") or {}
    inner = ConfigReader(rope if isinstance(rope, dict) else {}, "rope_parameters").optional(
        float, "partial_rotary_factor"
    )
    outer = reader.optional(float, "partial_rotary_factor")
    if inner is not None and outer is not None and inner != outer:
        raise ConfigError(f"partial_rotary_factor={outer} and rope_parameters.partial_rotary_factor={inner} disagree")
    return next((part for part in (inner, outer) if part is not None), _ROTARY_PART)


def own_config(metadata: Metadata, architecture: str) -> dict[str, Any]:
    """What a GGUF file states in another way than config.json."""
    head_dim = metadata.get(int, f"{architecture}.attention.key_length", 256)
    heads = metadata.get(int, f"{architecture}.ssm.time_step_rank")
    inner = metadata.get(int, f"{architecture}.ssm.inner_size")
    if heads < 1 or inner % heads or head_dim < 1:
        raise ConfigError(f"{architecture}.ssm.inner_size={inner} does not divide by ssm.time_step_rank={heads}")
    turned = metadata.get(int, f"{architecture}.rope.dimension_count", int(head_dim * _ROTARY_PART))
    counts = {name: metadata.optional(int, f"{architecture}.{key}") for key, name in _COUNTS.items()}
    return counts | {
        AS_GGUF: True,
        "linear_value_head_dim": inner // heads,
        "partial_rotary_factor": turned / head_dim,
    }


def written(hybrid: HybridShape, num_layers: int) -> dict[str, int]:
    """The numbers of a GGUF file's metadata that only these architectures have."""
    delta = hybrid.delta
    return {
        _INTERVAL: _interval(hybrid, num_layers) or 0,
        "ssm.conv_kernel": delta.taps,
        "ssm.state_size": delta.key_dim,
        "ssm.group_count": delta.key_heads,
        "ssm.time_step_rank": delta.value_heads,
        "ssm.inner_size": delta.value_heads * delta.value_dim,
        "rope.dimension_count": hybrid.rotary_dim,
    }


def _interval(hybrid: HybridShape, num_layers: int) -> int | None:
    """Every how many layers there is one with attention; None if it is not so."""
    for every in range(1, num_layers + 2):
        if hybrid.linear_layers == tuple(layer for layer in range(num_layers) if (layer + 1) % every):
            return every
    return None


def not_in_gguf(hybrid: HybridShape, num_layers: int) -> str | None:
    """Why a GGUF file cannot state a model."""
    if not hybrid.as_gguf:
        return "a delta net as folders have it: its value heads are in another order there"
    return None if _interval(hybrid, num_layers) else "layers with attention in other places than every few layers"
