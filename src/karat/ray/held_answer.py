"""HeldAnswer: the tokens of an answer so far, as the ingress has them, and what another replica is to be asked for.

A replica may die after any token. The request that is asked then is a resumed one, whose answer goes on at the very
next token, as if it had never stopped. So nobody who reads the answer can tell.
"""

from dataclasses import replace as with_values
from typing import NamedTuple

from msgspec.structs import replace

from karat.engine.requests.request_updates import PromptProgress, RequestUpdate
from karat.request import Resume
from karat.request_record import Request


class AnswerPart(NamedTuple):
    """A request for a replica: of the whole answer (choice None), or of the rest of one choice."""

    request: Request
    choice: int | None = None


class HeldAnswer:
    """The answer to a request, whose parts may come from several replicas."""

    def __init__(self, request: Request) -> None:
        self._request = request
        given = () if request.resume is None else request.resume.token_ids
        self._tokens = [list(given) for _ in range(request.params.n)]
        self._num_given = len(given)
        self._has_ended = [False] * request.params.n
        self._num_cached: int | None = None
        self._progress: PromptProgress | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that came, of all choices."""
        return sum(len(tokens) - self._num_given for tokens in self._tokens)

    @property
    def has_ended(self) -> bool:
        return all(self._has_ended)

    def whole(self) -> AnswerPart:
        """All of it. Progress is asked for in any case: it says that the request has begun."""
        return AnswerPart(replace(self._request, tells_progress=True))

    def rest(self, part: AnswerPart) -> list[AnswerPart]:
        """What is missing of a part that was lost, a part for each choice."""
        choices = range(len(self._tokens)) if part.choice is None else (part.choice,)
        if self.num_tokens == 0 and part.choice is None and not self.has_ended:
            return [part]
        return [self._rest_of(choice) for choice in choices if not self._has_ended[choice]]

    def take(self, part: AnswerPart, update: RequestUpdate) -> RequestUpdate | None:
        """An update of a part as one of the whole answer; None if it says nothing new."""
        if update.refused is not None:
            self._has_ended = [True] * len(self._has_ended)
            return RequestUpdate(self._request.request_id, (), ended=True, refused=update.refused)
        chunks = update.chunks
        if part.choice is not None:
            chunks = tuple(replace(chunk, index=part.choice) for chunk in chunks)
        progress = self._new_progress(update)
        for chunk in chunks:
            self._tokens[chunk.index] += chunk.token_ids
            self._has_ended[chunk.index] |= chunk.finish_reason is not None
        if chunks and self._num_cached is None:
            self._num_cached = update.num_cached_tokens
        if not chunks and progress is None:
            return None
        return RequestUpdate(
            self._request.request_id,
            chunks,
            progress=progress,
            ended=self.has_ended,
            num_cached_tokens=self._num_cached or 0,
        )

    def _new_progress(self, update: RequestUpdate) -> PromptProgress | None:
        """Progress that goes on. The first update with tokens has one in any case."""
        found, told = update.progress, self._progress
        if found is None and told is None and update.chunks:
            length = len(self._request.prompt_token_ids)
            found = PromptProgress(length, update.num_cached_tokens, length)
        if found is None or found.num_computed + found.num_cached == 0:
            return None  # of a request that waits
        if told is not None and (self.num_tokens or found.num_computed <= told.num_computed):
            return None
        self._progress = found
        return found

    def _rest_of(self, choice: int) -> AnswerPart:
        request, tokens = self._request, tuple(self._tokens[choice])
        draws_as = choice if request.resume is None else request.resume.choice
        reported = None if tokens or choice else request.params.prompt_logprobs
        params = with_values(request.params, n=1, prompt_logprobs=reported)
        resume = Resume(tokens, draws_as) if tokens or draws_as else None
        return AnswerPart(replace(request, params=params, resume=resume, tells_progress=not tokens), choice)
