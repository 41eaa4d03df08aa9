"""GGUF metadata as the config.json that the same model has in a Hugging Face folder.

docs/gguf.md lists the facts that GGUF does not carry, and the assumption made for each.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from karat.checkpoint import neutral
from karat.checkpoint.gguf.form import GgufForm, stated_window
from karat.checkpoint.gguf.layers import Layers
from karat.checkpoint.gguf.rope import read_long_rope, read_rope_factors, read_rope_scaling, rope_remarks
from karat.checkpoint.gguf.sampling import PREFIX as SAMPLING
from karat.checkpoint.gguf.values import NO_TOKEN, GgufArray, Metadata, Value
from karat.checkpoint.unsupported import told
from karat.checkpoint.weights import Weight, remarks_on
from karat.checkpoint.wording import kind_of, listed, shown
from karat.errors import ConfigError, UsageError

MAX_HEAD_DIM = 1 << 16
WINDOW_THETA = "rope.freq_base_swa"
_TOLERANCE = 1e-6  # relative; a file holds float32
# Keys of an architecture that are read, or that cannot change the result.
_READ = frozenset(
    """
    attention.head_count attention.head_count_kv attention.key_length attention.layer_norm_rms_epsilon
    attention.value_length block_count context_length embedding_length feed_forward_length nextn_predict_layers
    rope.dimension_count rope.freq_base rope.scale_linear rope.scaling.alpha rope.scaling.attn_factor
    rope.scaling.factor rope.scaling.original_context_length rope.scaling.type rope.scaling.yarn_attn_factor
    rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor
    rope.scaling.yarn_log_multiplier vocab_size rope.scaling.finetuned attention.sliding_window attention.scale
    attention.layer_norm_epsilon
    """.split()
)
# Keys that change nothing while they have one of these values: the format's defaults, and what means the same.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (False,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "router_logit_softcapping": (0,),
    "tensor_data_layout": ("reference", "Meta AI original pth"),
    "use_parallel_residual": (False,),
}
Forms = Mapping[str, GgufForm[Any]]  # by model_type


# Keys outside of an architecture that a user may state: texts, tokens with a role, and default sampling.
_OF_TEXTS = frozenset(
    """
    general.architecture tokenizer.chat_template tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token
    tokenizer.ggml.add_space_prefix tokenizer.ggml.bos_token_id tokenizer.ggml.eom_token_id
    tokenizer.ggml.eos_token_id tokenizer.ggml.eot_token_id tokenizer.ggml.model tokenizer.ggml.padding_token_id
    tokenizer.ggml.pre tokenizer.ggml.unknown_token_id
    """.split()
)


def override(metadata: Metadata, values: Mapping[str, object]) -> tuple[Metadata, list[str]]:
    """The metadata with the user's values for keys of GGUF, and these keys; other keys are config.json's.

    Raises UsageError for a key of GGUF that Karat does not read, and for a value of another type than the file's.
    """
    arch = metadata.values.get("general.architecture")
    stated: dict[str, Value] = {}
    taken = []
    for key, value in values.items():
        if not key.startswith(("general.", "tokenizer.", "split.", f"{arch}.")):
            continue
        name = key.removeprefix(f"{arch}.")
        is_read = name in _READ | _NEUTRAL.keys() if name != key else key in _OF_TEXTS or key.startswith(SAMPLING)
        if value is None and key in metadata:
            taken.append(key)
        elif not is_read:
            raise UsageError(f"override {key}={shown(value)}: Karat reads no such key of a GGUF file; leave it out")
        else:
            stated[key] = _typed(key, value, metadata.values.get(key))
    return metadata.with_values(stated).without(taken), [*stated, *taken]


def _typed(key: str, value: object, before: Value | None) -> Value:
    if isinstance(before, GgufArray) or not isinstance(value, bool | int | float | str):
        raise UsageError(f"override {key}={shown(value)}: expected a truth value, a number or a text, as the file has")
    if isinstance(before, float) and type(value) is int:
        return float(value)
    if before is not None and type(before) is not type(value):
        raise UsageError(
            f"override {key}={shown(value)}: expected {kind_of(type(before))}, as the file has it: {shown(before)}"
        )
    return value


def read_model_type(metadata: Metadata, forms: Forms) -> str:
    """The model_type of the file's family. Raises ConfigError for an unknown architecture, and for no model."""
    kind = metadata.get(str, "general.type", "model")
    if kind != "model":
        raise ConfigError(f"general.type={shown(kind)}: expected a model, not an adapter or a part of one")
    name = metadata.get(str, "general.architecture")
    for model_type, form in forms.items():
        if form.architecture == name and form.claims(metadata):
            return model_type
    there_are = ", ".join(sorted({form.architecture for form in forms.values()}))
    raise ConfigError(f"general.architecture={shown(name)} is not supported{told(name)}; Karat has {there_are}")


