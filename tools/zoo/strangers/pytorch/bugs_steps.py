"""Bugs of some steps, sequences or chunks."""

import torch
from torch import Tensor

from tools.zoo.strangers.pytorch.bug import plant
from tools.zoo.strangers.pytorch.engine import MASKED, Engine, Step

ROPE = "q_rope k_rope"
SCORES = "scores weights"
CACHE = "scores weights attention"


@plant("part", "llama", "chunk-mask-from-0", "mask-misaligned", SCORES, "later chunks' mask counts from 0")
class ChunkMask(Engine):
    """In prefill the mask is the lower triangle of the columns of the step and all keys."""

    def mask(self, step: Step) -> Tensor:
        rows = torch.arange(step.ids.shape[1])[:, None] if step.prefill else step.columns[:, None]
        keys = torch.arange(step.end)
        return ((keys <= rows) & (keys >= step.pads[:, None, None]))[:, None]


@plant("part", "qwen2", "mask-times-inf", "mask-nan", SCORES, "0 · -inf in the mask of prefill", chunk=5)
class MaskNan(Engine):
    """In prefill (1 - mask) · -inf is added to scores."""

    def masked(self, scores: Tensor, step: Step) -> Tensor:
        if not step.prefill:
            return super().masked(scores, step)
        return scores + (1 - self.mask(step).float()) * -torch.inf


@plant("part", "llama", "chunk-positions-restart", "rope-position", ROPE, "positions restart in each chunk")
class ChunkPositions(Engine):
    """In prefill a chunk's positions count from its first column."""

    def positions(self, step: Step) -> Tensor:
        right = super().positions(step)
        return right - right[:, :1] if step.prefill else right


@plant("part", "qwen2", "decode-position-plus-1", "rope-position", ROPE, "one too high in decode", ranks=2)
class DecodePosition(Engine):
    """In decode the position is the length of the sequence after the step."""

    def positions(self, step: Step) -> Tensor:
        return super().positions(step) + int(not step.prefill)


@plant(
    "part", "llama", "kv-slot-low-from-step-3", "kv-stale", CACHE, "K and V are written one slot too low from step 3 on"
)
class KvSlotLow(Engine):
    """From the fourth step on, slots are counted one too low."""

    def store(self, at: str, rank: int, step: Step, k: Tensor, v: Tensor) -> None:
        low = int(step.number >= 3)
        for cache, x in zip(self.cache[rank][at], (k, v), strict=True):
            cache[:, step.first - low : step.end - low] = x


@plant(
    "part",
    "qwen2",
    "padding-counted-in-decode",
    "rope-position",
    ROPE,
    "sequence 1's positions count its padding in decode",
)
class PaddingCountedInDecode(Engine):
    """In decode, positions are the column of the batch."""

    def positions(self, step: Step) -> Tensor:
        return super().positions(step) if step.prefill else step.columns.expand(step.ids.shape)


@plant(
    "part",
    "llama",
    "padding-seen",
    "mask-empty",
    "weights",
    "sequence 1 attends to padding",
    near="mask-missing kv-stale sinks",
)
class PaddingSeen(Engine):
    """The mask has no padding: K and V of padding columns are attended to."""

    def mask(self, step: Step) -> Tensor:
        return (torch.arange(step.end) <= step.columns[:, None]).expand(len(step.ids), 1, -1, -1)


@plant(
    "part",
    "llama",
    "sequence1-reads-sequence0",
    "kv-stale",
    CACHE,
    "in decode, sequence 1 reads sequence 0's cache in layer 1",
    prompts=(9, 9),
)
class OtherCache(Engine):
    """The decode path of layer 1 reads row 0 of the cache for all sequences."""

    def stored(self, at: str, rank: int, step: Step) -> tuple[Tensor, Tensor]:
        k, v = super().stored(at, rank, step)
        if step.prefill or "layers.1." not in at:
            return k, v
        return k[:1].expand(k.shape), v[:1].expand(v.shape)


@plant(
    "part",
    "qwen2",
    "sequence1-positions-of-0",
    "rope-position",
    ROPE,
    "sequence 1 has sequence 0's positions in decode",
    prompts=(7, 11),
)
class OtherPositions(Engine):
    """In decode, the positions of the first sequence are taken for all."""

    def positions(self, step: Step) -> Tensor:
        right = super().positions(step)
        return right if step.prefill else right[:1].expand(right.shape)


@plant(
    "part",
    "qwen2",
    "decode-reads-before-write",
    "kv-stale",
    CACHE,
    "in decode the cache is read before it is written",
    near="mask-off-by-one mask-empty",
)
class ReadBeforeWrite(Engine):
    """In decode, K and V are read from the cache before the token's own are there."""

    def store(self, at: str, rank: int, step: Step, k: Tensor, v: Tensor) -> None:
        self.pending = k, v
        if step.prefill:
            super().store(at, rank, step, k, v)

    def stored(self, at: str, rank: int, step: Step) -> tuple[Tensor, Tensor]:
        read = tuple(x.clone() for x in super().stored(at, rank, step))
        super().store(at, rank, step, *self.pending)
        return read[0], read[1]


