"""What families with mixtures of experts share: their sizes, and how config.json and GGUF state them."""

from dataclasses import dataclass
from typing import Any

from karat.checkpoint.gguf import Metadata
from karat.config import ModelConfig
from karat.errors import ConfigError
from karat.layers.experts import ExpertMixture, SharedMixture
from karat.layers.linear import ColumnParallelLinear
from karat.layers.mlp import GatedMLP
from karat.layers.place import Place
from karat.models.reader import ConfigReader
from karat.ops.api import Routing
from karat.request import shown

# GGUF's key -> config.json's, for GgufForm.counts.
COUNTS: dict[str, str] = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
SIZE: dict[str, str] = {"expert_feed_forward_length": "moe_intermediate_size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(ModelConfig):
    """Adds the experts under config.json's names, and which layers have one MLP of intermediate_size instead."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    dense_layers: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        """The part of a layer's experts that a token reads."""
        return self.num_experts_per_tok / self.num_experts if self.num_experts else 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}: expected 1 to num_experts={self.num_experts}"
            )
        if self.moe_intermediate_size < 1:
            raise ConfigError(f"moe_intermediate_size={self.moe_intermediate_size}: expected a positive integer")
        ModelConfig.__post_init__(self)


def mixture(place: Place, config: MixtureConfig, routing: Routing | None = None, **own: Any) -> ExpertMixture:
    """The experts of a layer, chosen by softmax unless by another `routing`; `own` are arguments of ExpertMixture."""
    return ExpertMixture(
        place,
        config.hidden_size,
        config.moe_intermediate_size,
        num_experts=config.num_experts,
        routing=routing or Routing(config.num_experts_per_tok, renormalised=config.norm_topk_prob),
        **own,
    )


def shared_mixture(place: Place, config: MixtureConfig, shared_size: int) -> SharedMixture:
    """The experts of a layer beside an MLP of this inner size, which all tokens share."""
    return SharedMixture(
        mixture(place, config, result=f"{place.name}.experts"),
        GatedMLP(place / "shared_expert", config.hidden_size, shared_size),
        ColumnParallelLinear(place / "shared_expert_gate", 1, config.hidden_size, bias=False, pieces=None),
    )


def read_experts(reader: ConfigReader) -> dict[str, Any]:
    """The number of experts, and of the chosen ones, under either of their names."""
    one, other = reader.optional(int, "num_experts"), reader.optional(int, "num_local_experts")
    if one is not None and other is not None and one != other:
        raise ConfigError(f"num_experts={one} and num_local_experts={other} disagree: keep the correct one")
    chosen, per_token = reader.optional(int, "num_experts_per_tok"), reader.optional(int, "experts_per_token")
    if chosen is not None and per_token is not None and chosen != per_token:
        raise ConfigError(
            f"num_experts_per_tok={chosen} and experts_per_token={per_token} disagree: keep the correct one"
        )
    return {
        "num_experts": reader.get(int, "num_experts", other),
        "num_experts_per_tok": reader.get(int, "num_experts_per_tok", per_token),
    }


def read_dense_layers(reader: ConfigReader) -> tuple[int, ...]:
    """Layers in mlp_only_layers, and those whose number, counted from 1, is no multiple of decoder_sparse_step."""
    num_layers, step = reader.get(int, "num_hidden_layers"), reader.get(int, "decoder_sparse_step", 1)
    stated = reader.raw("mlp_only_layers") or []
    if not isinstance(stated, list) or not all(type(index) is int for index in stated):
        raise ConfigError(f"mlp_only_layers={shown(stated)}: expected a list of layers, which are integers")
    if step < 1:
        raise ConfigError(f"decoder_sparse_step={step}: expected at least 1")
    return tuple(index for index in range(num_layers) if index in stated or (index + 1) % step)


def size_in_old_files(metadata: Metadata, architecture: str) -> dict[str, Any]:
    """The size of an expert, where only that of all chosen ones is stated."""
    if f"{architecture}.expert_feed_forward_length" in metadata:
        return {}
    chosen = metadata.get(int, f"{architecture}.expert_used_count")
    return {"moe_intermediate_size": metadata.get(int, f"{architecture}.feed_forward_length") // max(1, chosen)}


def not_in_gguf(config: MixtureConfig, *, renormalised: bool) -> str | None:
    """Files state no dense layers, and readers of an architecture renormalise always, or never."""
    if config.dense_layers:
        return f"layers without experts (the first is {config.dense_layers[0]})"
    return not_renormalised(config, renormalised=renormalised)


def not_renormalised(config: MixtureConfig, *, renormalised: bool) -> str | None:
    """Readers of an architecture renormalise always, or never."""
    if config.norm_topk_prob == renormalised:
        return None
    which = "that are" if config.norm_topk_prob else "that are not"
    return f"weights of experts {which} renormalised (norm_topk_prob={str(config.norm_topk_prob).lower()})"
