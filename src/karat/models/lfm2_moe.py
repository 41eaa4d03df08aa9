"""LFM2 with experts (8B-A1B, 24B-A2B): LFM2 whose MLPs are mixtures, but for the first ones."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.gguf.form import STACKED_EXPERTS, GgufForm
from karat.errors import ConfigError
from karat.layers.block import Block
from karat.layers.mixer import Mixer
from karat.layers.mlp import GatedMLP
from karat.layers.place import Place
from karat.models import mixtures, short_convs
from karat.models.family import Family, read_decoder
from karat.models.mixtures import MixtureConfig
from karat.models.reader import ConfigReader, read_num_kv_heads
from karat.models.short_convs import ConvShape
from karat.ops.api import Routing

_PLUS = 1e-6  # of the sum that weights of experts are divided by; a constant of the architecture
_THETA = 1000000.0  # where none is stated
_SIGMOID = 2  # of GGUF's expert_gating_func


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2MoeConfig(MixtureConfig):
    """Adds the convolutions, whether experts are chosen with a bias, and what their weights are multiplied by."""

    convs: ConvShape
    use_expert_bias: bool
    routed_scaling_factor: float


def layer(place: Place, config: Lfm2MoeConfig, index: int) -> Block:
    """Layer `index` of a model."""
    return short_convs.block(place, config, config.convs, index, _mlp(place / "mlp", config, index))


def _mlp(place: Place, config: Lfm2MoeConfig, index: int) -> Mixer:
    if index in config.dense_layers:
        return GatedMLP(place, config.hidden_size, config.intermediate_size)
    routing = Routing(
        config.num_experts_per_tok,
        renormalised=config.norm_topk_prob,
        score="sigmoid",
        bias=(place / "expert_bias").values(config.num_experts) if config.use_expert_bias else None,
        plus=_PLUS,
        scale=config.routed_scaling_factor,
    )
    return mixtures.mixture(place, config, routing)


def read(reader: ConfigReader) -> Lfm2MoeConfig:
    """The configuration from a config.json of this family."""
    num_layers, num_dense = reader.get(int, "num_hidden_layers"), reader.get(int, "num_dense_layers", 2)
    return read_decoder(
        reader,
        Lfm2MoeConfig,
        layer_windows=(None,) * num_layers,
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=reader.optional(int, "head_dim"),
        eps_key=short_convs.EPS,
        tied=short_convs.read_tied(reader),
        default_theta=_THETA,
        convs=short_convs.read(reader),
        **mixtures.read_experts(reader),
        moe_intermediate_size=reader.get(int, "moe_intermediate_size"),
        norm_topk_prob=reader.get(bool, "norm_topk_prob", True),
        dense_layers=tuple(range(min(num_dense, num_layers))),
        use_expert_bias=reader.get(bool, "use_expert_bias", True),
        routed_scaling_factor=reader.get(float, "routed_scaling_factor", 1.0),
    )


def _own_config(metadata: Metadata, names: Collection[str]) -> dict[str, Any]:
    if (kind := metadata.get(int, "lfm2moe.expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise ConfigError(f"lfm2moe.expert_gating_func={kind} is not supported; expected {_SIGMOID}, a sigmoid")
    return short_convs.own_config(metadata, names, "lfm2moe") | {
        "num_dense_layers": metadata.get(int, "lfm2moe.leading_dense_block_count", 0),
        "use_expert_bias": any(name.endswith(".expert_bias") for name in names),
    }


def _not_in_llama_cpp(config: Lfm2MoeConfig) -> str | None:
    if not config.use_expert_bias or config.routed_scaling_factor != 1:
        return "lfm2_moe whose experts are chosen without a bias, or whose weights are multiplied"
    return short_convs.not_in_llama_cpp(config, config.convs)


GGUF: GgufForm[Lfm2MoeConfig] = GgufForm(
    architecture="lfm2moe",
    in_layer={**short_convs.TENSORS, **STACKED_EXPERTS, "ffn_gate_inp": "mlp.gate"},
    whole_names={"exp_probs_b.bias": "mlp.expert_bias"},
    top=short_convs.TOP,
    numbers={"expert_weights_scale": "routed_scaling_factor"},
    counts=mixtures.COUNTS | mixtures.SIZE,
    own_keys=(*short_convs.OWN_KEYS, "leading_dense_block_count", "expert_gating_func"),
    by_layer=short_convs.BY_LAYER,
    own_config=_own_config,
    written=lambda config: {
        **short_convs.written(config, config.convs),
        "leading_dense_block_count": len(config.dense_layers),
        "expert_gating_func": _SIGMOID,
    },
    without_values=lambda config: config.convs.layers,
    not_in_gguf=lambda c: short_convs.not_in_gguf(c, c.convs) or mixtures.not_renormalised(c, renormalised=True),
    not_in_llama_cpp=_not_in_llama_cpp,
)
FAMILY = Family("lfm2_moe", "Lfm2MoeForCausalLM", read, layer, GGUF)
