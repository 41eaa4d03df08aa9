"""What comes of a request: outputs, chunks of streams, log-probabilities. Field names follow vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from karat.explanation import Explanation

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of a token under the model's own distribution.

    Rank 1 is the most probable; of equally probable tokens the smaller id comes first. decoded_token is the token
    decoded alone, special tokens included; part of a character shows as U+FFFD.
    """

    logprob: float
    rank: int
    decoded_token: str


TokenLogprobs = Mapping[int, Logprob]
"""Of one position: token id to Logprob, for the chosen token and the k most probable ones."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice. finish_reason is None while it is generated.

    For "stop", stop_reason is the stop string or the token id that ended it. For "error", `error` is a message and
    error_type the name of its class in karat.errors: RequestError where the request is at fault (its form, say, has a
    dead end), NumericsError where the numbers are, BugError for a bug. error_param is the field that is at fault.
    "length" means max_tokens or the end of the context. logprobs and explanations, if they were asked for, have one
    entry for each of token_ids: also for tokens whose text is cut by a stop string or by the end, or not yet whole.
    receipt is a karat.receipts.Receipt, if one was asked for and the choice did not fail.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    explanations: tuple[Explanation, ...] | None = None
    receipt: Any = None
    error_type: str | None = None
    error_param: str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the log-probabilities of token_ids; None if logprobs were not asked for."""
        if self.logprobs is None:
            return None
        return sum(found[i].logprob for found, i in zip(self.logprobs, self.token_ids, strict=True))


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The result of a request.

    prompt_logprobs has one entry for each token of the prompt; the first is None, as no token precedes it. There are
    fewer if choice 0 ended with "error" or "abort" before all were computed. seed keyed the draws: the same request
    with this seed draws the same tokens. num_cached_tokens is the number of prompt tokens that were in the cache when
    choice 0 began and were not computed for it; it does not count when outputs are compared.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    seed: int | None = None
    num_cached_tokens: int = field(default=0, compare=False)

    @property
    def finished(self) -> bool:
        """Whether every choice has a finish_reason."""
        return all(output.finish_reason is not None for output in self.outputs)


class StreamChunk(msgspec.Struct, frozen=True, array_like=True):
    """New text and tokens of one choice, in order. The last chunk of a choice has a finish_reason.

    Text lags behind the tokens while it may be part of a character or of a stop string. If prompt_logprobs are asked
    for, the first chunk of choice 0 has them, as in RequestOutput; all other chunks have None. logprobs and
    explanations have one entry for each of token_ids, whatever text the chunk has. The last chunk of LLM.resume has
    the receipt of the whole answer, if one was asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    explanations: tuple[Explanation, ...] | None = None
    error_type: str | None = None
    error_param: str | None = None
    receipt: Any = None
