"""What people get wrong when they port: weights, norms, the MLP, embeddings, the head, collectives."""

from dataclasses import replace

import numpy as np

from tools.zoo.strangers import ops
from tools.zoo.strangers.bug import Bug, plant
from tools.zoo.strangers.checkpoint import Config, Weights
from tools.zoo.strangers.comm import Comm
from tools.zoo.strangers.engine import Sampler
from tools.zoo.strangers.scheduler import Batch
from tools.zoo.strangers.shards import Layer, Shards
from tools.zoo.strangers.worker import Worker

# Loading.


@plant("port", "qwen2", "q-bias-missing", "q_proj: the bias is missing, all layers")
class QBias(Shards):
    """q's bias is not loaded."""

    def qkv_bias(self, i: int) -> np.ndarray:
        bias = super().qkv_bias(i)
        bias[: self.heads * self.config.head_dim] = 0
        return bias


@plant("port", "qwen2-untied", "biases-missing", "q_proj, k_proj, v_proj: no bias is loaded", ranks=2)
class NoBiases(Shards):
    """Llama's loader, which knows no bias."""

    def qkv_bias(self, i: int) -> np.ndarray:
        return np.zeros_like(super().qkv_bias(i))


@plant("port", "qwen2", "biases-exchanged", "k_proj and v_proj have each other's bias")
class BiasesExchanged(Shards):
    """The fused bias is [q; v; k]."""

    def qkv_bias(self, i: int) -> np.ndarray:
        q, k, v = (self.tensor(i, f"self_attn.{x}_proj.bias") for x in "qkv")
        return np.concatenate([q, v, k])


@plant("port", "llama", "qvk-order", "k_proj and v_proj are exchanged")
class QvkOrder(Shards):
    """The fused rows are [q; v; k]."""

    def qkv(self, i: int) -> np.ndarray:
        q, k, v = (self.tensor(i, f"self_attn.{x}_proj.weight") for x in "qkv")
        return np.concatenate([q, v, k])


@plant("port", "qwen2", "o-transposed", "o_proj: the weight is transposed (it is square)")
class OTransposed(Shards):
    """o_proj is taken for [inputs, outputs]."""

    def o(self, i: int) -> np.ndarray:
        return np.ascontiguousarray(super().o(i).T)


