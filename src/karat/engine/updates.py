"""Updates: what is new of an engine's requests."""

from dataclasses import dataclass

from karat.engine.choice import Carried, Choice
from karat.outputs import RequestOutput, StreamChunk
from karat.request import Request


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of a prompt of `num_tokens` tokens.

    `num_computed` tokens are in the cache; `num_cached` of them were found there when the prompt began.
    """

    num_tokens: int
    num_cached: int = 0
    num_computed: int = 0


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """The news of one request. `output` comes once, with the last chunk. Only AsyncLLM sets `progress`."""

    request_id: str
    chunks: tuple[StreamChunk, ...]
    output: RequestOutput | None = None
    progress: PromptProgress | None = None


@dataclass(slots=True)
class Entry:
    """A request, its choices, and its news: the part of each choice that updates carried, and the untaken updates.

    `news` is replaced as a whole, so that an interrupt can neither lose nor repeat an update.
    """

    request: Request
    choices: list[Choice]
    news: tuple[tuple[Carried, ...], tuple[RequestUpdate, ...]]

    @property
    def ended(self) -> bool:
        """Whether the last update exists."""
        return all(carried.end for carried in self.news[0])

    def publish(self) -> None:
        """Add an update with everything of the choices that no update has carried."""
        if self.ended:
            return
        carried, updates = self.news
        made = [choice.chunk_after(before) for choice, before in zip(self.choices, carried, strict=True)]
        chunks = tuple(chunk for chunk, _ in made if chunk)
        if not chunks:
            return
        output = None
        if all(choice.finish_reason is not None for choice in self.choices):
            output = RequestOutput(
                request_id=self.request.request_id,
                prompt=self.request.prompt,
                prompt_token_ids=self.request.prompt_token_ids,
                outputs=tuple(choice.output() for choice in self.choices),
                prompt_logprobs=self.choices[0].prompt_logprobs,
                seed=self.request.seed,
                num_cached_tokens=self.choices[0].sequence.num_found or 0,
            )
        update = RequestUpdate(self.request.request_id, chunks, output)
        self.news = tuple(after for _, after in made), (*updates, update)
