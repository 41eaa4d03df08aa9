"""The inner form of requests, which every protocol is converted to: prompts and parameters."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from karat.engine.intake import Prompt
from karat.engine.verifying import ReceiptWish
from karat.errors import CapacityError, RequestError
from karat.request import Resume, SamplingParams
from karat.text.chat_prompt import ChatPrompt

MAX_DRAWN_SEED = 2**53  # every JSON reader keeps integers below it


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt for the engine, as token ids or a rendered conversation, with all defaults resolved."""

    prompt: tuple[int, ...] | ChatPrompt
    params: SamplingParams
    text: str | None = None  # that the token ids are of

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt.token_ids if isinstance(self.prompt, ChatPrompt) else self.prompt

    @property
    def as_given(self) -> Prompt:
        """The prompt for the engine."""
        if self.text is None or isinstance(self.prompt, ChatPrompt):
            return self.prompt
        return {"prompt_token_ids": self.prompt, "prompt": self.text}


@dataclass(frozen=True, slots=True)
class Work:
    """The prompts of one HTTP request, with their common seed, priority and salt."""

    asks: tuple[Ask, ...]
    seed: int
    priority: int = 0
    salt: str | None = None
    receipt: ReceiptWish = False
    resume: Resume | None = None


def require_a_choice(params: SamplingParams, end_token_ids: frozenset[int], vocab_size: int) -> None:
    """RequestError where min_tokens bars every token that may be chosen, which the engine would find out late."""
    if params.min_tokens == 0:
        return
    barred = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else end_token_ids)
    allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    if barred.issuperset(allowed):
        raise RequestError(
            f"min_tokens={params.min_tokens}: until then no token that ends an answer is chosen, and no other is "
            "allowed; allow others, or leave it out"
        )


def drawn_seed() -> int:
    """A seed from the system's randomness."""
    return secrets.randbelow(MAX_DRAWN_SEED)


@dataclass(frozen=True, slots=True)
class Lengths:
    """The limits of an answer: the context, and the length of an answer for which none is given."""

    max_model_len: int
    default_max_tokens: int

    def params(self, defaults: SamplingParams, given: Mapping[str, Any], prompt_len: int) -> SamplingParams:
        """The parameters `given` over the model's defaults, for a prompt of this length.

        CapacityError for a prompt that leaves no room for an answer, RequestError for contradictory values.
        """
        room = self.max_model_len - prompt_len
        if room < 1:
            raise CapacityError(
                f"the prompt has {prompt_len} tokens, and the context {self.max_model_len}, of which one is for the "
                "answer at least; shorten the prompt"
            )
        asked = given.get("max_tokens")
        if asked is not None and asked > room:
            raise CapacityError(
                f"the prompt has {prompt_len} tokens and the answer may have {asked}, together more than the context "
                f"of {self.max_model_len}; ask for at most {room}, or shorten the prompt"
            )
        usual = min(room, self.default_max_tokens, defaults.max_tokens or room)
        least = min(defaults.min_tokens, usual if asked is None else asked)
        bounded = replace(defaults, max_tokens=None, min_tokens=least)
        return replace(bounded, **{"max_tokens": usual, **given})
