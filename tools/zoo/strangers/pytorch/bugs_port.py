"""Bugs of the first port: in all layers and tokens."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from tools.zoo.strangers.pytorch.bug import both, plant
from tools.zoo.strangers.pytorch.engine import Engine, Step

ROPE = "q_rope k_rope"
SCORES = "scores weights"
NORMS = "input_layernorm post_attention_layernorm norm"
MATRICES = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head"


@plant("port", "qwen2", "theta-default", "rope-theta", ROPE, "theta is 10000")
class ThetaDefault(Engine):
    """rope_theta is not read: 10000."""

    def frequencies(self) -> Tensor:
        return 1e4 ** -(torch.arange(0, self.dim, 2) / self.dim)


@plant("port", "llama", "rope-scaling-ignored", "rope-theta", ROPE, "llama3 scaling is ignored")
class ScalingIgnored(Engine):
    """rope_scaling is not read."""

    def scaled(self, plain: Tensor) -> Tensor:
        return plain


@plant("port", "qwen2", "rope-neighbours", "rope-pairing", ROPE, "RoPE turns neighbours", ranks=2)
class RopeNeighbours(Engine):
    """Pairs are (2i, 2i + 1)."""

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, two = x[..., ::2], x[..., 1::2]
        return torch.stack([one * cos - two * sin, two * cos + one * sin], -1).flatten(-2)


@plant(
    "port", "llama", "rope-sign", "rope-sign", ROPE, "RoPE turns the wrong way; by relative distance it is the mirror"
)
class RopeSign(Engine):
    """The signs of sine are exchanged."""

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().turn(x, cos, -sin)


@plant("port", "llama-bias", "rope-not-on-k", "rope-missing-k", "k_rope", "k is not turned")
class RopeNotOnK(Engine):
    """Only q is turned."""

    def rope(self, name: str, x: Tensor, step: Step, rank: int) -> Tensor:
        return x if name.endswith("k_rope") else super().rope(name, x, step, rank)


@plant(
    "port", "llama", "cached-k-turned-again", "rope-twice", SCORES, "k from the cache is turned again", near="kv-stale"
)
class TurnedAgain(Engine):
    """The cache holds turned k, and attention turns what it reads."""

    def scores(self, at: str, q: Tensor, k: Tensor, step: Step, rank: int) -> Tensor:
        positions = (torch.arange(step.end) - step.pads[:, None]).clamp(min=0)
        angles = (positions[..., None].float() * self.frequencies())[:, None]
        return super().scores(at, q, self.turn(k, angles.cos(), angles.sin()), step, rank)


@plant("port", "llama", "rope-on-v", "rope-on-v", "attention", "v is turned too")
class RopeOnV(Engine):
    """v is turned before it is stored; v_proj is recorded before."""

    def store(self, at: str, rank: int, step: Step, k: Tensor, v: Tensor) -> None:
        super().store(at, rank, step, k, self.turn(v, *self.tables(step, rank)))


@plant("port", "qwen2", "half-the-head-turned", "rope-partial", ROPE, "only half of each head is turned")
class HalfTurned(Engine):
    """rotary dimensions are head_dim / 2."""

    def rope(self, name: str, x: Tensor, step: Step, rank: int) -> Tensor:
        half = self.dim // 2
        theta = self.config["rope_theta"]
        angles = self.positions(step)[..., None].float() * theta ** -(torch.arange(0, half, 2) / half)
        turned = self.turn(x[..., :half], angles.cos()[:, :, None], angles.sin()[:, :, None])
        return torch.cat([turned, x[..., half:]], -1)


@plant("port", "llama", "eps-times-10", "norm-eps", NORMS, "eps is ten times as large")
class EpsTimes10(Engine):
    """eps is 1e-4."""

    def eps(self, name: str) -> float:
        return 1e-4


@plant("port", "llama", "eps-outside", "norm-eps-outside", NORMS, "eps is added to the root", near="norm-eps")
class EpsOutside(Engine):
    """x / (sqrt(mean(x²)) + eps)."""

    def normalised(self, name: str, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps(name))


@plant("port", "llama", "norm-plus-1", "norm-offset", NORMS, "norms multiply by 1 + weight")
class NormPlus1(Engine):
    """All norms multiply by 1 + weight, as Gemma's do."""

    def norm(self, name: str, x: Tensor, rank: int, step: Step) -> Tensor:
        return self.normalised(name, x) * (1 + self.weights[rank][name])


