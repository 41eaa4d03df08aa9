"""The engine: requests in, tokens and text out, step by step."""

from dataclasses import dataclass
from itertools import accumulate, count, pairwise

import numpy as np
from numpy.typing import NDArray

from karat.engine.choice import Choice, LogitsReader, Reader, resolve_max_tokens
from karat.engine.scheduler import Chunk, Scheduler
from karat.engine.sequence import Sequence
from karat.engine.step import build_batch
from karat.errors import NumericsError, RequestError
from karat.kv.blocks import BlockPool
from karat.ops.api import Runner, StepLimits
from karat.request import Request, RequestOutput, StreamChunk, shown
from karat.text import Tokenizer

PROMPT_LOGITS_BYTES = 64 * 1024**2  # of the logits of prompt positions made in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of an engine. max_model_len bounds prompt and output of a request together.

    With enable_prefix_caching, sequences that begin with the same tokens share the blocks of these (karat.kv.blocks).
    """

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = False

    @property
    def max_prompt_logits(self) -> int:
        """Prompt positions of a step whose logits may be wanted."""
        return max(1, PROMPT_LOGITS_BYTES // (4 * self.vocab_size))

    @property
    def step_limits(self) -> StepLimits:
        """The largest step that the scheduler makes."""
        return StepLimits(
            num_tokens=self.max_num_batched_tokens,
            num_logit_rows=min(self.max_num_batched_tokens, self.max_num_seqs + self.max_prompt_logits),
            num_seqs=self.max_num_seqs,
            context_len=self.max_model_len,
        )


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """What is new of one request; `output` comes once, with the last chunk."""

    request_id: str
    chunks: tuple[StreamChunk, ...]
    output: RequestOutput | None = None


class Engine:
    """Continuous batching over one model. Not thread-safe: one thread uses an engine.

    `run` computes a batch (see karat.engine.step.model_runner); between steps another may take its place, such as one
    that calls it and watches. Every request ends in exactly one finish reason per choice, and then its blocks are free.
    A forward pass that raises leaves all as it was: the sequences are still there and can be stepped again or aborted.
    """

    def __init__(self, run: Runner, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(
            BlockPool(config.num_blocks, config.block_size),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_prompt_logits=config.max_prompt_logits,
            share_prefixes=config.enable_prefix_caching,
        )
        self.run = run
        self._tokenizer = tokenizer
        self._seq_ids = count()
        self._readers: dict[int, Reader] = {}  # by seq_id
        self._requests: dict[str, tuple[Request, list[Choice]]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._readers)

    def check_request(self, request: Request) -> int:
        """The number of tokens that each choice may have; RequestError for what can never be served."""
        params = request.params
        self._check_tokens("the prompt", request.prompt_token_ids)
        self._check_tokens("stop_token_ids", params.stop_token_ids, may_be_empty=True)
        self._check_tokens("logit_bias", tuple(params.logit_bias), may_be_empty=True)
        max_tokens = resolve_max_tokens(request, self.config.max_model_len)
        self.scheduler.check_fits(len(request.prompt_token_ids) + max_tokens - 1)
        return max_tokens

    def add_request(self, request: Request) -> None:
        """Queue a request; RequestError, and nothing queued, for what can never be served."""
        max_tokens = self.check_request(request)
        if request.request_id in self._requests:
            raise RequestError(f"request {request.request_id!r} is already running; give each its own id")
        choices = []
        for index in range(request.params.n):
            sequence = self._sequence(
                request.prompt_token_ids,
                max_new=max_tokens - 1,
                prompt_logits=index == 0 and request.params.prompt_logprobs is not None,
            )
            choices.append(Choice(request, index, sequence, self._tokenizer, max_tokens))
        self._requests[request.request_id] = request, choices
        for choice in choices:
            self._add(choice)

    def add_logits(self, token_ids: tuple[int, ...], logits: NDArray[np.floating]) -> LogitsReader:
        """Queue the computation of all logits [tokens, vocab] of a text, written to `logits` as steps go on."""
        self._check_tokens("the text", token_ids)
        self.scheduler.check_fits(len(token_ids))
        reader = LogitsReader(self._sequence(token_ids, max_new=0, prompt_logits=True), logits)
        self._add(reader)
        return reader

    def step(self) -> list[RequestUpdate]:
        """One forward pass over as many sequences as fit; what became new, by request. Nothing to do: no updates."""
        chunks = self.scheduler.schedule()
        changed: dict[str, None] = {}
        for chunk, logits in zip(chunks, self._compute(chunks), strict=True):
            reader = self._readers[chunk.seq.seq_id]
            try:
                if self._read(reader, chunk, logits):
                    self._drop(reader)
            except NumericsError as error:
                reader.fail(error)
                self._drop(reader, forget=True)
            if isinstance(reader, Choice):
                changed[reader.request_id] = None
        return [update for request_id in changed if (update := self._update(request_id))]

    def abort(self, request_id: str) -> RequestUpdate | None:
        """End all open choices of a request with "abort" and free their blocks; None if there is no such request."""
        if request_id not in self._requests:
            return None
        for choice in self._requests[request_id][1]:
            if choice.finish_reason is None:
                choice.abort()
                self._drop(choice)
        return self._update(request_id)

    def abort_logits(self, reader: LogitsReader) -> None:
        """Free what `add_logits` took, if it has not ended by itself."""
        if reader.sequence.seq_id in self._readers:
            self._drop(reader)

    def _sequence(self, prompt: tuple[int, ...], *, max_new: int, prompt_logits: bool) -> Sequence:
        return Sequence(
            next(self._seq_ids), list(prompt), len(prompt), max_len=len(prompt) + max_new, prompt_logits=prompt_logits
        )

    def _add(self, reader: Reader) -> None:
        self.scheduler.add(reader.sequence)
        self._readers[reader.sequence.seq_id] = reader

    def _drop(self, reader: Reader, *, forget: bool = False) -> None:
        self.scheduler.remove(reader.sequence, forget=forget)
        del self._readers[reader.sequence.seq_id]

    def _compute(self, chunks: list[Chunk]) -> list[NDArray[np.floating] | NumericsError]:
        """Logits [positions, vocab] for each chunk. A batch that fails for its numbers is run again one by one.

        So only the sequence at fault ends. Running a chunk again is safe: it writes to the same slots.
        """
        if not chunks:
            return []
        batch = build_batch(chunks, self.scheduler.blocks, vocab_size=self.config.vocab_size)
        try:
            logits = self.run(batch)
        except NumericsError as error:
            if len(chunks) == 1:
                return [error]
            # Copies, because a runner's result is good only until the next one.
            alone = (self._compute([chunk])[0] for chunk in chunks)
            return [result if isinstance(result, NumericsError) else result.copy() for result in alone]
        assert logits.shape == (len(batch.logit_rows), self.config.vocab_size), f"logits of shape {logits.shape}"
        counts = (len(chunk.seq.wanted(chunk.num_tokens)) for chunk in chunks)
        return [logits[start:end] for start, end in pairwise(accumulate(counts, initial=0))]

    def _read(self, reader: Reader, chunk: Chunk, logits: NDArray[np.floating] | NumericsError) -> bool:
        """Hand a chunk's logits to who wants them; True if the sequence ends with that."""
        if isinstance(logits, NumericsError):
            raise logits
        seq = reader.sequence
        first = seq.wanted(chunk.num_tokens).start
        self.scheduler.advance(chunk)
        is_last = seq.num_pending == 0
        num_prompt = len(logits) - is_last
        if num_prompt:
            reader.read_prompt(first, logits[:num_prompt])
            seq.num_read = first + num_prompt
        return is_last and reader.read_last(logits[-1])

    def _update(self, request_id: str) -> RequestUpdate | None:
        """What is new of a request, which is forgotten when all its choices have ended."""
        request, choices = self._requests[request_id]
        chunks = tuple(chunk for choice in choices if (chunk := choice.take_chunk()))
        if any(choice.finish_reason is None for choice in choices):
            return RequestUpdate(request_id, chunks) if chunks else None
        del self._requests[request_id]
        output = RequestOutput(
            request_id=request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple(choice.output() for choice in choices),
            prompt_logprobs=choices[0].prompt_logprobs,
        )
        return RequestUpdate(request_id, chunks, output)

    def _check_tokens(self, what: str, token_ids: tuple[int, ...], *, may_be_empty: bool = False) -> None:
        if not token_ids and not may_be_empty:
            raise RequestError(f"{what} has no tokens; expected at least one")
        largest = self.config.vocab_size - 1
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id <= largest:
                raise RequestError(f"{what}: {shown(token_id)} is no token id; expected integers from 0 to {largest}")
