"""From updates of the engine to the events of a stream. All events of one update are written together."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType

from karat.engine.requests.request_updates import RequestUpdate
from karat.outputs import RequestOutput, StreamChunk
from karat.server import schema
from karat.server.answers.subject import Subject, explained, karat_of, reason_of
from karat.server.openai.answers import beside, message_of
from karat.server.openai.deltas import Deltas
from karat.server.openai.logprobs import num_chars, of_prompt, writer_of
from karat.server.sse import DONE, PING, encoded, error_event, event
from karat.text.tools.events import Text


class _Events(ABC):
    """The common part of both routes' events: usage and timings, and which event is the last."""

    struct: Callable[..., schema.ChatChunk | schema.TextCompletion]
    ping = PING
    error_event = staticmethod(error_event)

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._num_open = sum(request.params.n for request in subject.requests)
        self._begun: set[int] = set()  # choices that have had an event
        form = subject.form
        has_more = form.token_ids or form.no_answer or form.continuous_usage or form.timings_per_token
        self._is_plain = not has_more and all(request.params.logprobs is None for request in subject.requests)
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # what surrounds the text in an event of a choice
        self._ended: dict[int, RequestOutput] = {}  # by the prompt's number

    @property
    def _outputs(self) -> list[RequestOutput]:
        return [self._ended[number] for number in sorted(self._ended)]

    def _is_text(self, index: int, chunk: StreamChunk) -> bool:
        """Whether the event of a chunk has a text and nothing else that is new."""
        has_more = chunk.finish_reason is not None or chunk.explanations is not None
        return self._is_plain and index in self._begun and chunk.text != "" and not has_more

    def _text(self, index: int, text: str, make: Callable[[str], object]) -> bytes:
        """The event of `make(text)`. It is made once for each choice: afterwards only the text is encoded."""
        if index not in self._frames:
            mark = self._subject.heading.id + "-text"  # in no other field, since nobody else knows the id
            before, _, after = event(make(mark)).partition(encoded(mark))
            self._frames[index] = before, after
        before, after = self._frames[index]
        return before + encoded(text) + after

    def _usage(self) -> schema.Usage | UnsetType | None:
        form = self._subject.form
        if form.continuous_usage:
            return self._subject.tally.usage()
        return None if form.include_usage else UNSET

    def of(self, number: int, update: RequestUpdate) -> bytes:
        """All events of an update; ApiError if a choice ended in an error."""
        written = b""
        if update.output is not None:
            self._ended[number] = update.output
        if self._subject.form.progress and (progress := self._subject.tally.progress(number, update)) is not None:
            written += event(self._made([], progress=progress))
        return written + b"".join([self._of_chunk(number, chunk) for chunk in update.chunks])

    def end(self) -> bytes:
        """The last events."""
        form, tally = self._subject.form, self._subject.tally
        if not form.include_usage:
            return DONE
        made = self._made([])
        if form.no_answer:
            tally.num_tokens = 0
        made.usage = tally.usage()
        return event(made) + DONE

    @abstractmethod
    def _of_chunk(self, number: int, chunk: StreamChunk) -> bytes: ...

    def _made(
        self, choices: list[Any], *, last: bool = False, progress: schema.PrefillProgress | UnsetType = UNSET
    ) -> Any:
        """The struct of an event; a `last` one ends the stream."""
        subject, heading = self._subject, self._subject.heading
        return self.struct(
            choices=choices,
            prompt_progress=progress,
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.fingerprint,
            usage=self._usage(),
            timings=subject.tally.timings() if last or subject.form.timings_per_token else UNSET,
            karat=karat_of(subject, *self._outputs) if last else UNSET,
        )