@plant(
    "port",
    "qwen2",
    "norms-exchanged",
    "norm-swapped",
    NORMS,
    "a layer's two norms are exchanged",
    near="weight-swapped",
)
class NormsExchanged(Engine):
    """Weights of input_layernorm and post_attention_layernorm are exchanged."""

    def tensor(self, name: str, rank: int) -> Tensor:
        one, two = "input_layernorm", "post_attention_layernorm"
        return super().tensor(name.replace(one, two) if one in name else name.replace(two, one), rank)


@plant(
    "port",
    "llama",
    "embedding-scaled",
    "embed-scale",
    "embed_tokens",
    "the embedding is multiplied by sqrt(hidden)",
    ranks=2,
)
class EmbeddingScaled(Engine):
    """Gemma's scale."""

    def embed(self, step: Step, rank: int) -> Tensor:
        return super().embed(step, rank) * math.sqrt(self.config["hidden_size"])


@plant("port", "llama", "gelu", "activation", "act", "gelu in place of silu")
class Gelu(Engine):
    """hidden_act is not read: gelu, by tanh."""

    def activation(self, gate: Tensor) -> Tensor:
        return functional.gelu(gate, approximate="tanh")


@plant(
    "port",
    "qwen2",
    "residual-of-normed",
    "residual-missing",
    "attention_residual layer",
    "the residual is taken after the norm",
    near="residual-*",
)
class ResidualOfNormed(Engine):
    """The residual is the norm's output, not its input."""

    def add(self, name: str, x: Tensor, y: Tensor, normed: Tensor, step: Step) -> Tensor:
        return normed + y


@plant("port", "llama", "residual-twice", "residual-twice", "layer", "the MLP's residual is added twice", ranks=2)
class ResidualTwice(Engine):
    """A fused norm added the residual already."""

    def add(self, name: str, x: Tensor, y: Tensor, normed: Tensor, step: Step) -> Tensor:
        return x + y if name.endswith("residual") else x + x + y


@plant("port", "llama-bias", "o-bias-missing", "bias-missing", "o_proj", "o_proj's bias is not added", ranks=2)
class OBiasMissing(Engine):
    """Only the biases of q, k and v, as Qwen2 has them, and the MLP's."""

    def row_bias(self, name: str, rank: int) -> Tensor | None:
        return None if "o_proj" in name else super().row_bias(name, rank)


@plant("port", "llama", "head-tied", "tie-wrong", "lm_head", "the embedding serves as the head", near="head-other")
class HeadTied(Engine):
    """tie_word_embeddings is taken for true."""

    def head_name(self) -> str:
        return "model.embed_tokens.weight"


@plant(
    "port",
    "qwen2",
    "head-not-tied",
    "tie-ignored",
    "lm_head",
    "the head is not the embedding but random",
    near="head-other",
)
class HeadNotTied(Engine):
    """lm_head is missing in the file, and stays as it was initialised."""

    def load(self, rank: int) -> dict[str, Tensor | None]:
        held = super().load(rank)
        table = held["lm_head"]
        assert table is not None
        held["lm_head"] = 0.02 * torch.randn(table.shape, generator=torch.Generator().manual_seed(5))
        return held


