"""The expected answers in the catalogue's names. A bug's own words (`Bug.expected`) were written first."""

from dataclasses import dataclass

QKV, ROPE = ("q_proj", "k_proj", "v_proj"), ("q_rope", "k_rope")
GATE_UP, NORMS = ("gate_proj", "up_proj"), ("input_layernorm", "post_attention_layernorm", "norm")
CACHE = ("scores", "weights", "attention")


@dataclass(frozen=True)
class Expect:
    """One mistake: the names that are right, those that are of its class, and the ops where it is. Names may have *."""

    names: tuple[str, ...]
    places: tuple[str, ...]
    near: tuple[str, ...] = ()


def _one(names: str, places: tuple[str, ...], near: str = "") -> tuple[Expect, ...]:
    return (Expect(tuple(names.split()), places, tuple(near.split())),)


_BIAS, _SWAPPED, _RESTART = ("bias-missing", QKV), ("gate-up-swapped", (*GATE_UP, "act")), ("rope-position", ROPE)
EXPECTED: dict[str, tuple[Expect, ...]] = {
    "k-bias-rank1": _one(*_BIAS),
    "gate-up-rank1": _one(*_SWAPPED, "weight-swapped"),
    "down-slice-rank1": _one("shard-*", ("down_proj",), "weight-swapped"),
    "o-slice-exchanged": _one("shard-*", ("o_proj",), "weight-swapped heads-order"),
    "qkv-cut-naively": _one("qkv-split shard-*", QKV, "weight-swapped"),
    "gate-up-cut-naively": _one("shard-* gate-up-split", GATE_UP, "qkv-split weight-swapped"),
    "heads-joined-inside": _one("heads-order", ("attention",)),
    "vocabulary-exchanged": _one("shard-* vocabulary-*", ("lm_head",), "weight-swapped *-row head-other"),
    "kv-heads-4-ranks": _one("gqa-* kv-heads* shard-*", ("k_proj", "v_proj"), "qkv-split weight-swapped heads-order"),
    "embedding-rows-4-ranks": _one("embed-row", ("embed_tokens",), "shard-*"),
    "mask-from-0": _one("mask-misaligned", ("scores",)),
    "mask-of-rows": _one("mask-misaligned", ("scores",), "mask-missing mask-off-by-one"),
    "positions-restart": _one(*_RESTART),
    "positions-restart-stated": _one(*_RESTART),
    "decode-position+1": _one(*_RESTART),
    "slot-low-from-step-3": _one("kv-stale kv-*", CACHE),
    "block-of-other": _one("kv-stale kv-*", CACHE),
    "padding-counted": _one(*_RESTART),
    "decode-mask-short": _one("mask-off-by-one", CACHE, "kv-stale"),
    "rope-tables-bf16": _one("narrow-arithmetic", ROPE, "dtype-*"),
    "frequencies-bf16": _one("narrow-arithmetic", ROPE, "rope-theta dtype-*"),
    "softmax-fp16": _one("narrow-arithmetic", ("weights",), "dtype-*"),
    "norm-bf16": _one("narrow-arithmetic", NORMS, "dtype-*"),
    "square-overflows": _one("overflow-fp16", NORMS, "narrow-arithmetic dtype-*"),
    "logits-bf16": _one("narrow-arithmetic", ("lm_head",), "dtype-*"),
    "residual-fp16": _one("narrow-arithmetic", ("embed_tokens", "attention_residual", "layer"), "dtype-*"),
    "rope-before-bias": _one("rope-before-bias rope-order bias-after-rope", (*QKV, *ROPE), "bias-missing bias-*"),
    "llama3-factor": _one("rope-theta rope-scaling", ROPE),
    "variance-about-mean": _one("norm-variance norm-mean norm-centred", NORMS, "norm-*mean* norm-centre*"),
    "edge-row-zero": _one("embed-row", ("embed_tokens",)),
    "final-norm-unused": _one("norm-missing norm-unused", ("lm_head", "norm")),
    "v-bias-layer-1": _one(*_BIAS),
    "eps": _one("norm-eps", NORMS),
    "gate-up-layer-2": _one(*_SWAPPED, "weight-swapped"),
    "theta-default": _one("rope-theta", ROPE),
    "v-bias+eps": _one(*_BIAS) + _one("norm-eps", NORMS),
    "theta+gate-up": _one("rope-theta", ROPE) + _one(*_SWAPPED, "weight-swapped"),
    "gate-up-rank1+restart": _one(*_SWAPPED, "weight-swapped") + _one(*_RESTART),
    "q-bias-missing": _one(*_BIAS),
    "biases-missing": _one(*_BIAS),
    "biases-exchanged": _one("weight-swapped bias-swapped", QKV, "bias-*"),
    "qvk-order": _one("qkv-split weight-swapped", QKV),
    "o-transposed": _one("transposed", ("o_proj",)),
    "gate-up-exchanged": _one(*_SWAPPED, "weight-swapped"),
    "gate-up-interleaved": _one("gate-up-split gate-up-interleaved", GATE_UP, "qkv-split shard-*"),
    "norms-exchanged": _one("norm-swapped", NORMS, "weight-swapped"),
    "layer-twice": _one("layer-prefix", (*QKV, *NORMS, *GATE_UP, "o_proj", "down_proj")),
    "layers-sorted-as-text": _one("layer-prefix layer-order", (*QKV, *NORMS, *GATE_UP, "o_proj", "down_proj")),
    "last-layer-skipped": _one("layer-missing layer-skipped layer-*", ("norm",)),
    "head-tied": _one("tie-wrong", ("lm_head",)),
    "down-bf16": _one("dtype-narrow", ("down_proj",), "dtype-* narrow-arithmetic"),
    "weights-truncated": _one("dtype-trunc", (*QKV, *GATE_UP, "embed_tokens"), "dtype-*"),
    "eps-outside": _one("norm-eps-outside", NORMS, "norm-eps"),
    "norm-plus-1": _one("norm-offset", NORMS),
    "layer-norm": _one("norm-layer norm-mean norm-centred layer-norm", NORMS, "norm-*mean* norm-centre* norm-variance"),
    "final-norm-weight": _one("norm-weight", ("norm",)),
    "gelu": _one("activation", ("act",)),
    "sigmoid": _one("activation", ("act",), "gate"),
    "residual-of-norm": _one("residual-missing residual-*", ("layer",)),
    "residual-of-input": _one("residual-missing residual-*", ("layer",)),
    "embedding-scaled": _one("embed-scale", ("embed_tokens",)),
    "embedding-unmasked": _one("embed-row embed-*", ("embed_tokens",), "reduce-*"),
    "row-before": _one("logits-row head-row *-row", ("lm_head",)),
    "row-of-other": _one("logits-row head-row *-row", ("lm_head",)),
    "argmax-of-shard": _one("greedy", ()),
    "reduce-missing-down": _one("reduce-missing", ("down_proj",)),
    "reduce-missing-o": _one("reduce-missing", ("o_proj",)),
    "reduce-mean": _one("reduce-*", ("embed_tokens", "o_proj", "down_proj"), "embed-scale"),
    "residual-reduced": _one("residual-twice reduce-*", ("o_proj", "attention_residual"), "residual-*"),
    "theta-10000": _one("rope-theta", ROPE),
    "llama3-ignored": _one("rope-theta rope-scaling", ROPE),
    "rope-interleaved": _one("rope-pairing", ROPE),
    "rope-backwards": _one("rope-sign", ROPE),
    "rope-not-on-k": _one("rope-missing-k", ROPE),
    "rope-table-short": _one("rope-position", ROPE),
    "positions-from-1": _one("rope-position", ROPE),
    "rope-layer-3": _one("rope-missing-k rope-missing*", ROPE),
    "gqa-tiled": _one("gqa-tile", CACHE),
    "gqa-first-head": _one("gqa-*", CACHE),
    "scale-of-hidden": _one("scale-wrong", ("scores",)),
    "scale-missing": _one("scale-missing", ("scores",)),
    "heads-joined": _one("heads-order", ("attention",)),
    "q-split-transposed": _one("heads-order heads-*", ("q_proj",), "qkv-split gguf-permute"),
    "mask-missing": _one("mask-missing", ("scores",)),
    "mask-sees-next": _one("mask-off-by-one", ("scores",)),
    "window-used": _one("mask-window", ("scores",)),
    "mask-times-inf": _one("mask-nan", ("scores",)),
    "empty-slots-seen": _one("mask-empty kv-empty mask-*", CACHE, "kv-*"),
    "k-cached-before-rope": _one("kv-stale rope-missing-k kv-*", (*CACHE, *ROPE)),
    "k-roped-twice": _one("rope-twice", (*CACHE, *ROPE), "kv-*"),
    "kv-exchanged": _one("kv-stale kv-*", CACHE),
    "cache-is-fp16": _one("narrow-arithmetic kv-dtype dtype-*", CACHE, "kv-*"),
    "cache-shared": _one("kv-stale kv-*", CACHE),
    "decode-overwrites": _one("kv-stale kv-*", CACHE),
    "blocks-freed-early": _one("kv-stale kv-*", CACHE),
    "v-not-stored": _one("kv-stale kv-*", CACHE),
}
