"""One choice of a request: its tokens, text and log-probabilities, and how it ends."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from karat.engine.choosing.bad_words import Words, words_of
from karat.engine.choosing.explain import explained
from karat.engine.choosing.logprobs import token_logprobs
from karat.engine.choosing.sampler import choose, finite_argmax
from karat.engine.scheduling.sequence import Sequence
from karat.errors import RequestError, packed
from karat.explanation import Explanation
from karat.outputs import CompletionOutput, FinishReason, StreamChunk, TokenLogprobs
from karat.request import SamplingParams
from karat.request_record import Request
from karat.text import IncrementalDetokenizer, StopMatcher, Tokenizer

if TYPE_CHECKING:
    from karat.text.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of a choice that chunks have carried so far: pieces of text, tokens, and whether the end."""

    pieces: int = 0
    tokens: int = 0
    end: bool = False


class _Sampled(NamedTuple):
    """A token, with what was asked for about it."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    explanation: Explanation | None = None


class Choice:
    """Samples one continuation. One that is resumed begins after the tokens it has, and reports what is new.

    Each sampled token is recorded by one append, which an interrupt cannot split. All else (tokens of the sequence,
    text, end) follows from this record, and `recover` computes it anew.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        sequence: Sequence,
        tokenizer: Tokenizer,
        max_tokens: int,
        grammar: "Grammar | None" = None,
        words: Words | None = None,
    ) -> None:
        params = request.params
        self._words = words_of(params, tokenizer) if words is None else words
        self.sequence = sequence
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._prompt_logprobs: list[TokenLogprobs | None] = [None]  # of choice 0 alone, if asked for
        self._request = request
        self._max_tokens = max_tokens
        self._decode_one = lambda token_id: tokenizer.decode_continuation([token_id])
        self._stop_ids = request.end_token_ids if not params.ignore_eos else frozenset[int]()
        self._stop_ids |= frozenset(params.stop_token_ids)
        self._tokenizer = tokenizer
        self._grammar = grammar
        self._stop_reason: str | int | None = None
        self._error: str | None = None
        self._error_type: str | None = None
        self._error_param: str | None = None
        given = () if request.resume is None else request.resume.token_ids
        self._draws_as = index if request.resume is None else request.resume.choice
        self._sampled = [_Sampled(token_id) for token_id in given]
        self._begin()
        for number, token_id in enumerate(given):
            if self.finish_reason is not None:
                raise RequestError(
                    f"resume: the answer ends after {number} of its {len(given)} tokens ({self.finish_reason}); "
                    "give those that it had",
                    param="resume",
                )
            self._follow(token_id)
        self.given = Carried(len(self._text), len(given))  # what was there before: the caller has it

    @property
    def request(self) -> Request:
        return self._request

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def given_text(self) -> str:
        """The text of an answer that is resumed, as far as its caller has it."""
        return "".join(self._text[: self.given.pieces])

    @property
    def num_tokens(self) -> int:
        return len(self.sequence.token_ids) - self.sequence.prompt_len

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """One entry for each prompt position read so far; None if they were not asked for, or for another choice."""
        return tuple(self._prompt_logprobs) if self._reports_prompt else None

    @property
    def _reports_prompt(self) -> bool:
        return self.index == 0 and self._request.params.prompt_logprobs is not None

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def read(self, first: int, rows: NDArray[np.floating]) -> int:
        last = len(self.sequence.token_ids) - 1
        for position, row in enumerate(rows, first):
            if position < last:
                self._report(position, row)
            else:
                self._choose(row)
        return len(rows)

    def _report(self, position: int, row: NDArray[np.floating]) -> None:
        """The log-probability of the prompt's next token, after `position`."""
        k, reported = self._request.params.prompt_logprobs, self._prompt_logprobs
        assert k is not None and len(reported) == position + 1, "prompt logits out of order"
        finite_argmax(row, position)  # or it raises
        reported.append(token_logprobs(row, self._request.prompt_token_ids[position + 1], k, self._decode_one))

    def _choose(self, row: NDArray[np.floating]) -> None:
        params = self._request.params
        token_id = self.chosen(row)
        logprobs = explanation = None
        if params.logprobs is not None:
            logprobs = token_logprobs(row, token_id, params.logprobs, self._decode_one)
        if params.explain:
            explanation = explained(row, params, token_id, self._decode_one, **self._circumstances)
        self._take(_Sampled(token_id, logprobs, explanation))

    def chosen(self, row: NDArray[np.floating]) -> int:
        """The next token of these logits [vocab], by the request's parameters and draw. Nothing changes."""
        return choose(row, self._request.params, **self._circumstances)

    def take(self, token_id: int) -> None:
        """Go on with this token, whoever chose it. RequestError if the form has no place for it."""
        self._take(_Sampled(token_id))

    @property
    def _circumstances(self) -> dict[str, Any]:
        """The arguments of `choose` beside logits and parameters."""
        params = self._request.params
        return {
            "token_ids": self.sequence.token_ids,
            "prompt_len": self.sequence.prompt_len,
            "seed": self._request.seed,
            "choice": self._draws_as,
            "barred": self._stop_ids if self.num_tokens < params.min_tokens else (),
            "fitting": None if self._form is None else self._form.fitting(self._stop_ids),
            "words": self._words,
        }

    def _take(self, sampled: _Sampled) -> None:
        self._sampled.append(sampled)
        self._follow(sampled.token_id)

    def fail(self, error: Exception) -> None:
        self._error_type, what, self._error_param = packed(error)
        self._error = f"choice {self.index}: {what}"
        try:
            self._finish("error")
        except Exception:  # noqa: BLE001 - the text side failed; its first error is the one reported
            self.finish_reason, self._stop_reason = "error", None

    def abort(self) -> None:
        """End with "abort": the caller no longer waits."""
        try:
            self._finish("abort")
        except Exception as error:  # noqa: BLE001 - an abort always ends the choice
            self.fail(error)

    def recover(self) -> None:
        self.finish_reason = self._stop_reason = self._error = self._error_type = self._error_param = None
        self._begin()
        for token_id, *_ in self._sampled:
            try:
                self._follow(token_id)
            except Exception as error:  # noqa: BLE001 - as in a step, it ends this choice
                self.fail(error)

    def chunk_after(self, carried: Carried) -> tuple[StreamChunk | None, Carried]:
        """The new chunk since `carried` (None: nothing new), and what is carried with it."""
        ended = self.finish_reason is not None
        if self.num_tokens == carried.tokens and ended == carried.end:
            return None, carried
        return self._since(carried), Carried(len(self._text), self.num_tokens, ended)

    def output(self) -> CompletionOutput:
        """All that is new so far."""
        return completion_of([self._since(self.given)], self._request.params)

    def _since(self, carried: Carried) -> StreamChunk:
        return StreamChunk(
            index=self.index,
            text="".join(self._text[carried.pieces :]),
            token_ids=tuple(self.sequence.token_ids[self.sequence.prompt_len + carried.tokens :]),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            logprobs=self._reported(carried.tokens),
            error=self._error,
            prompt_logprobs=self.prompt_logprobs if carried.tokens == 0 else None,
            explanations=self._explained(carried.tokens),
            error_type=self._error_type,
            error_param=self._error_param,
        )

    def _reported(self, start: int) -> tuple[TokenLogprobs, ...] | None:
        return (
            None
            if self._request.params.logprobs is None
            else tuple(each.logprobs for each in self._sampled[start:] if each.logprobs is not None)
        )

    def _explained(self, start: int) -> tuple[Explanation, ...] | None:
        if not self._request.params.explain:
            return None
        return tuple(each.explanation for each in self._sampled[start:] if each.explanation is not None)

    def _begin(self) -> None:
        """The state before the first token of the answer."""
        params, sequence = self._request.params, self.sequence
        del sequence.token_ids[sequence.prompt_len :]
        sequence.num_read = (len(self._prompt_logprobs) if self._reports_prompt else sequence.prompt_len) - 1
        self._detokenizer = IncrementalDetokenizer(
            self._tokenizer, skip_special_tokens=params.skip_special_tokens, prompt_ids=self._request.prompt_token_ids
        )
        self._matcher = StopMatcher(params.stop, include_stop=params.include_stop_str_in_output)
        self._text: list[str] = []
        self._form = None if self._grammar is None else self._grammar.begin(self._request.end_token_ids)

    def _follow(self, token_id: int) -> None:
        """Update tokens, text and end of the choice for one more token."""
        params = self._request.params
        self.sequence.token_ids.append(token_id)
        self.sequence.num_read = len(self.sequence.token_ids) - 1
        if token_id in self._stop_ids:
            if params.include_stop_str_in_output:
                self._emit(self._detokenizer.push(token_id))
            self._finish("stop", token_id)
            return
        if self._form is not None:
            self._form.push(token_id)
        text = self._detokenizer.push(token_id)
        if self.num_tokens <= params.min_tokens:
            self._text.append(text)
        else:
            self._emit(text)
        if self.finish_reason is None and self._form is not None and self._form.is_complete:
            self._finish("stop")
        if self.finish_reason is None and self.num_tokens == self._max_tokens:
            self._finish("length")

    def _emit(self, text: str) -> None:
        """Add the text that cannot begin a stop string. A complete stop string ends the choice."""
        text, matched = self._matcher.push(text)
        self._text.append(text)
        if matched is not None:
            self.finish_reason, self._stop_reason = "stop", matched

    def _finish(self, reason: FinishReason, stop_reason: int | None = None) -> None:
        """End for this reason; text that was held back is added."""
        self._emit(self._detokenizer.finish())
        self._text.append(self._matcher.finish())
        self.finish_reason, self._stop_reason = reason, stop_reason


def completion_of(chunks: list[StreamChunk], params: SamplingParams) -> CompletionOutput:
    """All chunks of a choice as one output; the last chunk has how it ended."""
    last = chunks[-1]
    logprobs = explanations = None
    if params.logprobs is not None:
        logprobs = tuple(entry for chunk in chunks for entry in chunk.logprobs or ())
    if params.explain:
        explanations = tuple(entry for chunk in chunks for entry in chunk.explanations or ())
    return CompletionOutput(
        index=last.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=logprobs,
        error=last.error,
        explanations=explanations,
        error_type=last.error_type,
        error_param=last.error_param,
    )
