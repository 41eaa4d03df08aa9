"""Admission: what an engine can ever serve, decided before it has a request: for LLM, AsyncLLM and HTTP alike."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from karat.engine.engine_config import EngineConfig
from karat.engine.requests.grammar_cache import GrammarCache
from karat.errors import CapacityError, RequestError
from karat.kv.sizes import check_fits
from karat.request import MAX_CHOICES, MAX_COUNT, Resume, SamplingParams, is_int, shown
from karat.request_record import Request

if TYPE_CHECKING:
    from karat.text.grammar import Grammar


class Admission:
    """The judge of requests for an engine of these sizes. `grammars` compiles the forms of answers."""

    def __init__(self, config: EngineConfig, grammars: GrammarCache) -> None:
        self.config = config
        self.grammars = grammars

    def check(self, request: Request) -> int:
        """The most tokens of each choice. RequestError for a request that can never be served.

        It waits until the form of its answer is compiled, if it has one.
        """
        max_tokens = self.check_limits(request)
        self.grammar(request)
        return max_tokens

    def check_limits(self, request: Request) -> int:
        """As `check`, but for the form of the answer."""
        params, size = request.params, self.config.vocab_size
        check_tokens("the prompt", request.prompt_token_ids, size)
        check_params(params, size)
        if not is_int(request.priority, -MAX_COUNT, MAX_COUNT):
            raise RequestError(
                f"priority={shown(request.priority)}: expected an integer from {-MAX_COUNT} to {MAX_COUNT}",
                param="priority",
            )
        max_tokens = self.check_lengths(params, len(request.prompt_token_ids), request.end_token_ids)
        if request.resume is not None:
            _check_resume(request, request.resume, max_tokens, size)
        self.check_fits(len(request.prompt_token_ids) + max_tokens - 1)
        return max_tokens

    def check_lengths(self, params: SamplingParams, prompt_len: int, end_token_ids: frozenset[int]) -> int:
        """The most tokens of a choice. CapacityError if they do not fit, RequestError if there is none to choose."""
        max_tokens = resolve_max_tokens(params, prompt_len, self.config.max_model_len)
        require_a_choice(params, end_token_ids, self.config.vocab_size)
        return max_tokens

    def check_tokens(self, what: str, token_ids: tuple[int, ...]) -> None:
        """RequestError, which begins with `what`, unless these are token ids."""
        check_tokens(what, token_ids, self.config.vocab_size)

    def check_fits(self, num_tokens: int) -> None:
        """CapacityError for a sequence that does not fit into the cache even alone."""
        check_fits(num_tokens, self.config.groups, self.config.block_size)

    def params_after(
        self, prompt_len: int, defaults: SamplingParams, given: Mapping[str, Any], *, usual: int | None = None
    ) -> SamplingParams:
        """The parameters `given` over the model's defaults, as the function `params_after`."""
        return params_after(prompt_len, self.config.max_model_len, defaults, given, usual=usual)

    def grammar(self, request: Request) -> "Grammar | None":
        """The compiled form of the answer, if one is asked for. RequestError for one that cannot be kept to."""
        form = request.params.structured_outputs
        return None if form is None else self.grammars.compile(form)


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


def check_params(params: SamplingParams, vocab_size: int) -> None:
    """RequestError, which begins with the field's name, for token ids that the model does not have."""
    named = {
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words_ids": tuple(token_id for word in params.bad_words_ids for token_id in word),
        "logit_bias": tuple(params.logit_bias),
    }
    for name, token_ids in named.items():
        check_tokens(name, token_ids, vocab_size, may_be_empty=True)


def check_tokens(what: str, token_ids: tuple[int, ...], vocab_size: int, *, may_be_empty: bool = False) -> None:
    """RequestError, which begins with `what`, unless these are token ids."""
    if not token_ids and not may_be_empty:
        raise RequestError(f"{what} has no tokens; expected at least one", param=_param_of(what))
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{what}: {shown(token_id)} is no token id; expected integers from 0 to {vocab_size - 1}",
                param=_param_of(what),
            )


def _param_of(what: str) -> str:
    return "prompt" if " " in what else what


def _check_resume(request: Request, resume: Resume, max_tokens: int, vocab_size: int) -> None:
    check_tokens("resume", resume.token_ids, vocab_size, may_be_empty=True)
    if request.params.n != 1 or request.params.prompt_logprobs is not None:
        raise RequestError(
            "resume with n or prompt_logprobs: expected one choice, that of `choice`; leave them out", param="resume"
        )
    if not is_int(resume.choice, 0, MAX_CHOICES - 1):
        raise RequestError(
            f"resume: choice={shown(resume.choice)}: expected an integer from 0 to {MAX_CHOICES - 1}", param="resume"
        )
    if len(resume.token_ids) > max_tokens:
        raise RequestError(
            f"resume: {len(resume.token_ids)} tokens, more than max_tokens={max_tokens}; give those that it had",
            param="resume",
        )
