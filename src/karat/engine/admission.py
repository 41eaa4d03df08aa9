"""Whether an engine can ever serve a request: token ids, priority, length, and an answer's beginning."""

from karat.engine.lengths import require_a_choice, resolve_max_tokens
from karat.engine.sizes import EngineConfig
from karat.errors import RequestError
from karat.request import MAX_CHOICES, MAX_COUNT, Request, Resume, SamplingParams, is_int, shown


def check_limits(request: Request, config: EngineConfig) -> int:
    """The most tokens of each choice. RequestError for a request that no engine of these sizes can serve.

    Whether its blocks fit the cache is the scheduler's to say (`Scheduler.check_fits`), and of the answer's form it is
    Forms' (`karat.engine.forms`).
    """
    params, size = request.params, config.vocab_size
    check_tokens("the prompt", request.prompt_token_ids, size)
    check_params(params, size)
    if not is_int(request.priority, -MAX_COUNT, MAX_COUNT):
        raise RequestError(
            f"priority={shown(request.priority)}: expected an integer from {-MAX_COUNT} to {MAX_COUNT}",
            param="priority",
        )
    max_tokens = resolve_max_tokens(params, len(request.prompt_token_ids), config.max_model_len)
    require_a_choice(params, request.end_token_ids, size)
    if request.resume is not None:
        _check_resume(request, request.resume, max_tokens, size)
    return max_tokens


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
