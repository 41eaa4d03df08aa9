"""Qwen3.5 and 3.6 with experts (35B-A3B, 122B-A10B): Qwen3.5 whose MLPs are mixtures beside an MLP of all tokens."""

from dataclasses import dataclass, replace
from typing import Any

from karat.checkpoint.gguf.form import SHARED_EXPERT, STACKED_EXPERTS, GgufForm
from karat.config import LayerShape, ModelConfig
from karat.layers.block import Block, Branch
from karat.layers.place import Place
from karat.models import hybrids, mixtures
from karat.models.family import Ends, Family, read_decoder
from karat.models.hybrids import HybridShape
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader

_COUNTS = mixtures.COUNTS | mixtures.SIZE | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35MoeConfig(MixtureConfig):
    """Adds the delta nets and the size of the shared expert."""

    hybrid: HybridShape
    shared_expert_intermediate_size: int

    def shape(self, layer: int) -> LayerShape:
        """RoPE turns a part of each head."""
        return replace(ModelConfig.shape(self, layer), rotary_dim=self.hybrid.rotary_dim)


def layer(place: Place, config: Qwen35MoeConfig, index: int) -> Block:
    """Layer `index` of a model."""
    size, eps, hybrid = config.hidden_size, config.rms_norm_eps, config.hybrid
    before = hybrids.norm(place / "input_layernorm", size, hybrid, eps=eps)
    between = hybrids.norm(place / "post_attention_layernorm", size, hybrid, eps=eps)
    mixer = hybrids.mixer(place, size, config.shape(index), hybrid, index, eps=eps)
    experts = mixtures.shared_mixture(place / "mlp", config, config.shared_expert_intermediate_size)
    return Block(place.name, Branch(before, mixer), Branch(between, experts))


def ends(config: Qwen35MoeConfig) -> Ends:
    """The last norm is like the others."""
    return Ends(norm_plus_one=not config.hybrid.as_gguf)


def read(reader: ConfigReader) -> Qwen35MoeConfig:
    """The configuration from a config.json of this family."""
    head_dim, inner = reader.get(int, "head_dim", 256), reader.get(int, "moe_intermediate_size", 512)
    reader.must_be("norm_topk_prob", True, why="weights of experts add up to 1 in models of this type")
    return read_decoder(
        reader,
        Qwen35MoeConfig,
        layer_windows=(None,) * reader.get(int, "num_hidden_layers"),
        num_kv_heads=hybrids.read_kv_heads(reader, 2),
        head_dim=head_dim,
        intermediate_size=inner,
        rope_keys=hybrids.ROPE_KEYS,
        hybrid=hybrids.read(reader, head_dim),
        **mixtures.read_experts(reader),
        moe_intermediate_size=inner,
        shared_expert_intermediate_size=reader.get(int, "shared_expert_intermediate_size", 512),
        norm_topk_prob=True,
    )


def _own_config(metadata: Any, _: Any) -> dict[str, Any]:
    return hybrids.own_config(metadata, "qwen35moe") | {"intermediate_size": None}


GGUF: GgufForm[Qwen35MoeConfig] = GgufForm(
    architecture="qwen35moe",
    in_layer={
        **hybrids.TENSORS,
        **STACKED_EXPERTS,
        **SHARED_EXPERT,
        "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
        "ffn_gate_inp": "mlp.gate",
    },
    whole_names=hybrids.WHOLE_NAMES,
    single_rows=("mlp.shared_expert_gate",),
    counts=_COUNTS,
    own_keys=hybrids.OWN_KEYS,
    turns_part=True,
    own_config=_own_config,
    as_stored=lambda config, weight: hybrids.as_stored(config.hybrid, weight),
    written=lambda config: hybrids.written(config.hybrid, config.num_layers),
    not_in_llama_cpp=lambda config: hybrids.not_in_llama_cpp(config.hybrid),
)
FAMILY = Family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read, layer, GGUF, ends)
