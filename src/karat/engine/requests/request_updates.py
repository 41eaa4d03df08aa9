"""Updates: what is new of an engine's requests, in the shape in which it goes between processes."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from karat.engine.choosing.choice import Carried, Choice, completion_of
from karat.errors import Packed
from karat.outputs import CompletionOutput, RequestOutput, StreamChunk
from karat.request_record import Request


class PromptProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a prompt of `num_tokens` tokens.

    `num_computed` tokens are in the cache; `num_cached` of them were found there when the prompt began.
    """

    num_tokens: int
    num_cached: int = 0
    num_computed: int = 0


class RequestUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What is new of one request. `output` comes once, with the last chunk. Only AsyncLLM sets `output` and `progress`.

    `num_cached_tokens`: of an update with chunks, as of the output so far. `ended`: no more updates come. `refused`:
    why the engine has not computed the request.
    """

    request_id: str
    chunks: tuple[StreamChunk, ...]
    output: RequestOutput | None = None
    progress: PromptProgress | None = None
    ended: bool = False
    num_cached_tokens: int = 0
    refused: Packed | None = None


class Gathered:
    """The chunks of a request so far, of which its output is made."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._chunks: list[list[StreamChunk]] = [[] for _ in range(request.params.n)]
        self._num_cached_tokens = 0

    def add(self, update: RequestUpdate) -> None:
        """Keep the chunks of an update."""
        for chunk in update.chunks:
            self._chunks[chunk.index].append(chunk)
        self._num_cached_tokens = update.num_cached_tokens

    def output(
        self, completed: Callable[[CompletionOutput], CompletionOutput] = lambda choice: choice
    ) -> RequestOutput:
        """The output, after the last update. `completed` adds to a choice what the engine does not know."""
        request, first = self._request, self._chunks[0]
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple(completed(completion_of(chunks, request.params)) for chunks in self._chunks),
            prompt_logprobs=first[0].prompt_logprobs,
            seed=request.seed,
            num_cached_tokens=self._num_cached_tokens,
        )


@dataclass(slots=True)
class OpenEntry:
    """A request, its choices, and its delivery: the part of each choice that updates carried, and the untaken updates.

    `delivery` is replaced as a whole, so that an interrupt can neither lose nor repeat an update.
    """

    request: Request
    choices: list[Choice]
    delivery: tuple[tuple[Carried, ...], tuple[RequestUpdate, ...]]

    @property
    def ended(self) -> bool:
        """Whether the last update exists."""
        return all(carried.end for carried in self.delivery[0])

    @property
    def is_due(self) -> bool:
        """Whether an update is wanted of what is new."""
        carried, _ = self.delivery
        if self.request.is_watched or carried == tuple(choice.given for choice in self.choices):
            return True
        return any(
            choice.finish_reason is not None and not before.end
            for choice, before in zip(self.choices, carried, strict=True)
        )

    def publish(self) -> None:
        """Add an update with everything of the choices that no update has carried."""
        if self.ended:
            return
        carried, updates = self.delivery
        made = [choice.chunk_after(before) for choice, before in zip(self.choices, carried, strict=True)]
        chunks = tuple(chunk for chunk, _ in made if chunk)
        if not chunks:
            return
        ended = all(choice.finish_reason is not None for choice in self.choices)
        num_cached = self.choices[0].sequence.num_found or 0
        update = RequestUpdate(self.request.request_id, chunks, ended=ended, num_cached_tokens=num_cached)
        self.delivery = tuple(after for _, after in made), (*updates, update)
