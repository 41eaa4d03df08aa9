"""Lengths: how long an answer may become, and whether it may begin: decided here for LLM, AsyncLLM and HTTP alike."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from karat.errors import CapacityError, RequestError
from karat.request import SamplingParams


def room_after(prompt_len: int, max_model_len: int) -> int:
    """The tokens that the context leaves for an answer. CapacityError if there are none."""
    room = max_model_len - prompt_len
    if room < 1:
        raise CapacityError(
            f"the prompt has {prompt_len} tokens, and the context of {max_model_len} must hold at least one more; "
            "shorten the prompt, or load the model with a larger max_model_len if it allows that",
            param="prompt",
        )
    return room


def resolve_max_tokens(params: SamplingParams, prompt_len: int, max_model_len: int) -> int:
    """The most tokens of a choice: max_tokens, or the rest of the context. CapacityError if they do not fit."""
    room = room_after(prompt_len, max_model_len)
    for name, value in (("max_tokens", params.max_tokens or 0), ("min_tokens", params.min_tokens)):
        if value > room:
            raise CapacityError(
                f"{name}={value} after a prompt of {prompt_len} tokens: the context of {max_model_len} leaves {room}; "
                f"ask for at most {room}, or shorten the prompt",
                param=name,
            )
    return params.max_tokens or room


def params_after(
    prompt_len: int,
    max_model_len: int,
    defaults: SamplingParams,
    given: Mapping[str, Any] = {},
    *,
    usual: int | None = None,
) -> SamplingParams:
    """The parameters `given` over the model's defaults. CapacityError if the prompt leaves no room for an answer.

    A length that nobody gives is at most the model's default, `usual`, and the rest of the context. A default of
    min_tokens is lowered to the length that is given. RequestError for values that contradict each other.
    """
    room = room_after(prompt_len, max_model_len)
    limits = [limit for limit in (defaults.max_tokens, usual) if limit is not None]
    most = min(*limits, room) if limits else None
    least = min(defaults.min_tokens, given.get("max_tokens") or most or room)
    return replace(defaults, **{"max_tokens": most, "min_tokens": least, **given})


def require_a_choice(params: SamplingParams, end_token_ids: frozenset[int], vocab_size: int) -> None:
    """RequestError where min_tokens bars every token that may be chosen, which a step would find out late."""
    if params.min_tokens == 0:
        return
    barred = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else end_token_ids)
    allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    if barred.issuperset(allowed):
        raise RequestError(
            f"min_tokens={params.min_tokens}: until then no token that ends an answer is chosen, and no other is "
            "allowed; allow others, or leave it out",
            param="min_tokens",
        )
