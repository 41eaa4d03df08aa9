"""ConfigReader: strict reading of a Hugging Face config.json, typed, with every key accounted for.

Keys of transformers 4 (`torch_dtype`) and of transformers 5 (`dtype`, `layer_types`) are understood; RoPE's are read by
karat.models.ropes. A key that the family does not read is an error unless it is known not to change the
result.
"""

import sys
from collections.abc import Collection, Mapping
from typing import TypeVar, get_args

from karat.checkpoint.neutral import says_nothing
from karat.checkpoint.wording import kind_of
from karat.config import FloatName
from karat.errors import ConfigError
from karat.request import shown

T = TypeVar("T", bool, int, float, str)

# Keys that do not change a forward pass: bookkeeping, training, output format, other numbers of a LayerNorm that the
# families do not have, and generation settings of old files (Karat reads those from generation_config.json).
_HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _flash_attn_2_enabled _name_or_path architectures attention_dropout attn_implementation attn_pdrop bad_words_ids
    begin_suppress_tokens chunk_size_feed_forward cls_token_id decoder_start_token_id diversity_penalty do_sample
    dropout early_stopping embd_pdrop encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    flash_attention forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob
    id2label initializer_range is_llama_config label2id layer_norm_eps layer_norm_epsilon length_penalty mask_token_id
    max_length max_seq_len max_seq_length max_sequence_length min_length model_max_length model_type n_ctx n_positions
    name_or_path neftune_noise_alpha
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type
    remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate router_aux_loss_coef
    router_jitter_noise router_z_loss_coef seed sep_token_id seq_length
    suppress_tokens task_specific_params temperature tokenizer_class top_k top_p torchscript transformers.js_config
    transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_flash_attn
    use_flash_attention
    """.split()
)
# Keys that change nothing while they have one of these values, or null.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attention_chunk_size": (0,),
    "attn_logit_softcapping": (0,),
    "auto_map": ({},),
    "bias": (False,),
    "clip_qkv": (0,),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (0,),
    "is_causal": (True,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "mlp_only_layers": ([],),
    "n_routed_experts": (0,),
    "n_shared_experts": (0,),
    "num_experts": (0,),
    "num_experts_per_tok": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1,),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "rope_ratio": (1,),
    "tf_legacy_loss": (False,),
    "tie_encoder_decoder": (False,),
    "use_bias": (False,),
    "use_mrope": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
}
_FLOATS: tuple[FloatName, ...] = get_args(FloatName)
_MAX_INT = 2**63 - 1


def _same(value: object, allowed: object) -> bool:
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


class ConfigReader:
    """Typed access to one JSON object. It records which keys were read; `finish` refuses the others.

    `harmless` keys change nothing, `neutral` ones nothing while they have one of these values. null is no value at all.
    `passed_over` has the keys that nobody knows, whose values say nothing (karat.checkpoint.neutral).
    """

    def __init__(
        self,
        raw: Mapping[str, object],
        where: str = "config.json",
        *,
        harmless: Collection[str] = _HARMLESS,
        neutral: Mapping[str, tuple[object, ...]] = _NEUTRAL,
    ) -> None:
        self._raw = raw
        self._where = where
        self._harmless, self._neutral = harmless, neutral
        self._seen: set[str] = set()
        self.passed_over: list[str] = []

    def assume(self, defaults: Mapping[str, object]) -> None:
        """Take these values for keys that are absent. null is not absent."""
        self._raw = {**defaults, **self._raw}

    @property
    def seen(self) -> frozenset[str]:
        """The keys that were read so far, present or not."""
        return frozenset(self._seen)

    def present(self, key: str) -> bool:
        """Whether the key exists, null included."""
        return key in self._raw

    def raw(self, key: str) -> object:
        """The value as it stands, None if absent. The key counts as read."""
        self._seen.add(key)
        return self._raw.get(key)

    def get(self, kind: type[T], key: str, default: T | None = None) -> T:
        """A bool, int, float (an int is converted) or str. If absent or null: the default, or ConfigError without."""
        value = self.raw(key)
        if value is None:
            if default is None:
                raise ConfigError(f"{self._where}: {key} is missing; a model of this type needs it")
            return default
        return self._typed(kind, key, value)

    def optional(self, kind: type[T], key: str) -> T | None:
        """As `get`; None if absent or null."""
        if self.raw(key) is None:
            return None
        return self.get(kind, key)

    def must_be(self, key: str, *allowed: object, why: str) -> None:
        """Raise ConfigError for a value other than these. The key may be absent or null."""
        value = self.raw(key)
        if value is not None and not any(_same(value, a) for a in allowed):
            raise ConfigError(f"{self._where}: {key}={shown(value)} is not supported: {why}")

    def finish(self) -> None:
        """Raise ConfigError for unread keys that may change the result; add others that nobody knows to passed_over."""
        for key, allowed in self._neutral.items():
            if key not in self._seen:
                self.must_be(key, *allowed, why=f"expected {' or '.join(map(repr, allowed))}, or null")
        known = self._seen.union(self._harmless, self._neutral)
        others = [(key, self._raw[key]) for key in sorted(self._raw) if key not in known and self._raw[key] is not None]
        self.passed_over += [f"{key[:80]}={shown(value)}" for key, value in others if says_nothing(key, value)]
        unknown = [key for key, value in others if not says_nothing(key, value)]
        if unknown:
            named = ", ".join(f"{key[:80]}={shown(self._raw[key])}" for key in unknown[:5])
            raise ConfigError(
                f"{self._where}: {len(unknown)} unknown key{'s' * (len(unknown) > 1)} ({named}): each may change the "
                f"result, so none is ignored; if you know that it does not, say --override {unknown[0][:80]}=null, "
                "or report the model"
            )

    def _typed(self, kind: type[T], key: str, value: object) -> T:
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
            raise ConfigError(f"{self._where}: {key}={shown(value)}: expected {kind_of(kind)}")
        if kind is float and isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise ConfigError(f"{self._where}: {key}={str(value)[:80]}: expected a finite number")
        if kind is int and isinstance(value, int) and abs(value) > _MAX_INT:
            raise ConfigError(f"{self._where}: {key}={shown(value)}: expected an integer of at most 64 bits")
        return kind(value)


def read_dtype(reader: ConfigReader) -> FloatName | None:
    """The checkpoint's stated dtype: `dtype` (transformers 5), else `torch_dtype` (4); None if it states none.

    It is information only, so one that is another than the first, or no type of a float, is passed over.
    """
    found: FloatName | None = None
    for key in ("dtype", "torch_dtype"):
        name = reader.optional(str, key)
        known = next((each for each in _FLOATS if name is not None and name.removeprefix("torch.") == each), None)
        if name is not None and (known is None or found not in (None, known)):
            reader.passed_over.append(f"{key}={shown(name)}")
        found = found or known
    return found


def read_num_kv_heads(reader: ConfigReader) -> int:
    """`num_key_value_heads`, where null means as many as there are attention heads. It may not be absent."""
    if reader.present("num_key_value_heads") and reader.raw("num_key_value_heads") is None:
        return reader.get(int, "num_attention_heads")
    return reader.get(int, "num_key_value_heads")


def read_token_ids(reader: ConfigReader, key: str) -> tuple[int, ...]:
    """The ids of a key: one id, a list of ids, or null."""
    value = reader.raw(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise ConfigError(f"{key}={shown(value)}: expected a token id or a list of token ids")
    return tuple(values)


def read_window(reader: ConfigReader, default: int | None = None) -> int | None:
    """`sliding_window` in tokens, where null and 0 mean that there is none; the default where a file lacks the key."""
    window = reader.optional(int, "sliding_window")
    return (window or None) if reader.present("sliding_window") else default


def read_layer_windows(
    reader: ConfigReader, num_layers: int, window: int | None, default_types: list[str]
) -> tuple[int | None, ...]:
    """The window of each layer in tokens (None: all keys), from `layer_types` or else the family's `default_types`."""
    if window is not None and window < 1:
        raise ConfigError(f"sliding_window={window}: expected a positive number of keys, or null")
    stated = reader.raw("layer_types")
    types = default_types if stated is None else stated
    if not isinstance(types, list) or len(types) != num_layers:
        raise ConfigError(f"layer_types={shown(stated)}: expected a list of {num_layers} types, one a layer")
    for layer, kind in enumerate(types):
        if kind not in ("full_attention", "sliding_attention"):
            raise ConfigError(
                f"layer_types[{layer}]={shown(kind)} is not supported: expected full_attention or sliding_attention"
            )
        if kind == "sliding_attention" and window is None:
            raise ConfigError(f"layer_types[{layer}] is sliding_attention, but no sliding_window is in force")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
