"""A checkpoint's defaults of generation: sampling, and the tokens that end a text.

Sampling defaults are those of transformers' `generate` for the same folder: the values of generation_config.json, and
transformers' own defaults for the others (greedy unless do_sample is true, then top_k 50). The one exception is the
length, which transformers limits to 20 tokens in all and Karat by the context.

The tokens that end a text are eos_token_id of generation_config.json or, if it has none, of config.json, as in
`generate`. The tokenizer's own eos_token is added, because a chat model's configs may name only the end token of its
base model. In a conversation, the special token with which the chat template ends an answer (such as <|im_end|>) ends
it too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from karat.checkpoint import ModelCheckpoint
from karat.checkpoint.wording import listed
from karat.config import ModelConfig
from karat.engine.model_loading.llm_options import GenerationSource
from karat.errors import ConfigError, RequestError, TemplateError
from karat.models.end_tokens import stated_end_ids
from karat.request import SamplingParams, shown
from karat.text import Tokenizer
from karat.text.tools.registry import asked_for

_FILE = "generation_config.json"
_TOP_K = 50  # transformers' default for sampling
_WITHOUT = 'correct it, or take none of it: --generation-config none, generation_config="none"'
_MAX_NAMED = 15  # keys that the notice names as not applied

# Key of generation_config.json -> field of SamplingParams.
_ALWAYS = {
    "bad_words_ids": "bad_words_ids",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "num_return_sequences": "n",
    "repeat_last_n": "repeat_last_n",
    "repetition_penalty": "repetition_penalty",
    "stop_strings": "stop",
}
_WHEN_SAMPLING = {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold")
}
# Keys that do not change which tokens are chosen: bookkeeping, form of the output, speed.
_HARMLESS = frozenset(
    """
    _from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind bos_token_id
    cache_config cache_implementation compile_config decoder_start_token_id diversity_penalty early_stopping
    disable_compile eos_token_id do_sample is_assistant length_penalty max_cache_len max_matching_ngram_size
    num_assistant_tokens num_assistant_tokens_schedule output_attentions output_hidden_states output_logits
    output_scores pad_token_id prefill_chunk_size prompt_lookup_num_tokens renormalize_logits return_dict_in_generate
    return_legacy_cache target_lookbehind transformers_version use_cache xtc_threshold
    """.split()
)
# Values that switch a key off, as absence and null do.
_OFF: Mapping[str, tuple[object, ...]] = {
    "begin_suppress_tokens": ([],),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "guidance_scale": (1.0,),
    "min_length": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "remove_invalid_values": (False,),
    "min_p": (0.0,),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "temperature": (1.0,),
    "token_healing": (False,),
    "top_k": (0, _TOP_K),
    "top_p": (1.0,),
    "trust_remote_code": (False,),
    "typical_p": (1.0,),
    "use_mtp": (False,),
    "xtc_probability": (0.0,),
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling for calls that give none, and the tokens that end any text.

    `notice` is one line on which keys of generation_config.json are applied and which are not; None: none is used.
    """

    params: SamplingParams
    end_token_ids: frozenset[int]
    notice: str | None


def defaults_of(
    checkpoint: ModelCheckpoint, config: ModelConfig, tokenizer: Tokenizer, source: GenerationSource = "auto"
) -> GenerationDefaults:
    """The defaults of a model. ConfigError for what it states and cannot be used, unless the source is "none".

    Then the end tokens are those of config.json and of the tokenizer.
    """
    stated, where, fault = checkpoint.generation_config, checkpoint.generation_source, checkpoint.generation_fault
    try:
        if fault is not None:
            raise fault
        return read_defaults(stated, config, tokenizer, where, source)
    except ConfigError as error:
        if source != "none":
            raise ConfigError(f"{error}; {_WITHOUT}") from error
        return read_defaults(None, config, tokenizer, where, source)


