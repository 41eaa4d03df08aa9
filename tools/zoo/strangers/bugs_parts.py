"""Bugs in a part: on one rank, in one step, in one sequence, in a narrow type, or at a single place."""

from dataclasses import replace

import numpy as np

from tools.zoo.strangers import ops
from tools.zoo.strangers.bug import Bug, pair, plant
from tools.zoo.strangers.cache import BLOCK
from tools.zoo.strangers.scheduler import Batch, Scheduler, Span
from tools.zoo.strangers.shards import Layer, Shards
from tools.zoo.strangers.worker import Worker

# On one rank, or between ranks.


@plant("part", "qwen2", "k-bias-rank1", "k_proj: the bias is missing on rank 1, all layers", ranks=2)
class KBiasRank1(Shards):
    """Rank 1 forgets k's bias."""

    def qkv_bias(self, i: int) -> np.ndarray:
        bias = super().qkv_bias(i)
        if self.rank == 1:
            bias[self.heads * self.config.head_dim :][: self.kv_heads * self.config.head_dim] = 0
        return bias


@plant("part", "llama", "gate-up-rank1", "gate_proj and up_proj are exchanged on rank 1, all layers", ranks=2)
class GateUpRank1(Shards):
    """Rank 1 reads up first."""

    def gate_up(self, i: int) -> np.ndarray:
        both = super().gate_up(i)
        return np.roll(both, len(both) // 2, 0) if self.rank == 1 else both


@plant("part", "llama", "down-slice-rank1", "down_proj: rank 1 uses rank 0's columns, all layers", ranks=2)
class DownSliceRank1(Shards):
    """Rank 1 reads rank 0's slice of down_proj."""

    def down(self, i: int) -> np.ndarray:
        columns = self.config.inner // self.ranks
        return self.tensor(i, "mlp.down_proj.weight")[:, :columns]


@plant("part", "llama", "o-slice-exchanged", "o_proj: the ranks' columns are exchanged, layer 1", ranks=2)
class OSlice(Shards):
    """In layer 1 each rank reads the other's slice of o_proj."""

    def o(self, i: int) -> np.ndarray:
        x = self.tensor(i, "self_attn.o_proj.weight")
        return super().o(i) if i != 1 else np.split(x, self.ranks, 1)[self.ranks - 1 - self.rank]


@plant("part", "qwen2", "qkv-cut-naively", "q, k, v: the fused rows are cut over the ranks as one matrix", ranks=2)
class QkvNaive(Shards):
    """[q; k; v] is cut in two, and each half is read as [q; k; v]."""

    def qkv(self, i: int) -> np.ndarray:
        return self.part(np.concatenate([self.tensor(i, f"self_attn.{x}_proj.weight") for x in "qkv"]))

    def qkv_bias(self, i: int) -> np.ndarray:
        return self.part(np.concatenate([self.tensor(i, f"self_attn.{x}_proj.bias") for x in "qkv"]))


@plant("part", "llama", "gate-up-cut-naively", "gate and up: the fused rows are cut over the ranks as one", ranks=2)
class GateUpNaive(Shards):
    """[gate; up] is cut in two: rank 0 has gate's rows alone, and reads half of them as up."""

    def gate_up(self, i: int) -> np.ndarray:
        return self.part(np.concatenate([self.tensor(i, f"mlp.{x}_proj.weight") for x in ("gate", "up")]))


@plant("part", "llama", "heads-joined-inside", "attention: heads and features exchanged, each rank", ranks=2)
class HeadsJoined(Worker):
    """[heads, head_dim] is joined as [head_dim, heads]."""

    def join(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1).reshape(len(x), -1)


@plant("part", "llama", "vocabulary-exchanged", "lm_head: the shards of the vocabulary are exchanged", ranks=2)
class HeadExchanged(Shards):
    """Rank 0 has the second half of the head, rank 1 the first."""

    def head(self) -> np.ndarray:
        return np.split(self.weights["lm_head.weight"], self.ranks)[self.ranks - 1 - self.rank]


@plant("part", "qwen2", "kv-heads-4-ranks", "k_proj, v_proj: ranks 1 and 2 have each other's KV head", ranks=4)
class KvHeadByRemainder(Shards):
    """With 4 ranks and 2 KV heads rank r takes head r % 2 instead of r // 2."""

    def first_kv_head(self) -> int:
        return self.rank % self.config.kv_heads


@plant("part", "qwen2", "embedding-rows-4-ranks", "embed_tokens: rank r's rows are r too low (another row)", ranks=4)
class EmbeddingRows(Shards):
    """Ids are looked up as if shards had 98 rows; they were cut at 97."""

    def embedding(self) -> np.ndarray:
        first = self.rank * (self.config.vocabulary // self.ranks)
        return self.weights["model.embed_tokens.weight"][first : first + len(self.vocabulary())]


# In some steps, or in one sequence.


@plant("part", "llama", "mask-from-0", "mask: rows of later prefill chunks are counted from 0")
class MaskFromZero(Worker):
    """The mask of a chunk is the lower triangle, wherever the chunk starts."""

    def mask(self, span: Span, keys: int) -> np.ndarray:
        first = span.start if span.decodes else 0
        return np.arange(keys) <= np.arange(first, first + span.count)[:, None]


@plant("part", "llama", "mask-of-rows", "mask: the second sequence's rows are counted in the batch (sees the future)")
class MaskOfRows(Worker):
    """Rows are counted in the batch, not in the sequence."""

    def mask(self, span: Span, keys: int) -> np.ndarray:
        first = span.start + span.first
        return np.arange(keys) <= np.arange(first, first + span.count)[:, None]


@plant("part", "llama", "positions-restart", "RoPE: positions restart at 0 in each prefill chunk")
class PositionsRestart(Scheduler):
    """Positions of a chunk are counted from 0."""

    def positions(self, span: Span) -> np.ndarray:
        return super().positions(span) - (0 if span.decodes else span.start)


@plant(
    "part",
    "qwen2",
    "positions-restart-stated",
    "RoPE: positions restart at 0 in each prefill chunk; the trace states these positions",
    states=("positions",),
    ranks=2,
)
class PositionsRestartStated(Scheduler):
    """As positions-restart; the engine writes its own positions into the trace."""

    def positions(self, span: Span) -> np.ndarray:
        return super().positions(span) - (0 if span.decodes else span.start)


@plant("part", "qwen2", "decode-position+1", "RoPE: position + 1 in decode steps", ranks=2)
class DecodePosition(Scheduler):
    """A decoded token's position is the length instead of length - 1."""

    def positions(self, span: Span) -> np.ndarray:
        return super().positions(span) + span.decodes


@plant("part", "llama", "slot-low-from-step-3", "KV cache: slots are one too low from the third step on")
class SlotLow(Scheduler):
    """The slot mapping is off by one from the third step on."""

    def slots(self, span: Span, step: int) -> np.ndarray:
        at = np.arange(span.start, span.length) - (step >= 2)
        return np.asarray(span.table)[at // BLOCK] * BLOCK + at % BLOCK


@plant("part", "llama", "block-of-other", "KV cache: the second sequence's second block is the first sequence's")
class BlockOfOther(Scheduler):
    """The second sequence's table holds a block of the first one."""

    def next(self) -> Batch | None:
        batch = super().next()
        if batch and len(batch.spans) == 2 and len(batch.spans[1].table) > 1:
            one, two = batch.spans
            two.table = [two.table[0], one.table[1], *two.table[2:]]
        return batch


@plant("part", "qwen2", "padding-counted", "RoPE: the second sequence's positions are 4 too high (left padding)")
class PaddingCounted(Scheduler):
    """The shorter prompt is padded on the left, and its positions count the padding."""

    def positions(self, span: Span) -> np.ndarray:
        return super().positions(span) + 4 * span.sequence.number


@plant("part", "llama", "decode-mask-short", "mask: a decoded token does not see itself")
class DecodeMask(Worker):
    """In decode steps the number of keys is the old length."""

    def mask(self, span: Span, keys: int) -> np.ndarray:
        seen = super().mask(span, keys)
        return seen & (np.arange(keys) < span.start) if span.decodes else seen


# Narrow types inside one op.


@plant("part", "qwen2", "rope-tables-bf16", "RoPE: cos and sin are rounded to bfloat16")
class TablesBf16(Worker):
    """The tables are kept in bfloat16."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        cos, sin = super().tables()
        return ops.bfloat16(cos), ops.bfloat16(sin)


@plant("part", "llama", "frequencies-bf16", "RoPE: the frequencies are rounded to bfloat16", ranks=2)
class FrequenciesBf16(Worker):
    """model.to(bfloat16) took the buffer inv_freq with it."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        return ops.rope_tables(ops.bfloat16(ops.inverse_frequencies(self.config)), 512)


@plant("part", "llama", "softmax-fp16", "softmax is computed in float16")
class SoftmaxFp16(Worker):
    """Scores, exponentials and their sum are float16."""

    def softmax(self, scores: np.ndarray) -> np.ndarray:
        return ops.softmax(scores.astype(np.float16)).astype(np.float32)


@plant("part", "qwen2", "norm-bf16", "norms are computed in bfloat16, all of them")
class NormBf16(Worker):
    """The norm's input, the normed row and the result are bfloat16."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        normed = ops.rms_norm(ops.bfloat16(x), np.ones_like(weight), self.config.eps)
        return ops.bfloat16(ops.bfloat16(normed) * ops.bfloat16(weight))


@plant("part", "llama-massive", "square-overflows", "norm: x² overflows in float16 at one token, which becomes 0")
class SquareOverflows(Worker):
    """The squares are float16; their mean is float32."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        squares = np.square(x.astype(np.float16)).astype(np.float32)
        return x / np.sqrt(squares.mean(axis=-1, keepdims=True) + np.float32(self.config.eps)) * weight


@plant("part", "llama", "logits-bf16", "lm_head: logits are rounded to bfloat16")
class LogitsBf16(Worker):
    """The head's product is bfloat16."""

    def head(self, x: np.ndarray) -> np.ndarray:
        return ops.bfloat16(super().head(x))


@plant("part", "qwen2", "residual-fp16", "both additions to the residual stream are rounded to float16")
class ResidualFp16(Worker):
    """The residual stream is float16."""

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return ops.float16(x + y)


# At a single place.


@plant("part", "qwen2", "rope-before-bias", "RoPE is applied to q and k before their bias is added")
class RopeBeforeBias(Worker):
    """RoPE turns the product; the bias comes afterwards."""

    def project(self, layer: Layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, _ = self.split(x @ layer.qkv.T)
        return q, k, super().project(layer, x)[2]

    def rope(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        q, k, _ = self.split(self.layers[self.i].qkv_bias[None])
        return super().rope(x, batch) + (q if x.shape[1] == self.heads else k)


@plant("part", "llama", "llama3-factor", "RoPE: the llama3 factor is 32 instead of 8")
class Llama3Factor(Worker):
    """Llama 3.2's factor in a Llama 3.1."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        other = replace(self.config, scaling=dict(self.config.scaling or {}) | {"factor": 32.0})
        return ops.rope_tables(ops.inverse_frequencies(other), 512)


@plant("part", "llama", "variance-about-mean", "norm: the variance is taken about the mean, all norms")
class VarianceAboutMean(Worker):
    """np.var instead of the mean of squares."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(self.config.eps)) * weight


@plant("part", "qwen2", "edge-row-zero", "embed_tokens: the row of token 195, first of rank 1's shard, is 0", ranks=2)
class EdgeRow(Worker):
    """A rank's first token is taken for another's: > instead of >=."""

    def is_mine(self, ids: np.ndarray) -> np.ndarray:
        return (ids > self.vocabulary.start) & (ids < self.vocabulary.stop)


@plant("part", "llama", "final-norm-unused", "the final norm is computed, and lm_head reads the row before it")
class FinalNormUnused(Worker):
    """The normed rows are recorded and dropped."""

    def logits(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        self.recorder.add("model.norm", self.norm(x, self.final_weight))
        logits = self.comm.all_gather(self.head(x[self.rows(batch)]))
        self.recorder.add("lm_head", logits)
        return logits


# Two at once.


@plant("part", "qwen2", "v-bias-layer-1", "v_proj: the bias is missing in layer 1")
class VBiasLayer1(Shards):
    """Layer 1's v has no bias."""

    def qkv_bias(self, i: int) -> np.ndarray:
        bias = super().qkv_bias(i)
        if i == 1:
            bias[-self.kv_heads * self.config.head_dim :] = 0
        return bias


@plant("part", "qwen2", "eps", "norm: eps is 1e-5 instead of 1e-6, all norms")
class Eps(Worker):
    """The usual eps instead of the model's."""

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return ops.rms_norm(x, weight, 1e-5)


@plant("part", "llama", "gate-up-layer-2", "gate_proj and up_proj are exchanged in layer 2")
class GateUpLayer2(Shards):
    """Layer 2 reads up first."""

    def gate_up(self, i: int) -> np.ndarray:
        both = super().gate_up(i)
        return np.roll(both, len(both) // 2, 0) if i == 2 else both


@plant("part", "llama", "theta-default", "RoPE: theta is 10000 instead of 500000")
class ThetaDefault(Worker):
    """rope_theta is not read."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        return ops.rope_tables(ops.inverse_frequencies(replace(self.config, theta=10000.0)), 512)


PAIRS = (
    pair("v-bias+eps", "v_proj's bias is missing in layer 1, and eps is 1e-5 in all norms", VBiasLayer1, Eps),
    pair("theta+gate-up", "theta is 10000, and gate and up are exchanged in layer 2", ThetaDefault, GateUpLayer2),
    pair(
        "gate-up-rank1+restart",
        "gate and up are exchanged on rank 1, and positions restart in each prefill chunk",
        GateUpRank1,
        PositionsRestart,
        ranks=2,
    ),
)
BUGS = (*(x for x in list(globals().values()) if isinstance(x, Bug)), *PAIRS)