@plant("port", "llama", "o-transposed", "transposed", "o_proj", "o_proj is read as [in, out]", near="shard-dim")
class OTransposed(Engine):
    """o_proj is square, and read transposed."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        return x.T if "o_proj.weight" in name else x


@plant(
    "port",
    "llama-bias",
    "q-is-k",
    "weight-swapped",
    "q_proj",
    "q_proj has k_proj's weight",
    near="layer-prefix qkv-split",
)
class QIsK(Engine):
    """A mapping of names gives q_proj the weight of k_proj; its bias is right."""

    def tensor(self, name: str, rank: int) -> Tensor:
        return super().tensor(name.replace("q_proj.weight", "k_proj.weight"), rank)


@plant(
    "port", "qwen2", "k-has-v-bias", "weight-swapped", "k_proj", "k is added v's bias", near="bias-missing qkv-split"
)
class KHasVBias(Engine):
    """A mapping of names gives k_proj the bias of v_proj."""

    def tensor(self, name: str, rank: int) -> Tensor:
        return super().tensor(name.replace("k_proj.bias", "v_proj.bias"), rank)


@plant("port", "llama", "down-of-layer-1", "layer-prefix", "down_proj", "layer 2 has layer 1's down_proj")
class DownOfLayer1(Engine):
    """layers.2.mlp.down_proj is read from layer 1."""

    def tensor(self, name: str, rank: int) -> Tensor:
        return super().tensor(name.replace("layers.2.mlp.down_proj", "layers.1.mlp.down_proj"), rank)


@plant(
    "port",
    "llama",
    "gguf-permuted",
    "gguf-permute",
    "q_proj k_proj",
    "rows of q and k are permuted",
    near="rope-pairing",
)
class GgufPermuted(Engine):
    """q and k came from a GGUF file and keep its order of rows."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        if "q_proj" not in name and "k_proj" not in name:
            return x
        return x.unflatten(0, (-1, 2, self.dim // 2)).transpose(1, 2).flatten(0, 2)


@plant("port", "llama", "kv-heads-tiled", "gqa-tile", SCORES, "KV heads are tiled", near="heads-order")
class KvHeadsTiled(Engine):
    """repeat in place of repeat_interleave."""

    def spread(self, x: Tensor, rank: int) -> Tensor:
        return x.repeat(1, 1, self.heads // self.size // x.shape[2], 1).transpose(1, 2)


@plant("port", "llama", "softmax-over-queries", "softmax-axis", "weights", "softmax runs over queries", prompts=(9,))
class SoftmaxQueries(Engine):
    """softmax(-2)."""

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


@plant("port", "qwen2", "mask-shows-next", "mask-off-by-one", SCORES, "a token sees the next one", chunk=5)
class MaskShowsNext(Engine):
    """Keys up to position + 1 are seen, where they are in the step."""

    def mask(self, step: Step) -> Tensor:
        keys = torch.arange(step.end)
        return ((keys <= step.columns[:, None] + 1) & (keys >= step.pads[:, None, None]))[:, None]


@plant("port", "llama", "no-causal-mask", "mask-missing", SCORES, "there is no causal mask", chunk=100)
class NoCausalMask(Engine):
    """Only padding is masked."""

    def mask(self, step: Step) -> Tensor:
        seen = torch.arange(step.end) >= step.pads[:, None, None]
        return seen.expand(-1, step.ids.shape[1], -1)[:, None]


@plant("port", "qwen2", "scale-missing", "scale-missing", SCORES, "scores are not scaled")
class ScaleMissing(Engine):
    """q · k as it is."""

    def scale(self, step: Step) -> float:
        return 1.0


@plant("port", "llama", "scale-by-hidden", "scale-wrong", SCORES, "scores are scaled by the root of the hidden size")
class ScaleByHidden(Engine):
    """1 / sqrt(hidden_size)."""

    def scale(self, step: Step) -> float:
        return self.config["hidden_size"] ** -0.5


@plant(
    "port", "qwen2", "weights-truncated", "dtype-trunc", MATRICES, "weights are cut to bfloat16", near="dtype-narrow"
)
class WeightsTruncated(Engine):
    """The low 16 bits of float32 matrices are dropped."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        matrix = x.dim() == 2 and "embed" not in name
        return (x.contiguous().view(torch.int32) & -65536).view(torch.float32) if matrix else x


@plant(
    "port", "llama", "weights-fp16", "dtype-narrow", MATRICES, "weights are float16", near="dtype-* narrow-arithmetic"
)
class WeightsFp16(Engine):
    """Matrices are stored as float16."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        return x.half().float() if x.dim() == 2 and "embed" not in name else x


@plant(
    "port",
    "llama",
    "last-layer-left-out",
    "layer-skipped",
    "norm layer",
    "the last layer is not computed",
    near="residual-missing",
)
class LastLayer(Engine):
    """The loop ends one layer too early."""

    def layer(self, at: str, x: list[Tensor], step: Step) -> list[Tensor]:
        return x if at == f"model.layers.{self.layers - 1}" else super().layer(at, x, step)


@plant(
    "port",
    "llama",
    "logits-one-late",
    "logits-row",
    "lm_head",
    "a token has the logits of the one before it",
    chunk=100,
    prompts=(11,),
    decode=2,
)
class LogitsLate(Engine):
    """logits_to_keep is off by one in prefill: rows are shifted by one."""

    def head(self, x: Tensor, rank: int, step: Step) -> Tensor:
        return super().head(x.roll(1, 1) if step.prefill else x, rank, step)


@plant("port", "llama", "logits-scaled", "logit-scale", "lm_head", "logits are multiplied by hidden ** -0.5")
class LogitsScaled(Engine):
    """A scale of another family."""

    def head(self, x: Tensor, rank: int, step: Step) -> Tensor:
        return super().head(x, rank, step) * self.config["hidden_size"] ** -0.5


both("theta+norms", "theta-default", "norms-exchanged")
both("gelu+scale", "gelu", "scale-by-hidden")
