"""What an engine has to tell of its requests."""

from dataclasses import dataclass

from karat.engine.choice import Carried, Choice
from karat.request import Request, RequestOutput, StreamChunk


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt of `num_tokens` is: `num_computed` are in the cache, of which `num_cached` were found there."""

    num_tokens: int
    num_cached: int = 0
    num_computed: int = 0


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """What is new of one request; `output` comes once, with the last chunk. Only AsyncLLM tells `progress`."""

    request_id: str
    chunks: tuple[StreamChunk, ...]
    output: RequestOutput | None = None
    progress: PromptProgress | None = None


@dataclass(slots=True)
class Entry:
    """A request, its choices, and its news: what updates have carried of each choice, and those not taken yet.

    `news` is replaced as a whole, so that an interrupt can neither lose nor repeat an update.
    """

    request: Request
    choices: list[Choice]
    news: tuple[tuple[Carried, ...], tuple[RequestUpdate, ...]]

    @property
    def ended(self) -> bool:
        """Whether the last update was made."""
        return all(carried.end for carried in self.news[0])

    def publish(self) -> None:
        """Add to the news what choices have that no update has carried."""
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
