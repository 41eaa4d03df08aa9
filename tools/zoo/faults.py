"""Transformers models broken on purpose, one function a bug. Nothing here comes from karat.check, so the diagnosis must
find its names in numbers of other code.

A fault gets a subject and a stack that undoes what it patches outside the model; it returns False where the model
cannot have the bug. Models are thrown away afterwards.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from tools.zoo import caches
from tools.zoo import faults_experts as experts
from tools.zoo import faults_families as families
from tools.zoo import faults_parts as parts
from tools.zoo import faults_recurrence as recurrence
from tools.zoo import faults_rows as rows
from tools.zoo.attention import patch_attention
from tools.zoo.fault import Fault, Row, layers
from tools.zoo.faults_bytes import byte_order, dtype_misread, dtype_trunc, narrow, overflow
from tools.zoo.faults_linear import (
    activation,
    bias_missing,
    bias_times_tp,
    gate_up_swapped,
    gguf_permute,
    head_other,
    layer_prefix,
    qkv_split,
    reduce_mean,
    reduce_missing,
    shard_dim,
    tie_ignored,
    tie_wrong,
    transposed,
    weight_missing,
)
from tools.zoo.faults_norm import (
    embed_row,
    embed_scale,
    logit_scale,
    norm_eps,
    norm_eps_outside,
    norm_mean,
    norm_missing,
    norm_offset,
    norm_swapped,
    qk_norm_heads,
    qk_norm_missing,
    residual,
    softcap,
)
from tools.zoo.faults_quant import MINIMA, NIBBLES, SCALES, ZERO, quant
from tools.zoo.faults_rope import (
    rope_before_bias,
    rope_extra,
    rope_missing,
    rope_pairing,
    rope_partial,
    rope_position,
    rope_theta,
    rope_twice,
)
from tools.zoo.models import Subject


def _attention(**options: Any) -> Fault:
    return lambda subject, stack: patch_attention(subject, stack, **options)


def _one_of(*faults: Fault) -> Fault:
    return lambda subject, stack: subject.rng.choice(faults)(subject, stack)


def scale(value: Callable[[float], float]) -> Fault:
    def fault(subject: Subject, stack: ExitStack) -> None:
        for layer in layers(subject):
            layer.self_attn.scaling = value(layer.self_attn.scaling)

    return fault


_WHOLE = {"steps": "whole"}
_NO_WINDOW = {"changes": {"sliding_window": None, "use_sliding_window": False}}
_DECODE = {"steps": "decode", **_NO_WINDOW}
_WINDOW = {"family": "mistral", "changes": {"sliding_window": 7}, "steps": "whole"}
_BIASED = {"family": "llama", "changes": {"attention_bias": True, "mlp_bias": True}}
_SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48}
_GROUPED = {"changes": {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 72}}
_SHARED: dict[str, Any] = {
    "changes": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": 128,
    }
}
_MIXTURE = {"family": "qwen3_moe"}
_HYBRID: dict[str, Any] = {"family": "qwen3_5_text"}
_SHORT: dict[str, Any] = {"family": "lfm2"}
_MIXED = {"steps": "mixed", **_NO_WINDOW}

ROWS: tuple[Row, ...] = (
    Row("mask-nan", _attention(mask="nan"), {}),
    Row(
        "mask-off-by-one",
        _one_of(
            _attention(diagonal=-1),
            _attention(diagonal=-1, hidden="min"),
            _attention(diagonal=-1, hidden="alone"),
            _attention(diagonal=1),
        ),
        {},
    ),
    Row("mask-missing", _attention(mask="none"), _WHOLE),
    Row("mask-misaligned", _attention(mask="top-left"), {"steps": "chunks", **_NO_WINDOW}),
    Row("mask-window", _one_of(_attention(window=None), _attention(window=6), _attention(window=8)), _WINDOW),
    Row("scale-missing", scale(lambda s: 1.0), {}),
    Row("scale-twice", scale(lambda s: s * s), {}),
    Row("softmax-axis", _one_of(_attention(axis=-2), _attention(axis=1)), {}),
    Row("gqa-tile", _attention(tile=True), _GROUPED),
    Row("mask-empty", _attention(blocks=4), _DECODE),
    Row("kv-stale", caches.from_the_runner, _DECODE, caches=caches.CACHE_FAULTS),
    Row("kv-stale", caches.k_of_cache(turned=False), _DECODE, "before RoPE"),
    Row("kv-dtype", caches.from_the_runner, _DECODE, caches=caches.TYPES),
    Row("heads-order", _attention(order=1), {}),
    Row("rope-pairing", rope_pairing, {}),
    Row("rope-theta", rope_theta, {}),
    Row("rope-position", rope_position, {}),
    Row("rope-missing-k", rope_missing, {}),
    Row("rope-before-bias", rope_before_bias, {"family": "qwen2"}),
    Row("rope-on-v", _attention(rope_v=True), _WHOLE),
    Row("rope-twice", rope_twice, {}),
    Row("rope-twice", caches.k_of_cache(turned=True), _DECODE, "in the cache"),
    Row("rope-partial", rope_partial, {}),
    Row("qk-norm-missing", qk_norm_missing, {"family": "qwen3"}),
    Row("qk-norm-heads", qk_norm_heads, {"family": "qwen3"}),
    Row("qk-norm-heads", qk_norm_heads, {"family": "olmo2"}, "of all heads"),
    Row("rope-extra", rope_extra, {"family": "smollm3"}),
    Row("bias-missing", bias_missing, {}),
    Row("bias-times-tp", bias_times_tp, _BIASED),
    Row("shard-dim", shard_dim, {"changes": {"intermediate_size": 64}}),
    Row("reduce-missing", reduce_missing, {"changes": {"intermediate_size": 64}}),
    Row("reduce-mean", reduce_mean, {"changes": {"intermediate_size": 64}}),
    Row("weight-missing", weight_missing, {}),
    Row("qkv-split", qkv_split, {}),
    Row("gate-up-swapped", gate_up_swapped, {}),
    Row("activation", activation, {}),
    Row("transposed", transposed, {}),
    Row("tie-ignored", tie_ignored, {"changes": {"tie_word_embeddings": True, **_SMALL}, "lengths": (90, 130)}),
    Row("head-other", head_other, {"changes": {"tie_word_embeddings": False, **_SMALL}, "lengths": (90, 130)}),
    Row("tie-wrong", tie_wrong, {"changes": {"tie_word_embeddings": False}}),
    Row("norm-eps", norm_eps, {}),
    Row("norm-eps-outside", norm_eps_outside, {"changes": {"rms_norm_eps": 1e-3}}),
    Row("norm-offset", norm_offset, {}),
    Row("norm-mean", norm_mean, {}),
    Row("norm-swapped", norm_swapped, {}),
    Row("norm-missing", norm_missing, {}),
    Row(
        "residual-missing",
        residual(
            "attention-missing",
            "attention-after-norm",
            "mlp-missing",
            "mlp-from-input",
            "mlp-after-norm",
            "mlp-reads-input",
        ),
        {},
    ),
    Row("residual-twice", residual("attention-twice", "attention-output-twice", "mlp-twice"), {}),
    Row("embed-scale", embed_scale, {}),
    Row("embed-row", embed_row, {}),
    Row("layer-prefix", layer_prefix, {"changes": {"num_hidden_layers": 3}}),
    Row("dtype-trunc", dtype_trunc, {"stored": ("F32",)}),
    Row("narrow-arithmetic", narrow, {}),
    Row("dtype-misread", dtype_misread, {"stored": "F16"}),
    Row("byte-order", byte_order, {"stored": "BF16"}),
    Row("overflow-fp16", overflow, {"dtype": torch.float16, "gain": 400.0}),
    Row("gguf-permute", gguf_permute, {}),
    Row("quant-nibbles", quant(NIBBLES), {"stored": tuple(NIBBLES)}),
    Row("quant-zero", quant(ZERO), {"stored": tuple(ZERO)}),
    Row("quant-min-sign", quant(MINIMA), {"stored": tuple(MINIMA)}),
    Row("quant-scale", quant(SCALES), {"stored": tuple(SCALES)}),
    Row("softcap", softcap, {}),
    Row("logit-scale", logit_scale, {}),
    Row("logits-row", rows.logits_row, _WHOLE),
    Row("layer-skipped", rows.layer_skipped, {}),
    Row("weight-swapped", rows.biases_exchanged, {"family": "qwen2"}, "of biases"),
    Row("gate-up-split", rows.rows_in_turns, {}, "in turns"),
    Row("heads-order", rows.heads_of_rows, {}, "of rows"),
    Row("embed-row", rows.embedding_unmasked, _SHARED, "of other ranks"),
    Row("rope-position", rows.rope_table_short, {}, "behind a table"),
    Row("bias-missing", parts.bias_missing, _SHARED, "on a rank"),
    Row("gate-up-swapped", parts.gate_up_swapped, _SHARED, "on a rank"),
    Row("transposed", parts.transposed, _SHARED, "on ranks"),
    Row("layer-prefix", parts.layer_prefix, _SHARED, "on a rank"),
    Row("shard-order", parts.shard_order, _SHARED),
    Row("qkv-split", parts.qkv_split, _SHARED, "over ranks"),
    Row("gate-up-split", parts.gate_up_split, _SHARED),
    Row("heads-order", parts.heads_order, _SHARED, "in each rank"),
    Row("gqa-tile", parts.gqa, {"changes": {**_SHARED["changes"], "num_key_value_heads": 2}}, "by rank"),
    Row("mask-nan", parts.mask_in_later_chunks(mask="nan"), _MIXED, "in later chunks"),
    Row("mask-misaligned", parts.mask_in_later_chunks(mask="top-left"), _MIXED, "in later chunks"),
    Row("rope-position", parts.rope_position, _MIXED, "in some steps"),
)
# Of families with experts, on full traces alone: their results between layers are those that tell bugs apart.
MIXTURES: tuple[Row, ...] = (
    Row("expert-choice", experts.routed(lambda ids, by, count: ((ids + 1) % count, by)), _MIXTURE),
    Row("expert-weights", experts.sums_otherwise, _MIXTURE),
    Row("expert-matrices", experts.turned, _MIXTURE),
    Row("gate-up-swapped", experts.exchanged, _MIXTURE, "of experts"),
    Row("gate-up-split", experts.in_turns, _MIXTURE, "of experts"),
    Row(
        "sinks",
        _one_of(
            experts.sinks(lambda sinks, scale: torch.full_like(sinks, -1e30)),
            experts.sinks(lambda sinks, scale: sinks * scale),
        ),
        {"family": "gpt_oss"},
    ),
    Row("clamp", experts.clamp, {"family": "gpt_oss"}),
    Row("expert-weights", experts.scores_of_all, {"family": "gpt_oss"}, "of all"),
    Row("expert-weights", experts.biased_weights, {"family": "lfm2_moe"}, "biased"),
    Row("shared-expert", experts.shared_left_out, {"family": "qwen2_moe"}),
    Row("bias-missing", experts.router_bias, {"family": "gpt_oss"}, "of routers"),
)
_GEMMA2: dict[str, Any] = {"family": "gemma2"}
_GEMMA3: dict[str, Any] = {"family": "gemma3_text"}
_GEMMA4: dict[str, Any] = {"family": "gemma4_text"}
_MUSE: dict[str, Any] = {"family": "muse_glimmer_text"}
_NARROW: dict[str, Any] = {"sliding_window": 7}
_IN_TWO: dict[str, Any] = {**_NARROW, "num_hidden_layers": 2, "sliding_window_pattern": 2}
# Of families that compute what few others do, on full traces alone.
OF_FAMILIES: tuple[Row, ...] = (
    Row("norm-offset", families.norm_offset, _GEMMA2, "of Gemma 2"),
    Row("norm-offset", families.norm_offset, _GEMMA3, "of Gemma 3"),
    Row("softcap", families.cap_of_logits, {**_GEMMA3, "changes": {"final_logit_softcapping": 4.0}}, "of logits"),
    Row("softcap", families.cap_of_scores, {**_GEMMA2, "changes": {"attn_logit_softcapping": 12.0}}, "of scores"),
    Row("mask-window", families.window, {**_GEMMA3, "changes": _IN_TWO, "steps": "whole"}, "by one"),
    Row("rope-theta", families.rope_of_the_other_kind, {**_GEMMA3, "changes": _IN_TWO}, "behind a window"),
    Row("activation", families.activation, _GEMMA2, "of Gemma"),
    Row("multiplier", families.embedding_unscaled, _GEMMA3, "of Gemma's embedding"),
    Row("multiplier", families.layer_unscaled, _GEMMA4, "of a layer of Gemma 4"),
    Row("v-norm", families.v_of_normed_k, _GEMMA4, "of K after its norm"),
    Row("rope-partial", families.proportional_as_partial, _GEMMA4, "where it is proportional"),
    Row("multiplier", families.multiplier, {"family": "granite"}, "of Granite"),
    Row("multiplier", families.multiplier_of_muse, _MUSE, "of Muse Glimmer"),
    Row("qk-norm-heads", families.unit_norms_together, _MUSE, "without weights"),
    Row("qk-norm-missing", families.unit_norms_missing, _MUSE, "without weights"),
    Row("norm-missing", families.embedding_unnormed, _MUSE, "of Muse Glimmer's embedding"),
    Row("norm-offset", families.norm_offset, _MUSE, "of Muse Glimmer"),
    Row("softcap", families.cap_of_logits, _MUSE, "of Muse Glimmer"),
    Row(
        "mask-window", families.window, {**_MUSE, "changes": {"sliding_window": 7}, "steps": "whole"}, "of Muse Glimmer"
    ),
    Row("rope-extra", families.rope_where_none_is, _MUSE, "of Muse Glimmer"),
)
_GROUPED_KEYS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
# Of families with recurrent layers, on full traces alone too.
RECURRENT: tuple[Row, ...] = (
    Row("key-heads", recurrence.rule(tiled=True), {"family": "qwen3_5_text", "changes": _GROUPED_KEYS}),
    Row("conv-taps", recurrence.conv, _HYBRID),
    Row("conv-activation", recurrence.no_activation, _HYBRID),
    Row(
        "decay-order",
        _one_of(recurrence.rule(update=recurrence.decay_last), recurrence.rule(update=recurrence.undecayed)),
        _HYBRID,
    ),
    Row("decay", recurrence.decay, _HYBRID),
    Row(
        "beta",
        _one_of(recurrence.rule(update=recurrence.no_beta), recurrence.rule(update=recurrence.beta_of_v)),
        _HYBRID,
    ),
    Row("delta-rule", recurrence.rule(update=recurrence.only_added), _HYBRID),
    Row("l2-norm", recurrence.lengths, {**_HYBRID, "small_keys": True}),
    Row("l2-norm", recurrence.rule(scaled=False), _HYBRID, "of q"),
    Row("state-lost", recurrence.states, {**_HYBRID, "steps": "mixed"}, cached=True),
    Row("state-lost", recurrence.rule(restarts=64), {**_HYBRID, "steps": "whole", "lengths": (80, 130)}, "in chunks"),
    Row("gate-halves", recurrence.gate_halves, _HYBRID),
    Row("norm-offset", recurrence.norm_offset, _HYBRID, "of hybrids"),
    Row("gate-order", recurrence.gate_first, _HYBRID),
    Row("conv-taps", recurrence.conv, _SHORT, "of short convolutions"),
    Row("conv-activation", recurrence.activation_added, _SHORT, "of short convolutions"),
    Row("conv-gates", recurrence.conv_gates, _SHORT),
    Row("bias-missing", recurrence.bias_missing, {**_SHORT, "changes": {"conv_bias": True}}, "of short convolutions"),
    Row("state-lost", recurrence.states, {**_SHORT, "steps": "mixed"}, "of short convolutions", cached=True),
)