def read_defaults(
    raw: Mapping[str, object] | None,
    config: ModelConfig,
    tokenizer: Tokenizer,
    where: str = _FILE,
    source: GenerationSource = "auto",
) -> GenerationDefaults:
    """Defaults from a generation_config.json (None: there is none) or its equivalent; `where` is its name.

    Raises ConfigError for values of a wrong type. Of the source "none" only the end tokens are read.
    """
    if source == "none":
        end_ids = _stated_end_ids(raw, config, tokenizer, where)
        return GenerationDefaults(SamplingParams(), frozenset(i for i in end_ids if i < config.vocab_size), None)
    stated = {key: value for key, value in (raw or {}).items() if value is not None}
    do_sample = stated.get("do_sample", False)
    if not isinstance(do_sample, bool):
        raise ConfigError(f"{where}: do_sample={shown(do_sample)}: expected true or false")
    names = _ALWAYS | (_WHEN_SAMPLING if do_sample else {})
    end_ids = _stated_end_ids(stated, config, tokenizer, where)
    stated |= _possible_words(stated.get("bad_words_ids"), end_ids)
    params, applied = _read_params(
        {names[key]: value for key, value in stated.items() if key in names}, do_sample, where
    )
    ignored = [
        f"{key[:80]}={shown(value)}"
        for key, value in sorted(stated.items())
        if key not in names and key not in _HARMLESS and not any(value == off for off in _OFF.get(key, ()))
    ]
    beyond = sorted(i for i in end_ids if i >= config.vocab_size)
    ignored += [f"eos_token_id={shown(i)} (outside the vocabulary)" for i in beyond]
    if raw is None:
        notice = f"the folder has no {where}" if where == _FILE else "the file suggests no sampling"
        notice += "; greedy (temperature=0)"
    else:
        notice = f"sampling defaults from {where}: " + (", ".join(applied) or "nothing that differs from the usual")
    if ignored:
        notice += f"; not applied: {listed(ignored, _MAX_NAMED)}"
    return GenerationDefaults(params, frozenset(i for i in end_ids if i < config.vocab_size), notice)


def _stated_end_ids(
    stated: Mapping[str, object] | None, config: ModelConfig, tokenizer: Tokenizer, where: str
) -> frozenset[int]:
    """Without tokens that end a message, after which the same answer has more, whatever the files say."""
    return frozenset(stated_end_ids(stated, config, tokenizer.eos_token_id, where)) - _message_end_ids(tokenizer)


def _message_end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    form = asked_for(tokenizer.template_sources)
    return _ids(tokenizer, () if form is None or form.channels is None else (form.channels.message_end,))


def _ids(tokenizer: Tokenizer, tokens: Collection[str]) -> frozenset[int]:
    return frozenset(found for token in tokens if (found := tokenizer.token_to_id(token)) is not None)


_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


def end_hint(tokenizer: Tokenizer, end_token_ids: frozenset[int]) -> str | None:
    """A line for models whose chat template ends turns with a token that ends no text; None for others.

    A chat written as a text to be continued runs on past it.
    """
    source = tokenizer.template_source or ""
    for token in _TURN_ENDS:
        token_id = tokenizer.token_to_id(token) if token in source else None
        if token_id is not None and token_id not in end_token_ids | _message_end_ids(tokenizer):
            return (
                f"{token} ends a turn of the chat template, and no text: completions run on past it, chats do not; "
                f"give stop_token_ids=[{token_id}] with a chat that is written as a text"
            )
    return None


def turn_end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The special token that the chat template writes after an answer; empty if it writes none. In channels, those that
    end an answer, not a message.

    An added token that is no word counts too: converters store `<|im_end|>` as "user-defined" in GGUF files.
    """
    answer = "An-answer-to-find-again"
    conversation = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.render_chat(conversation, add_generation_prompt=False)
    except TemplateError:  # there is no template, or it refuses this conversation
        return frozenset()
    _, found, after = text.rpartition(answer)
    first = tokenizer.encode(after.lstrip(), add_special_tokens=False)[:1] if found else []
    marks = {i for i, token in tokenizer.added_tokens.items() if not token.isspace() and not token.isalnum()}
    ends = frozenset(first) & (tokenizer.special_ids | marks)
    form = asked_for(tokenizer.template_sources)
    if form is None or form.channels is None:
        return ends if form is None else ends | _ids(tokenizer, (form.turn_end,))
    return (ends | _ids(tokenizer, form.channels.turn_ends)) - _ids(tokenizer, (form.channels.message_end,))


def _possible_words(words: object, end_ids: Collection[int]) -> dict[str, object]:
    """bad_words_ids without words that are an end token alone, which transformers passes over."""
    return (
        {"bad_words_ids": [word for word in words if word not in [[i] for i in end_ids]]}
        if isinstance(words, list)
        else {}
    )


def _read_params(values: dict[str, object], do_sample: bool, where: str) -> tuple[SamplingParams, list[str]]:
    """The parameters, and a text for each that differs from SamplingParams(), for the notice."""
    remarks = {}
    if not do_sample:
        values["temperature"], remarks["temperature"] = 0.0, "greedy: do_sample is not true"
    elif "top_k" not in values:
        values["top_k"], remarks["top_k"] = _TOP_K, "transformers' default"
    try:
        params = SamplingParams(**values)  # type: ignore[arg-type]
    except RequestError as error:
        raise ConfigError(f"{where}: {error}") from error
    usual = SamplingParams()
    return params, [
        f"bad_words_ids ({len(params.bad_words_ids)} of them)"
        if name == "bad_words_ids"
        else f"{name}={shown(value)}" + (f" ({remarks[name]})" if name in remarks else "")
        for name, value in values.items()
        if getattr(params, name) != getattr(usual, name)
    ]
