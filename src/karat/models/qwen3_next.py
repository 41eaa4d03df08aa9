"""Qwen3-Next (80B-A3B, Qwen3-Coder-Next): delta nets and attention with a gate, as in Qwen3.5, and experts."""

from dataclasses import dataclass, replace

from karat.checkpoint.gguf.form import SHARED_EXPERT, STACKED_EXPERTS, GgufForm
from karat.config import LayerShape, ModelConfig
from karat.layers.block import Block, Branch
from karat.layers.mixer import Mixer
from karat.layers.mlp import GatedMLP
from karat.layers.place import Place
from karat.models import hybrids, mixtures
from karat.models.family import Ends, Family, read_decoder
from karat.models.hybrids import HybridShape
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader

_COUNTS = mixtures.COUNTS | mixtures.SIZE | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_NOT_HERE = ("ssm_alpha", "ssm_beta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextConfig(MixtureConfig):
    """Adds the delta nets and the size of the shared expert."""

    hybrid: HybridShape
    shared_expert_intermediate_size: int

    def shape(self, layer: int) -> LayerShape:
        """RoPE turns a part of each head."""
        return replace(ModelConfig.shape(self, layer), rotary_dim=self.hybrid.rotary_dim)


def layer(place: Place, config: Qwen3NextConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, hybrid, shape = config.hidden_size, config.rms_norm_eps, config.hybrid, config.shape(index)
    before = hybrids.norm(place / "input_layernorm", size, hybrid, eps=eps)
    between = hybrids.norm(place / "post_attention_layernorm", size, hybrid, eps=eps)
    mixer = hybrids.mixer(place, size, shape, hybrid, index, eps=eps, joined=True)
    mlp: Mixer
    if index in config.dense_layers:
        mlp = GatedMLP(place / "mlp", size, shape.inner_size)
    else:
        mlp = mixtures.shared_mixture(place / "mlp", config, config.shared_expert_intermediate_size)
    return Block(place.name, Branch(before, mixer), Branch(between, mlp))


def read(reader: ConfigReader) -> Qwen3NextConfig:
    """The configuration from a config.json of this family."""
    head_dim = reader.get(int, "head_dim", 256)
    return read_decoder(
        reader,
        Qwen3NextConfig,
        layer_windows=(None,) * reader.get(int, "num_hidden_layers"),
        num_kv_heads=hybrids.read_kv_heads(reader, 2),
        head_dim=head_dim,
        rope_keys=hybrids.ROPE_KEYS,
        hybrid=hybrids.read(reader, head_dim, tiles=False),
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "moe_intermediate_size", 512),
        shared_expert_intermediate_size=reader.get(int, "shared_expert_intermediate_size", 512),
        norm_topk_prob=reader.get(bool, "norm_topk_prob", True),
        dense_layers=mixtures.read_dense_layers(reader),
    )


GGUF: GgufForm[Qwen3NextConfig] = GgufForm(
    architecture="qwen3next",
    in_layer={
        **{stored: name for stored, name in hybrids.TENSORS.items() if stored not in _NOT_HERE},
        **STACKED_EXPERTS,
        **SHARED_EXPERT,
        "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
        "ffn_gate_inp": "mlp.gate",
        "ssm_ba": "linear_attn.in_proj_ba",
        "ssm_in": "linear_attn.in_proj_qkvz",  # of older files
    },
    whole_names=hybrids.WHOLE_NAMES,
    single_rows=("mlp.shared_expert_gate",),
    counts=_COUNTS,
    own_keys=hybrids.OWN_KEYS,
    turns_part=True,
    own_config=lambda metadata, _: hybrids.own_config(metadata, "qwen3next"),
    as_stored=lambda config, weight: hybrids.as_stored(config.hybrid, weight, tiles=False),
    written=lambda config: hybrids.written(config.hybrid, config.num_layers, with_sections=False),
    not_in_gguf=lambda config: mixtures.not_in_gguf(config, renormalised=True),
    not_in_llama_cpp=lambda config: hybrids.not_in_llama_cpp(config.hybrid),
)
FAMILY = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    read,
    layer,
    GGUF,
    lambda config: Ends(norm_plus_one=not config.hybrid.as_gguf),
    joins=lambda config: hybrids.joins(config.hybrid, config.hidden_size),
)
