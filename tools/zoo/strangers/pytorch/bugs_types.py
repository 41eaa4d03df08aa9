"""Bugs of a narrower type inside one op, and single mistakes."""

import torch
from torch import Tensor
from torch.nn import functional

from tools.zoo.strangers.pytorch.bug import both, plant
from tools.zoo.strangers.pytorch.engine import Engine, Step
from tools.zoo.strangers.pytorch.models import LLAMA3

ROPE = "q_rope k_rope"
SCORES = "scores weights"
NORMS = "input_layernorm post_attention_layernorm norm"
NARROW = "narrow-arithmetic"


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


@plant("part", "qwen2", "rope-tables-bf16", NARROW, ROPE, "cos and sin are bfloat16")
class TablesBf16(Engine):
    """cos and sin are rounded to bfloat16."""

    def tables(self, step: Step, rank: int) -> tuple[Tensor, Tensor]:
        cos, sin = super().tables(step, rank)
        return bf16(cos), bf16(sin)


@plant("part", "llama", "frequencies-bf16", NARROW, ROPE, "frequencies are bfloat16", near="rope-theta")
class FrequenciesBf16(Engine):
    """inv_freq went with the model to bfloat16."""

    def frequencies(self) -> Tensor:
        return bf16(super().frequencies())


@plant(
    "part",
    "llama",
    "positions-bf16",
    NARROW,
    ROPE,
    "angles are multiplied in bfloat16",
    near="rope-theta rope-position",
    prompts=(21, 9),
)
class AnglesBf16(Engine):
    """position · frequency is computed in bfloat16."""

    def tables(self, step: Step, rank: int) -> tuple[Tensor, Tensor]:
        angles = (self.positions(step)[..., None].bfloat16() * self.frequencies().bfloat16()).float()
        return angles.cos()[:, :, None], angles.sin()[:, :, None]


@plant("part", "llama", "softmax-fp16", NARROW, "weights", "softmax is computed in float16", ranks=2)
class SoftmaxFp16(Engine):
    """Scores are float16 for softmax, and so is its result."""

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.clamp(min=-65504).half().softmax(-1).float()


@plant(
    "part",
    "qwen2",
    "weights-bf16",
    NARROW,
    "weights attention",
    "attention's weights are bfloat16 for the product with V",
)
class WeightsBf16(Engine):
    """Softmax is float32, and its result is rounded to V's type, bfloat16."""

    def softmax(self, scores: Tensor) -> Tensor:
        return bf16(super().softmax(scores))


@plant("part", "llama", "norm-in-bf16", NARROW, NORMS, "norms are computed in bfloat16")
class NormBf16(Engine):
    """The norm computes in bfloat16 and its result is float32 again."""

    def normalised(self, name: str, x: Tensor) -> Tensor:
        return bf16(super().normalised(name, x.bfloat16()))


