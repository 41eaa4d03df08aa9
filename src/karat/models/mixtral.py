"""Mixtral (arXiv 2401.04088): Mistral whose MLPs are mixtures. GGUF has its models as llama's, with experts."""

from dataclasses import dataclass

from karat.checkpoint.gguf.form import IN_LAYER, STACKED_EXPERTS, GgufForm, has_experts
from karat.layers.attention import Attention
from karat.layers.block import Block, Branch
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import mixtures
from karat.models.family import Family, read_decoder
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader, read_layer_windows, read_num_kv_heads, read_window

_DEFAULT_THETA = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(MixtureConfig):
    """Adds nothing."""


def layer(place: Place, config: MixtralConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, shape = config.hidden_size, config.rms_norm_eps, config.shape(index)
    attention_norm = RMSNorm(place / "input_layernorm", size, eps)
    attention = Attention(place / "self_attn", size, shape)
    mlp_norm = RMSNorm(place / "post_attention_layernorm", size, eps)
    mlp = mixtures.mixture(place / "mlp", config)
    return Block(place.name, Branch(attention_norm, attention), Branch(mlp_norm, mlp))


def read(reader: ConfigReader) -> MixtralConfig:
    """The configuration from a config.json of this family. An expert has the intermediate_size."""
    num_layers, window = reader.get(int, "num_hidden_layers"), read_window(reader)
    everywhere = "full_attention" if window is None else "sliding_attention"
    reader.must_be("layer_types", [everywhere] * num_layers, why="mixtral has its window on all layers or none")
    return read_decoder(
        reader,
        MixtralConfig,
        layer_windows=read_layer_windows(reader, num_layers, window, [everywhere] * num_layers),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        default_theta=_DEFAULT_THETA,
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "intermediate_size"),
        norm_topk_prob=True,
    )


GGUF: GgufForm[MixtralConfig] = GgufForm(
    architecture="llama",
    in_layer={**IN_LAYER, **STACKED_EXPERTS, "ffn_gate_inp": "mlp.gate"},
    paired=("self_attn.q_proj", "self_attn.k_proj"),
    claims=lambda metadata: has_experts(metadata, "llama"),
    counts=mixtures.COUNTS,
)
FAMILY = Family("mixtral", "MixtralForCausalLM", read, layer, GGUF)
