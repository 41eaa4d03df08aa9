"""The decoder that all families share: embedding, layers of attention and MLP with pre-norms, final norm, head."""

from karat.checkpoint.weights import WeightSpec
from karat.config import ModelConfig
from karat.dist.group import SINGLE, Group
from karat.layers.attention import Attention
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.shards import Units
from karat.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from karat.layers.weights import SpecCollector, Take
from karat.ops.api import Cache, Ops, RopeTable, Step, Tensor


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, take: Take, name: str, config: ModelConfig, layer: int, units: Units, group: Group) -> None:
        self.name = name
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(take, f"{name}.input_layernorm", size, eps)
        self.self_attn = Attention(take, f"{name}.self_attn", config, layer, units, group)
        self.post_attention_layernorm = RMSNorm(take, f"{name}.post_attention_layernorm", size, eps)
        self.mlp = GatedMLP(take, f"{name}.mlp", config, units, group)

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, rope: RopeTable) -> Tensor:
        h = self.self_attn(ops, self.input_layernorm(ops, x), step, cache, rope)
        x = ops.add(x, h, name=f"{self.name}.attention_residual")
        h = self.mlp(ops, self.post_attention_layernorm(ops, x))
        return ops.add(x, h, name=self.name)


class Decoder:
    """A whole model of loaded weights, or what a rank of `group` has of it; sums are cut at `units`.

    It holds no executor: the same weights run under a tap of theirs too.
    """

    def __init__(self, take: Take, config: ModelConfig, units: Units, group: Group = SINGLE) -> None:
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed_tokens = VocabParallelEmbedding(take, "model.embed_tokens", vocab, hidden, group)
        self.layers = [
            DecoderLayer(take, f"model.layers.{i}", config, i, units, group) for i in range(config.num_layers)
        ]
        self.norm = RMSNorm(take, "model.norm", hidden, config.rms_norm_eps)
        self.lm_head = ParallelLMHead(
            take, self.embed_tokens, vocab, hidden, tied=config.tie_word_embeddings, group=group
        )

    @property
    def num_kv_heads(self) -> int:
        """KV heads that a cache holds for it: all, or those of this rank."""
        return self.layers[0].self_attn.num_kv_heads

    def __call__(self, ops: Ops, step: Step, cache: Cache, rope: RopeTable) -> Tensor:
        x = self.embed_tokens(ops, step)
        for layer in self.layers:
            x = layer(ops, x, step, cache, rope)
        x = ops.select_rows(x, step, name="model.selected")
        return self.lm_head(ops, self.norm(ops, x))


def weight_specs(config: ModelConfig) -> list[WeightSpec]:
    """Every tensor that a model of this configuration needs, each once and whole."""
    return rank_specs(config, Units(1, 1), SINGLE)  # where sums are cut says nothing of tensors that are not


def rank_specs(config: ModelConfig, units: Units, group: Group) -> list[WeightSpec]:
    """What a rank of `group` holds of each of them."""
    collector = SpecCollector()
    Decoder(collector, config, units, group)
    return collector.specs