@plant("part", "qwen2", "mean-square-bf16", NARROW, NORMS, "the mean of squares is bfloat16", near="norm-eps", ranks=2)
class MeanBf16(Engine):
    """The mean of the squares is rounded to bfloat16."""

    def normalised(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(bf16(x.square().mean(-1, keepdim=True)) + self.eps(name))


@plant(
    "part",
    "llama-huge",
    "square-overflows",
    "overflow-fp16",
    NORMS,
    "x² overflows float16 at the token with a huge feature",
    near=NARROW,
)
class SquareOverflows(Engine):
    """Squares are summed in float16: of one token they are infinite, and its norm is 0."""

    def normalised(self, name: str, x: Tensor) -> Tensor:
        mean = x.half().square().mean(-1, keepdim=True).float()
        return x * torch.rsqrt(mean + self.eps(name))


@plant("part", "llama", "scores-bf16", NARROW, SCORES, "q · k is computed in bfloat16")
class ScoresBf16(Engine):
    """q and k are bfloat16 in the product of scores."""

    def scores(self, at: str, q: Tensor, k: Tensor, step: Step, rank: int) -> Tensor:
        return super().scores(at, bf16(q), bf16(k), step, rank)


@plant(
    "part", "llama", "down-fp16", NARROW, "down_proj", "down_proj is a float16 product", near="dtype-narrow", ranks=2
)
class DownFp16(Engine):
    """The product of down_proj has float16 inputs, weights and result."""

    def linear(self, name: str, x: Tensor, rank: int, step: Step) -> Tensor:
        if not name.endswith("down_proj"):
            return super().linear(name, x, rank, step)
        weight = self.weights[rank][f"{name}.weight"]
        assert weight is not None
        return functional.linear(x.half(), weight.half()).float()


@plant("part", "qwen2", "head-bf16", NARROW, "lm_head", "the head's input is bfloat16", near="dtype-narrow")
class HeadBf16(Engine):
    """The head reads bfloat16."""

    def head(self, x: Tensor, rank: int, step: Step) -> Tensor:
        return super().head(bf16(x), rank, step)


@plant("part", "llama", "layer2-silu-bf16", NARROW, "act", "silu of layer 2 is bfloat16", near="activation")
class SiluBf16(Engine):
    """silu of one layer is rounded to bfloat16."""

    def mlp(self, at: str, x: Tensor, rank: int, step: Step) -> Tensor:
        self.rounds = "layers.2." in at
        return super().mlp(at, x, rank, step)

    def activation(self, gate: Tensor) -> Tensor:
        return bf16(super().activation(gate)) if self.rounds else super().activation(gate)


@plant(
    "part",
    "llama",
    "residual-bf16",
    NARROW,
    "attention_residual layer",
    "the residual stream is bfloat16",
    near="dtype-narrow",
)
class ResidualBf16(Engine):
    """Each addition of the residual is rounded to bfloat16."""

    def add(self, name: str, x: Tensor, y: Tensor, normed: Tensor, step: Step) -> Tensor:
        return bf16(super().add(name, x, y, normed, step))


@plant(
    "part",
    "llama",
    "decode-attention-bf16",
    NARROW,
    "attention",
    "in decode, V is bfloat16 in attention",
    near="kv-dtype kv-stale",
)
class DecodeVBf16(Engine):
    """The decode kernel reads V as bfloat16."""

    def stored(self, at: str, rank: int, step: Step) -> tuple[Tensor, Tensor]:
        k, v = super().stored(at, rank, step)
        return k, v if step.prefill else bf16(v)


@plant(
    "part",
    "llama",
    "reduce-bf16",
    NARROW,
    "o_proj down_proj",
    "sums of ranks are bfloat16",
    near="dtype-narrow",
    ranks=4,
)
class ReduceBf16(Engine):
    """all_reduce sends bfloat16."""

    def reduce(self, parts: list[Tensor], name: str, step: Step) -> list[Tensor]:
        return super().reduce(parts if "embed" in name else [bf16(x) for x in parts], name, step)


@plant(
    "part",
    "qwen2",
    "cache-bf16",
    "kv-dtype",
    "scores attention weights",
    "the cache is bfloat16, float32 is stated",
    near="kv-stale",
)
class CacheBf16(Engine):
    """The cache is bfloat16; the trace states float32."""

    def empty_cache(self, sequences: int, columns: int, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
        made = super().empty_cache(sequences, columns, rank)
        return {name: (k.bfloat16(), v.bfloat16()) for name, (k, v) in made.items()}


@plant(
    "part",
    "qwen2",
    "rope-before-bias",
    "rope-before-bias",
    ROPE,
    "RoPE turns the product, and the bias is added after",
    near="bias-missing",
    chunk=6,
)
class RopeBeforeBias(Engine):
    """q and k are turned without their biases, which are added afterwards. q_proj and k_proj are recorded with them."""

    def rope(self, name: str, x: Tensor, step: Step, rank: int) -> Tensor:
        at, _, op = name.rpartition(".")
        bias = self.weights[rank][f"{at}.qkv.bias"]
        assert bias is not None
        heads = bias.unflatten(0, (-1, self.dim))
        mine, of_kv = self.heads // self.size, len(self.kv_heads_of(rank))
        added = heads[:mine] if op == "q_rope" else heads[mine : mine + of_kv]
        return super().rope(name, x - added, step, rank) + added


@plant("part", "llama", "llama3-factor", "rope-theta", ROPE, "the llama3 factor is another")
class Llama3Factor(Engine):
    """The factor of rope_scaling is 32 in place of 8."""

    def scaled(self, plain: Tensor) -> Tensor:
        self.config["rope_scaling"] = {**LLAMA3, "factor": 32.0}
        return super().scaled(plain)


@plant(
    "part",
    "llama",
    "variance-about-mean",
    "norm-mean",
    NORMS,
    "the variance is about the mean, x itself is not centred",
)
class VarianceAboutMean(Engine):
    """x / sqrt(var(x) + eps): the variance takes the mean off."""

    def normalised(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + self.eps(name))


@plant("part", "llama", "foreign-head", "head-other", "lm_head", "the head is of another checkpoint", near="tie-*")
class ForeignHead(Engine):
    """lm_head.weight is that of a fine-tuned relative: other numbers."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        if name != "lm_head.weight":
            return x
        return x + 0.5 * x.std() * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))


@plant(
    "part",
    "llama",
    "head-rows-off-by-one",
    "head-other shard-order",
    "lm_head",
    "the head's rows begin one too late",
    near="logits-row weight-* embed-row",
)
class HeadRows(Engine):
    """The head is cut from row 1 on (an added token was counted); the last row is 0."""

    def tensor(self, name: str, rank: int) -> Tensor:
        x = super().tensor(name, rank)
        return torch.cat([x[1:], torch.zeros_like(x[:1])]) if name == "lm_head.weight" else x


@plant("part", "llama", "final-norm-unused", "norm-missing", "lm_head", "the head reads what the final norm read")
class FinalNormUnused(Engine):
    """The final norm is computed, and its input goes to the head."""

    def last_norm(self, x: list[Tensor], step: Step) -> list[Tensor]:
        super().last_norm(x, step)
        return x


@plant("part", "qwen2", "layer1-k-bias", "bias-missing", "k_proj", "layer 1 adds no bias to k")
class LayerKBias(Engine):
    """The k bias of layer 1 is not loaded."""

    def qkv_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        part = super().qkv_part(at, kind, rank)
        if part is not None and kind == "bias" and "layers.1." in at:
            mine, dims = self.heads // self.size * self.dim, len(self.kv_heads_of(rank)) * self.dim
            part[mine : mine + dims] = 0
        return part


@plant(
    "part",
    "qwen2",
    "layer0-up-gate",
    "gate-up-swapped",
    "gate_proj up_proj act",
    "gate and up of layer 0 are exchanged",
    near="gate-up-split",
)
class LayerGateUp(Engine):
    """Layer 0's gate and up are exchanged."""

    def gate_up_part(self, at: str, kind: str, rank: int) -> Tensor | None:
        part = super().gate_up_part(at, kind, rank)
        return part.roll(len(part) // 2, 0) if part is not None and "layers.0." in at else part


both("k-bias+gate-up", "layer1-k-bias", "layer0-up-gate")
both("norm-bf16+head", "norm-in-bf16", "foreign-head")