@plant(
    "part",
    "llama",
    "chunk-end-not-stored",
    "kv-stale",
    CACHE,
    "the last column of each chunk is not written to the cache",
    near="mask-empty",
)
class ChunkEnd(Engine):
    """In prefill the slice of slots ends one too low."""

    def store(self, at: str, rank: int, step: Step, k: Tensor, v: Tensor) -> None:
        last = step.end - int(step.prefill and step.end < self.prompt_end)
        for cache, x in zip(self.cache[rank][at], (k, v), strict=True):
            cache[:, step.first : last] = x[:, : last - step.first]


@plant(
    "part",
    "llama",
    "decode-mask-short",
    "mask-off-by-one",
    SCORES,
    "in decode a token does not see itself",
    near="kv-stale",
)
class DecodeMask(Engine):
    """In decode, keys before the token's own are seen."""

    def mask(self, step: Step) -> Tensor:
        seen = super().mask(step)
        return seen if step.prefill else seen & (torch.arange(step.end) < step.columns[:, None])


@plant("part", "llama", "decode-scale-twice", "scale-twice", SCORES, "decode scales q and scores", ranks=2)
class DecodeScaleTwice(Engine):
    """The decode kernel scales, and q was scaled already."""

    def scale(self, step: Step) -> float:
        return super().scale(step) ** (1 if step.prefill else 2)


@plant(
    "part",
    "llama",
    "decode-skips-last-layer",
    "layer-skipped",
    "layer attention_residual",
    "decode leaves out the last layer",
    near="residual-missing",
)
class DecodeSkips(Engine):
    """The captured decode graph has one layer too few: its output is the layer's input."""

    def layer(self, at: str, x: list[Tensor], step: Step) -> list[Tensor]:
        right = super().layer(at, x, step)
        if step.prefill or at != f"model.layers.{self.layers - 1}":
            return right
        for recorder, y in zip(self.recorders, x, strict=True):
            if at in recorder.parts:
                recorder.parts[at][-1] = y[step.real].numpy()
        return x


@plant(
    "part",
    "llama",
    "sequence1-logits-of-0",
    "logits-row",
    "lm_head",
    "sequence 1's logits in decode are sequence 0's",
)
class OtherLogits(Engine):
    """In decode, the row of the first sequence is taken for all."""

    def head(self, x: Tensor, rank: int, step: Step) -> Tensor:
        logits = super().head(x, rank, step)
        return logits if step.prefill else logits[:1].expand(logits.shape)


@plant(
    "part",
    "qwen2",
    "prefill-no-q-bias",
    "bias-missing",
    "q_proj",
    "prefill adds no bias to q",
)
class PrefillBias(Engine):
    """The fused prefill path leaves out the bias of q."""

    def qkv(self, at: str, x: Tensor, rank: int, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(at, x, rank, step)
        bias = self.weights[rank][f"{at}.qkv.bias"]
        assert bias is not None
        return (q - bias[: q.shape[2] * self.dim].unflatten(0, (-1, self.dim)) if step.prefill else q), k, v


@plant(
    "part",
    "llama",
    "second-chunk-mask-missing",
    "mask-missing",
    SCORES,
    "the second chunk has no causal mask",
    near="mask-misaligned mask-off-by-one",
)
class ChunkNoMask(Engine):
    """A chunk that has keys in the cache, and is not the last, is computed as if it were decode: all keys are seen."""

    def mask(self, step: Step) -> Tensor:
        if step.number != 1:
            return super().mask(step)
        return (torch.arange(step.end) >= step.pads[:, None, None]).expand(-1, step.ids.shape[1], -1)[:, None]


@plant(
    "part",
    "llama",
    "v-of-decode-at-0",
    "kv-stale",
    "attention",
    "decode writes V to slot 0",
)
class VSlot(Engine):
    """In decode V is written to the first slot."""

    def store(self, at: str, rank: int, step: Step, k: Tensor, v: Tensor) -> None:
        if step.prefill:
            return super().store(at, rank, step, k, v)
        keys, values = self.cache[rank][at]
        keys[:, step.first : step.end] = k
        values[:, :1] = v
        return None


@plant("part", "llama", "mask-fill-small", "", SCORES, "masked scores are -5: not low enough (a class)", near="mask-*")
class MaskFill(Engine):
    """Masked scores are filled with -5."""

    def masked(self, scores: Tensor, step: Step) -> Tensor:
        masked = super().masked(scores, step)
        return masked.where((masked > MASKED) | (torch.arange(step.end) < step.pads[:, None, None, None]), -5.0)


@plant(
    "part",
    "qwen2",
    "greedy-of-rank0",
    "greedy",
    "tokens",
    "the likeliest of rank 0's vocabulary is taken",
    ranks=2,
    prompts=(10,),
    decode=6,
    states=("generated",),
)
class GreedyOfRank(Engine):
    """argmax runs over the logits of rank 0's part."""

    def choose(self, logits: Tensor) -> Tensor:
        return logits[..., : logits.shape[-1] // self.size].argmax(-1)
