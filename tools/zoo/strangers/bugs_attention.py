"""What people get wrong when they port: heads, RoPE, scores, masks, the KV cache."""

from dataclasses import replace

import numpy as np

from tools.zoo.strangers import ops
from tools.zoo.strangers.bug import Bug, plant
from tools.zoo.strangers.cache import BLOCK, Cache
from tools.zoo.strangers.scheduler import Batch, Scheduler, Span
from tools.zoo.strangers.shards import Layer
from tools.zoo.strangers.worker import Worker

# RoPE.


@plant("port", "qwen2", "theta-10000", "RoPE: theta is 10000 instead of 1e6", ranks=4)
class Theta(Worker):
    """rope_theta is not read."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        return ops.rope_tables(ops.inverse_frequencies(replace(self.config, theta=10000.0)), 512)


@plant("port", "llama", "llama3-ignored", "RoPE: the llama3 scaling is not applied")
class Llama3Ignored(Worker):
    """rope_scaling is not read."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        return ops.rope_tables(ops.inverse_frequencies(replace(self.config, scaling=None)), 512)


@plant("port", "llama", "rope-interleaved", "RoPE: features 2i and 2i + 1 are paired instead of i and i + half")
class RopeInterleaved(Worker):
    """GPT-J's pairs."""

    def rope(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        halves = np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
        a, b = np.split(super().rope(halves, batch), 2, axis=-1)
        return np.stack([a, b], axis=-1).reshape(x.shape)


@plant("port", "qwen2", "rope-backwards", "RoPE: it turns the other way (sign of sin)")
class RopeBackwards(Worker):
    """rotate_half with the other sign."""

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        cos, sin = super().tables()
        return cos, -sin


@plant("port", "llama-tied", "rope-not-on-k", "RoPE: k is not rotated", ranks=2)
class RopeNotOnK(Worker):
    """RoPE is applied to q alone."""

    def rope(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        return x if x.shape[1] == self.kv_heads else super().rope(x, batch)


@plant("port", "llama", "rope-table-short", "RoPE: positions from 8 on are taken for 7 (the table is too short)")
class RopeTableShort(Worker):
    """The table has 8 rows, and the look-up clips."""

    def rope(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        return super().rope(x, replace(batch, positions=np.minimum(batch.positions, 7)))


@plant("port", "qwen2", "positions-from-1", "RoPE: all positions are one too high")
class PositionsFrom1(Scheduler):
    """The first position is 1."""

    def positions(self, span: Span) -> np.ndarray:
        return super().positions(span) + 1


@plant("port", "llama", "rope-layer-3", "RoPE: layer 3 does not rotate")
class RopeLayer3(Worker):
    """Every fourth layer has no RoPE, as in SmolLM3."""

    def rope(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        return x if self.i == 3 else super().rope(x, batch)


# Heads and scores.


@plant("port", "llama", "gqa-tiled", "attention: query head h reads KV head h % KV heads instead of h // group")
class GqaTiled(Worker):
    """tile instead of repeat."""

    def repeat(self, x: np.ndarray) -> np.ndarray:
        return np.tile(x, (1, self.heads // self.kv_heads, 1))


@plant("port", "qwen2", "gqa-first-head", "attention: every query head reads KV head 0")
class GqaFirstHead(Worker):
    """The first KV head is broadcast, as with one KV head."""

    def repeat(self, x: np.ndarray) -> np.ndarray:
        return np.repeat(x[:, :1], self.heads, axis=1)


@plant("port", "llama", "scale-of-hidden", "scores: the scale is of hidden / heads = 12 instead of head_dim = 16")
class ScaleOfHidden(Worker):
    """head_dim of config.json is not read for the scale."""

    def attend(self, q: np.ndarray, batch: Batch) -> np.ndarray:
        self.scale = np.float32((self.config.hidden / self.config.heads) ** -0.5)
        return super().attend(q, batch)


@plant("port", "qwen2", "scale-missing", "scores: they are not scaled")
class ScaleMissing(Worker):
    """No 1 / sqrt(head_dim)."""

    def attend(self, q: np.ndarray, batch: Batch) -> np.ndarray:
        self.scale = np.float32(1)
        return super().attend(q, batch)


@plant("port", "qwen2", "heads-joined", "attention: heads and features are exchanged when joined")
class HeadsJoined(Worker):
    """A transpose too much before o_proj."""

    def join(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1).reshape(len(x), -1)


@plant("port", "qwen2", "q-split-transposed", "q_proj: rows are taken as [head_dim, heads]")
class SplitTransposed(Worker):
    """q is viewed as [head_dim, heads] and transposed."""

    def split(self, qkv: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = super().split(qkv)
        return q.reshape(len(q), -1, self.heads).transpose(0, 2, 1), k, v


# Masks.


@plant("port", "llama", "mask-missing", "mask: there is none in prefill", chunk=16)
class MaskMissing(Worker):
    """is_causal=False."""

    def mask(self, span: Span, keys: int) -> np.ndarray:
        return np.ones((span.count, keys), bool)


@plant("port", "qwen2", "mask-sees-next", "mask: each token sees the one after it", ranks=2)
class MaskSeesNext(Worker):
    """triu with diagonal=2."""

    def mask(self, span: Span, keys: int) -> np.ndarray:
        return np.arange(keys) <= np.arange(span.start, span.length)[:, None] + 1


@plant("port", "qwen2", "window-used", "mask: a sliding window of 6 is applied, though use_sliding_window is false")
class WindowUsed(Worker):
    """sliding_window is read, use_sliding_window is not."""

    def mask(self, span: Span, keys: int) -> np.ndarray:
        rows = np.arange(span.start, span.length)[:, None]
        return super().mask(span, keys) & (np.arange(keys) > rows - (self.config.window or 0))


@plant("port", "llama", "mask-times-inf", "mask: 0 · -inf is NaN; scores are NaN in all layers")
class MaskTimesInf(Worker):
    """scores + (1 - mask) * -inf."""

    def hide(self, scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
        return scores + (1 - seen.astype(np.float32)) * np.float32(-np.inf)


@plant("port", "llama", "empty-slots-seen", "mask: in decode the empty slots of the last block are seen (k = v = 0)")
class EmptySlots(Worker):
    """Decode reads whole blocks."""

    def read(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        length = len(span.table) * BLOCK if span.decodes else span.length
        return self.cache.read(self.i, span.table, length)

    def mask(self, span: Span, keys: int) -> np.ndarray:
        return np.ones((1, keys), bool) if span.decodes else super().mask(span, keys)


# The cache.


@plant("port", "llama", "k-cached-before-rope", "KV cache: k is stored before RoPE")
class KBeforeRope(Worker):
    """The cache gets k as it was projected."""

    def project(self, layer: Layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, self.k, v = super().project(layer, x)
        return q, self.k, v

    def store(self, k: np.ndarray, v: np.ndarray, batch: Batch) -> None:
        super().store(self.k, v, batch)


@plant("port", "qwen2", "k-roped-twice", "KV cache: k is rotated once more when it is stored")
class KTwice(Worker):
    """RoPE before the cache and in it."""

    def store(self, k: np.ndarray, v: np.ndarray, batch: Batch) -> None:
        super().store(self.rope(k, batch), v, batch)


@plant("port", "llama", "kv-exchanged", "KV cache: keys are read as values and values as keys")
class KvExchanged(Worker):
    """v, k = read()."""

    def read(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        k, v = super().read(span)
        return v, k


@plant("port", "qwen2", "cache-is-fp16", "KV cache: it is float16, and the trace says float32")
class CacheIsFp16(Cache):
    """The cache keeps float16, whatever it was asked."""

    def __init__(self, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: str) -> None:
        super().__init__(layers, blocks, kv_heads, head_dim, "float16")


@plant("port", "llama", "cache-shared", "KV cache: layers 1 and 2 share one, layer 1 reads layer 2's keys")
class LayerShared(Cache):
    """Layers 1 and 2 have one cache."""

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        super().write(1 if layer == 2 else layer, slots, k, v)

    def read(self, layer: int, table: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
        return super().read(1 if layer == 2 else layer, table, length)


@plant("port", "llama", "decode-overwrites", "KV cache: decoded tokens are written to the last prompt token's slot")
class DecodeOverwrites(Scheduler):
    """The slot does not move on in decode."""

    def slots(self, span: Span, step: int) -> np.ndarray:
        if not span.decodes:
            return super().slots(span, step)
        at = span.sequence.prompt - 1
        return np.asarray([span.table[at // BLOCK] * BLOCK + at % BLOCK])


@plant(
    "port",
    "llama",
    "blocks-freed-early",
    "KV cache: a sequence's blocks are given out again while it still decodes",
    prompts=(7, 11),
    decode=6,
)
class FreedEarly(Scheduler):
    """Blocks are freed when the prompt is computed."""

    def done(self, batch: Batch, new: dict[int, int]) -> None:
        super().done(batch, new)
        for span in batch.spans:
            if span.length == span.sequence.prompt:
                self.blocks.free.extend(span.table)

    def finish(self, sequence: object) -> None:
        self.running.remove(sequence)  # type: ignore[arg-type]


@plant("port", "llama", "v-not-stored", "KV cache: v is not stored in decode steps (0 is read)")
class VNotStored(Worker):
    """The decode path stores k alone."""

    def store(self, k: np.ndarray, v: np.ndarray, batch: Batch) -> None:
        decodes = np.concatenate([np.full(span.count, span.decodes) for span in batch.spans])
        super().store(k, np.where(decodes[:, None, None], np.float32(0), v), batch)


BUGS = tuple(x for x in list(globals().values()) if isinstance(x, Bug))