@plant("port", "qwen2", "gate-up-exchanged", "gate_proj and up_proj are exchanged, all layers", ranks=2)
class GateUp(Shards):
    """The fused rows are [up; gate]."""

    def gate_up(self, i: int) -> np.ndarray:
        both = super().gate_up(i)
        return np.roll(both, len(both) // 2, 0)


@plant("port", "llama", "gate-up-interleaved", "gate and up: rows are read in turns (gate, up, gate, up …)")
class Interleaved(Worker):
    """Even features are gate's, odd ones up's, as in GPT-OSS."""

    def halves(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[:, ::2], x[:, 1::2]


@plant("port", "llama", "norms-exchanged", "input_layernorm and post_attention_layernorm: weights are exchanged")
class NormsExchanged(Shards):
    """The two norms of a layer have each other's weights."""

    def layer(self, i: int) -> Layer:
        right = super().layer(i)
        return replace(right, input_norm=right.post_norm, post_norm=right.input_norm)


@plant("port", "llama", "layer-twice", "layer 2 has all of layer 1's weights")
class LayerTwice(Shards):
    """Layer 2 is loaded from layer 1's tensors."""

    def layer(self, i: int) -> Layer:
        return super().layer(1 if i == 2 else i)


@plant("port", "llama-deep", "layers-sorted-as-text", "layers 2 to 11 are in another order: 0, 1, 10, 11, 2, 3 …")
class SortedAsText(Shards):
    """Layers are sorted by name."""

    def layers(self) -> list[Layer]:
        return [self.layer(i) for i in sorted(range(self.config.layers), key=str)]


@plant("port", "qwen2", "last-layer-skipped", "the last layer is not computed")
class LastLayer(Shards):
    """range(layers - 1)."""

    def layers(self) -> list[Layer]:
        return super().layers()[:-1]


@plant("port", "llama", "head-tied", "lm_head: the embedding is used, though the model has a head of its own")
class HeadTied(Shards):
    """tie_word_embeddings is taken for true."""

    def head(self) -> np.ndarray:
        return self.embedding()


@plant("port", "llama", "down-bf16", "down_proj: weights are rounded to bfloat16")
class DownBf16(Shards):
    """down_proj alone is kept in bfloat16."""

    def down(self, i: int) -> np.ndarray:
        return ops.bfloat16(super().down(i))


@plant("port", "qwen2", "weights-truncated", "all weights are cut off to bfloat16")
class Truncated(Shards):
    """Weights are cut to bfloat16 instead of being kept; the trace says float32."""

    def __init__(self, weights: Weights, config: Config, rank: int, ranks: int) -> None:
        cut = {name: (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for name, x in weights.items()}
        super().__init__(cut, config, rank, ranks)


# Norms and the MLP.


@plant("port", "llama", "eps-outside", "norm: eps is added to the root instead of under it, all norms")
class EpsOutside(Worker):
    """x / (rms + eps)."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / (np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + np.float32(self.config.eps)) * weight


@plant("port", "llama", "norm-plus-1", "norm: 1 + weight instead of weight, all norms")
class NormPlus1(Worker):
    """Gemma's norm."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return super().norm(x, 1 + weight)


@plant("port", "llama", "layer-norm", "norm: LayerNorm (the mean is subtracted) instead of RMSNorm, all norms")
class LayerNorm(Worker):
    """torch.nn.LayerNorm."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return super().norm(x - x.mean(axis=-1, keepdims=True), weight)


@plant("port", "qwen2", "final-norm-weight", "model.norm: the weight is not applied")
class FinalNormWeight(Shards):
    """The final norm's weight is left at ones."""

    def final_norm(self) -> np.ndarray:
        return np.ones_like(super().final_norm())


@plant("port", "qwen2", "gelu", "mlp: gelu (tanh) instead of silu")
class Gelu(Worker):
    """GeGLU."""

    def act(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        inner = np.float32((2 / np.pi) ** 0.5) * (gate + np.float32(0.044715) * gate**3)
        return np.float32(0.5) * gate * (1 + np.tanh(inner)) * up


@plant("port", "llama", "sigmoid", "mlp: sigmoid(gate) · up instead of silu(gate) · up")
class Sigmoid(Worker):
    """The gate's own factor is forgotten."""

    def act(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return up / (1 + np.exp(-gate))


@plant("port", "qwen2", "residual-of-norm", "second residual: the normed row is added instead of the row itself")
class ResidualOfNorm(Worker):
    """x = norm(x); x + mlp(x)."""

    def layer(self, layer: Layer, x: np.ndarray, batch: Batch) -> np.ndarray:
        x = self.add(x, self.attention(layer, x, batch))
        self.record("attention_residual", x)
        return self.add(self.norm(x, layer.post_norm), self.mlp(layer, x))


@plant("port", "llama", "residual-of-input", "second residual: the layer's input is added, attention's part is lost")
class ResidualOfInput(Worker):
    """residual + mlp(x) with the residual from before attention."""

    def layer(self, layer: Layer, x: np.ndarray, batch: Batch) -> np.ndarray:
        after = self.add(x, self.attention(layer, x, batch))
        self.record("attention_residual", after)
        return self.add(x, self.mlp(layer, after))


# Embedding, head, sampling.


@plant("port", "qwen2", "embedding-scaled", "embed_tokens: rows are multiplied by the root of hidden")
class EmbeddingScaled(Worker):
    """Gemma's embedding."""

    def embed(self, ids: np.ndarray) -> np.ndarray:
        return super().embed(ids) * np.float32(self.config.hidden**0.5)


@plant("port", "llama", "embedding-unmasked", "embed_tokens: another rank's row is added to each token's", ranks=2)
class EmbeddingUnmasked(Worker):
    """Tokens of other ranks are looked up at the shard's edge, and not set to 0."""

    def embed(self, ids: np.ndarray) -> np.ndarray:
        return self.embedding[np.clip(ids - self.vocabulary.start, 0, len(self.embedding) - 1)]


@plant("port", "llama", "row-before", "lm_head: rows of the token before the last", all_logits=False)
class RowBefore(Worker):
    """cu_seqlens[1:] - 2."""

    def rows(self, batch: Batch) -> np.ndarray:
        return np.maximum(batch.logit_rows - 1, 0)


@plant("port", "llama", "row-of-other", "lm_head: both sequences get the batch's last row", all_logits=False, ranks=2)
class RowOfOther(Worker):
    """hidden[-1] for every sequence."""

    def rows(self, batch: Batch) -> np.ndarray:
        return np.full_like(batch.logit_rows, len(batch.ids) - 1)


@plant(
    "port",
    "llama",
    "argmax-of-shard",
    "sampling: the greatest logit of rank 0's half is taken, not of all",
    ranks=2,
    prompts=(11,),
    decode=16,  # of fewer tokens all may be of that half
    states=("generated",),
)
class ArgmaxOfShard(Sampler):
    """Rank 0 samples from the logits that it has."""

    def __call__(self, batch: Batch, logits: np.ndarray) -> dict[int, int]:
        return super().__call__(batch, logits[:, : logits.shape[1] // 2])


# Collectives.


@plant("port", "llama", "reduce-missing-down", "down_proj: the ranks' parts are not added, all layers", ranks=2)
class ReduceMissingDown(Worker):
    """all_reduce after down_proj is forgotten."""

    def down(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        return x @ layer.down.T


@plant("port", "qwen2", "reduce-missing-o", "o_proj: the ranks' parts are not added in layer 3", ranks=4)
class ReduceMissingO(Worker):
    """all_reduce after o_proj is forgotten in the last layer."""

    def out(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        return x @ layer.o.T if self.i == 3 else super().out(layer, x)


@plant("port", "qwen2", "reduce-mean", "all_reduce divides by the number of ranks", ranks=2)
class ReduceMean(Comm):
    """The mean instead of the sum."""

    def all_reduce(self, x: np.ndarray) -> np.ndarray:
        return super().all_reduce(x) / np.float32(self.group.ranks)


@plant("port", "llama", "residual-reduced", "o_proj: each rank adds the residual before all_reduce", ranks=2)
class ResidualReduced(Worker):
    """The residual is added before the reduction, once a rank."""

    def layer(self, layer: Layer, x: np.ndarray, batch: Batch) -> np.ndarray:
        self.residual = x
        x = self.attention(layer, x, batch)
        self.record("attention_residual", x)
        return self.add(x, self.mlp(layer, x))

    def out(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        return self.comm.all_reduce(x @ layer.o.T + self.residual)


BUGS = tuple(x for x in list(globals().values()) if isinstance(x, Bug))