class ChatEvents(_Events):
    """The events of an answer to a conversation."""

    struct = schema.ChatChunk

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._readers = [subject.reader() for _ in range(self._num_open)]
        self._deltas = [Deltas(reader, subject.echo) for reader in self._readers]

    def _of_chunk(self, number: int, chunk: StreamChunk) -> bytes:
        subject, written = self._subject, b""
        form, params = subject.form, subject.requests[0].params
        reader = self._readers[chunk.index]
        parts = reader.read(chunk)
        if len(parts) == 1 and isinstance(parts[0], Text) and self._is_text(chunk.index, chunk):
            return self._text(
                chunk.index,
                parts[0].text,
                lambda text: self._made([schema.ChatChunkChoice(chunk.index, schema.Delta(content=text))]),
            )
        if chunk.index not in self._begun:
            self._begun.add(chunk.index)
            delta = schema.Delta(role="assistant", content="", refusal=None)
            begun = schema.ChatChunkChoice(chunk.index, delta)
            if reader.resumed is not None:
                begun.karat = schema.BesideChat(resumed=message_of(reader.resumed, reader, subject.echo))
            first = self._made([begun])
            if form.token_ids:
                first.prompt_token_ids = list(subject.requests[0].prompt_token_ids)
            if chunk.prompt_logprobs is not None:
                first.prompt_logprobs = of_prompt(chunk.prompt_logprobs)
            written += event(first)
        logprobs = None
        if params.logprobs is not None and chunk.logprobs:
            logprobs = writer_of(subject).chat(chunk.token_ids, chunk.logprobs, params.logprobs)
        made = self._deltas[chunk.index]
        deltas = [delta for part in parts for delta in made.of(part)]
        if chunk.finish_reason is not None:
            deltas += made.rest()
        karat = beside(subject, chunk, None, reader)
        if not deltas and (logprobs is not None or karat is not UNSET or (form.token_ids and chunk.token_ids)):
            deltas = [schema.Delta(content="")]
        for place, delta in enumerate(deltas):  # what is told of the chunk's tokens is in the first event
            choice = schema.ChatChunkChoice(chunk.index, delta)
            if place == 0:
                choice.logprobs, choice.karat = logprobs, karat
                if form.token_ids:
                    choice.token_ids = list(chunk.token_ids)
            written += event(self._made([choice]))
        if chunk.finish_reason is not None:
            self._num_open -= 1
            subject.tally.num_reasoning += reader.num_reasoning
            reason = reason_of(chunk, has_calls=reader.has_calls)
            choice = schema.ChatChunkChoice(chunk.index, schema.Delta(), None, reason, chunk.stop_reason)
            written += event(self._made([choice], last=self._num_open == 0))
        return written


class TextEvents(_Events):
    """The events of a text that is continued."""

    struct = schema.TextCompletion

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._offsets: dict[int, int] = {}  # of the next token of each choice, in characters

    def _of_chunk(self, number: int, chunk: StreamChunk) -> bytes:
        subject, written = self._subject, b""
        form, params = subject.form, subject.requests[number].params
        index = chunk.index + (sum([request.params.n for request in subject.requests[:number]]) if number else 0)
        if self._is_text(index, chunk):
            return self._text(index, chunk.text, lambda text: self._made([schema.TextChoice(index, text, None, None)]))
        if index not in self._begun:
            self._begun.add(index)
            written += self._first(number, index, chunk)
        logprobs = None
        if params.logprobs is not None and chunk.logprobs and not form.no_answer:
            offset = self._offsets.get(index, 0)
            logprobs = writer_of(subject).text(chunk.token_ids, chunk.logprobs, params.logprobs, offset)
            num_new = sum(num_chars(subject.tokenizer.token_bytes(i)) for i in chunk.token_ids)
            self._offsets[index] = offset + num_new
        text = "" if form.no_answer else chunk.text
        wants_ids = form.token_ids and bool(chunk.token_ids) and not form.no_answer
        karat = UNSET if form.no_answer else explained(chunk)
        if text or logprobs is not None or wants_ids or karat is not UNSET or chunk.finish_reason is not None:
            reason = None if chunk.finish_reason is None else reason_of(chunk)
            if form.no_answer and reason is not None:
                reason = "length"
            self._num_open -= reason is not None
            choice = schema.TextChoice(index, text, logprobs, reason, None if form.no_answer else chunk.stop_reason)
            choice.karat = karat
            if wants_ids:
                choice.token_ids = list(chunk.token_ids)
            written += event(self._made([choice], last=reason is not None and self._num_open == 0))
        return written

    def _first(self, number: int, index: int, chunk: StreamChunk) -> bytes:
        """The event before the answer: the prompt, its ids and its log-probabilities, those that are asked for."""
        subject = self._subject
        form, request = subject.form, subject.requests[number]
        choice = schema.TextChoice(index, subject.prompt_texts[number] if form.echo else "", None, None)
        if form.token_ids:
            choice.prompt_token_ids = list(request.prompt_token_ids)
        if chunk.prompt_logprobs is not None:
            if form.prompt_logprobs:
                choice.prompt_logprobs = of_prompt(chunk.prompt_logprobs)
            if form.echo and (top := request.params.logprobs) is not None:
                ids = request.prompt_token_ids
                choice.logprobs = writer_of(subject).text(ids, chunk.prompt_logprobs, top, 0)
                self._offsets[index] = sum(num_chars(subject.tokenizer.token_bytes(i)) for i in ids)
        if not (form.echo or form.token_ids or form.prompt_logprobs):
            return b""
        return event(self._made([choice]))