def known_keys(arch: str) -> list[str]:
    """The keys of an architecture that Karat reads, or whose value it compares with the format's default."""
    return [f"{arch}.{key}" for key in sorted(_READ | _NEUTRAL.keys())]


def read_config(
    metadata: Metadata,
    model_type: str,
    form: GgufForm[Any],
    layers: Layers,
    weights: Mapping[str, Weight],
    rope_factors: Weight | None,
    long_rope: Mapping[str, Weight],
) -> dict[str, Any]:
    """The config.json of the model with this metadata, these layers and weights (by their Hugging Face names).

    The size of the vocabulary, biases and a tied head are read from the tensors, as the metadata do not state them.
    Raises ConfigError for contradictory, unknown or unsupported values, CheckpointError for missing ones.
    """
    arch, num_layers = form.architecture, layers.count
    _check_keys(metadata, arch, _own_keys(form))
    hidden = metadata.get(int, f"{arch}.embedding_length")
    if not 1 <= num_layers <= len(weights):  # before memory is taken for each layer
        raise ConfigError(
            f"{arch}.block_count={num_layers}, and there are {len(weights)} tensors; expected some for each"
        )
    num_heads = metadata.get(int, f"{arch}.attention.head_count")
    num_kv_heads = metadata.get(int, f"{arch}.attention.head_count_kv", num_heads)
    head_dim = _head_dim(metadata, arch, hidden, num_heads, turns_part=form.turns_part)
    if "attention.scale" not in form.numbers:
        _check_scale(metadata, arch, head_dim)
    theta = _positive(metadata, f"{arch}.rope.freq_base", 10000.0)
    scaling = read_rope_scaling(metadata, arch, is_long=bool(long_rope))
    if scaling and scaling["rope_type"] == "yarn" and not form.yarn_truncates:
        scaling["truncate"] = False
    if rope_factors is not None:
        if head_dim > MAX_HEAD_DIM:
            raise ConfigError(f"a head of {head_dim} values; expected at most {MAX_HEAD_DIM}")
        if rope_factors.shape != (head_dim // 2,):
            raise ConfigError(
                f"rope_freqs.weight has the shape {list(rope_factors.shape)}; expected {head_dim // 2} factors"
            )
        values = rope_factors.to_array(np.dtype(np.float32)).astype(np.float32)
        by_factors = read_rope_factors(values, theta, head_dim, may_turn_part=form.is_proportional)
        if by_factors and scaling:
            raise ConfigError(f"{arch}.rope.scaling and rope_freqs.weight both scale RoPE; expected one of them")
        scaling = by_factors or scaling
    if (context_len := metadata.get(int, f"{arch}.context_length")) < 1:
        raise ConfigError(f"{arch}.context_length={context_len}: expected a number above 0")
    if long_rope:
        scaling = read_long_rope(metadata, arch, long_rope, context_len)
    inner = metadata.optional(int, f"{arch}.expert_feed_forward_length")  # of files with experts in all layers
    config: dict[str, Any] = {
        **form.constants,
        "model_type": model_type,
        "vocab_size": _vocab_size(metadata, arch, weights),
        "hidden_size": hidden,
        "intermediate_size": metadata.get(int, f"{arch}.feed_forward_length", inner),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _positive(metadata, f"{arch}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": context_len,
        **_ropes(metadata, form, theta, scaling),
        "tie_word_embeddings": "lm_head.weight" not in weights,
    }
    if (window := stated_window(metadata, arch)) and not form.has_window:
        raise ConfigError(f"{arch}.attention.sliding_window={window}: Karat knows no model of this kind with a window")
    for key, name in form.numbers.items():
        if number := metadata.get(float, f"{arch}.{key}", 0.0):
            config[name] = number
    for key, name in form.counts.items():
        if count := metadata.get(int, f"{arch}.{key}", 0):
            config[name] = count
    config |= form.own_config(metadata, weights)
    bos = metadata.optional(int, "tokenizer.ggml.bos_token_id")
    if bos is not None and (bos < config["vocab_size"] or bos == NO_TOKEN):  # the tokenizer tells of any other
        config["bos_token_id"] = bos
    if ids := _end_ids(metadata, config["vocab_size"]):
        config["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return config


def _ropes(metadata: Metadata, form: GgufForm[Any], theta: float, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """RoPE's keys of config.json: of all layers, or of layers with and without a window."""
    if form.window_theta is None:
        return {"rope_theta": theta, "rope_scaling": scaling or form.unscaled}
    window_theta = _positive(metadata, f"{form.architecture}.{WINDOW_THETA}", form.window_theta or theta)
    return {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", **(scaling or {}), "rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": window_theta},
        }
    }


def warnings(metadata: Metadata, model_type: str, forms: Forms, weights: Collection[Weight]) -> list[str]:
    """Warnings for the user: facts that the file may lack, and tensors that are not used in their stored type."""
    arch = forms[model_type].architecture
    told = rope_remarks(metadata, arch)
    if (eps := f"{arch}.attention.layer_norm_epsilon") in metadata:
        told.append(
            f"{eps}={_text(metadata.values[eps])} has no effect: the model has RMSNorm, with an epsilon of its own"
        )
    for other, form in forms.items():
        if other != model_type and form.architecture == arch:
            told += [doubt for doubt in (form.doubt(metadata),) if doubt]
    return told + remarks_on(weights)


def idle_ends(metadata: Metadata, vocab_size: int) -> list[str]:
    """Warnings of tokens that end a turn or a message and are not in the vocabulary."""
    return [
        f"{key}={index} names no token (there are {vocab_size}): nothing ends with it"
        for key in ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
        if (index := metadata.optional(int, key)) is not None and not 0 <= index < vocab_size and index != NO_TOKEN
    ]


def _positive(metadata: Metadata, key: str, default: float | None = None) -> float:
    number = metadata.get(float, key, default)
    if not 0 < number < np.inf:
        raise ConfigError(f"{key}={number}: expected a finite number above 0")
    return number


def _end_ids(metadata: Metadata, vocab_size: int) -> list[int]:
    """Ids of the tokens that end a text, a turn or a message; without those of a turn or a message that are none."""
    ids = []
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        token_id = metadata.optional(int, f"tokenizer.ggml.{key}")
        if token_id == NO_TOKEN:
            continue
        if token_id is not None and not 0 <= token_id < vocab_size and key == "eos_token_id":
            raise ConfigError(
                f"tokenizer.ggml.{key}={token_id}: expected an id below {vocab_size}, as there are tokens"
            )
        if token_id is not None and token_id < vocab_size and token_id not in ids:
            ids.append(token_id)
    return ids


def _check_keys(metadata: Metadata, arch: str, own: Collection[str]) -> None:
    keys = [key.removeprefix(f"{arch}.") for key in metadata.values if key.startswith(f"{arch}.")]
    keys = [key for key in keys if key not in own]
    for key in keys:
        value = metadata.values[f"{arch}.{key}"]
        if key in _NEUTRAL and not any(_same(value, usual) for usual in _NEUTRAL[key]):
            expected = " or ".join(map(str, _NEUTRAL[key]))
            raise ConfigError(f"{arch}.{key}={_text(value)} is not supported: expected {expected}, or no such key")
    unknown = _unknown(metadata, arch, own, says_nothing=False)
    if unknown:
        raise ConfigError(
            f"{len(unknown)} unknown key{'s' * (len(unknown) > 1)} ({listed(unknown, 5)}): each may change the result, "
            "so none is ignored; if you know that it does not, say --override "
            f"{unknown[0].partition('=')[0][:80]}=null, or report the model"
        )
    version = metadata.optional(int, "general.quantization_version")
    if version not in (None, 2):
        raise ConfigError(f"general.quantization_version={version}: expected 2; quantise the original model again")


def _unknown(metadata: Metadata, arch: str, own: Collection[str], *, says_nothing: bool) -> list[str]:
    """Keys of the architecture that nobody knows: those whose values say nothing, or the others."""
    start = f"{arch}."
    return [
        f"{key}={_text(value)}"
        for key, value in metadata.values.items()
        if key.startswith(start)
        and (name := key.removeprefix(start)) not in _READ | _NEUTRAL.keys() | set(own)
        and _says_nothing(name, value) == says_nothing
    ]


def _says_nothing(name: str, value: Value) -> bool:
    return value.len == 0 if isinstance(value, GgufArray) else neutral.says_nothing(name, value)


def passed_over(metadata: Metadata, form: GgufForm[Any]) -> list[str]:
    """Keys of the architecture that Karat does not know, with values that say nothing (karat.checkpoint.neutral)."""
    return _unknown(metadata, form.architecture, _own_keys(form), says_nothing=True)


def _own_keys(form: GgufForm[Any]) -> set[str]:
    own = form.numbers.keys() | form.counts.keys() | set(form.own_keys)
    return own if form.window_theta is None else own | {WINDOW_THETA}


def _same(value: object, usual: object) -> bool:
    """Whether the two are equal: a number in any type, but no truth value for a number."""
    return value == usual and isinstance(value, bool) == isinstance(usual, bool)


def _text(value: object) -> str:
    return f"[{value.len} {value.kind}]" if isinstance(value, GgufArray) else shown(value)


def _head_dim(metadata: Metadata, arch: str, hidden: int, num_heads: int, *, turns_part: bool) -> int:
    head_dim = metadata.optional(int, f"{arch}.attention.key_length")
    if head_dim is None:
        if num_heads < 1 or hidden % num_heads:
            raise ConfigError(
                f"{arch}.embedding_length={hidden} does not divide by {arch}.attention.head_count={num_heads}; "
                f"expected {arch}.attention.key_length to state the size of a head"
            )
        head_dim = hidden // num_heads
    for key in ("attention.value_length", *(() if turns_part else ("rope.dimension_count",))):
        stated = metadata.get(int, f"{arch}.{key}", head_dim)
        if stated != head_dim:
            raise ConfigError(f"{arch}.{key}={stated} is not supported; expected {head_dim}, the size of a head")
    if head_dim < 2 or head_dim % 2:
        raise ConfigError(f"a head of {head_dim} values; expected an even number, as rotary embedding turns pairs")
    return head_dim


def _check_scale(metadata: Metadata, arch: str, head_dim: int) -> None:
    """Raises ConfigError unless scores are scaled by the root of the size of a head; 0 means so, too."""
    key, usual = f"{arch}.attention.scale", head_dim**-0.5
    scale = metadata.get(float, key, 0.0)
    if scale != 0 and not abs(scale - usual) <= _TOLERANCE * usual:
        raise ConfigError(f"{key}={scale} is not supported; expected {usual:.6g}, for heads of {head_dim} values")


def _vocab_size(metadata: Metadata, arch: str, weights: Mapping[str, Weight]) -> int:
    embedding = weights.get("model.embed_tokens.weight")
    tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
    stated = metadata.optional(int, f"{arch}.vocab_size")
    size = embedding.shape[0] if embedding is not None and len(embedding.shape) == 2 else stated
    if size is None or (tokens is not None and tokens.len > size) or (stated is not None and stated != size):
        raise ConfigError(
            f"the embedding has {size} rows, {arch}.vocab_size is {stated}, and there are "
            f"{tokens.len if tokens else 'no'} tokens; expected a row for each token"
        )
    return size
