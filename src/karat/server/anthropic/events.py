"""From updates of the engine to the events of Anthropic's streams. All events of one update are written together."""

from msgspec import UNSET

from karat.engine.updates import RequestUpdate
from karat.request import RequestOutput
from karat.server.anthropic.answers import ending_of, usage_of
from karat.server.anthropic.errors import error_of
from karat.server.anthropic.schema import (
    AnthropicMessage,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Ending,
    Event,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    TextBlock,
    TextDelta,
)
from karat.server.errors import ApiError
from karat.server.openai.answers import Subject, explained, karat_of
from karat.server.sse import named_event


def _event(value: Event) -> bytes:
    return named_event(value.type, value)


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that ends with an error."""
    return _event(error_of(error))


PING = _event(Ping())


class MessageEvents:
    """The events of one answer, which is one block of text."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._has_begun = False
        self._ending: Ending | None = None
        self._output: RequestOutput | None = None

    def of(self, number: int, update: RequestUpdate) -> bytes:
        """All events of an update; ApiError if the answer ended in an error."""
        written = b""
        self._output = update.output
        is_computed = update.progress is not None and update.progress.num_computed > 0
        if not self._has_begun and (update.chunks or is_computed):
            self._has_begun = True  # not before a step: until then the cached tokens are unknown
            written = _event(MessageStart(self._empty())) + _event(ContentBlockStart(TextBlock(""))) + PING
        for chunk in update.chunks:
            karat = explained(chunk)
            if chunk.text or karat is not UNSET:
                written += _event(ContentBlockDelta(TextDelta(chunk.text), karat=karat))
            if chunk.finish_reason is not None:
                self._ending = ending_of(chunk)
        return written

    def end(self) -> bytes:
        """The last events."""
        if self._ending is None:
            raise ApiError(500, "the answer had no end; this is a bug in Karat")
        tally = self._subject.tally
        karat = karat_of(self._subject, *(() if self._output is None else (self._output,)))
        last = MessageDelta(self._ending, usage_of(tally), karat, tally.timings())
        return _event(ContentBlockStop()) + _event(last) + _event(MessageStop())

    def _empty(self) -> AnthropicMessage:
        heading, karat = self._subject.heading, karat_of(self._subject)
        return AnthropicMessage(heading.id, heading.model, [], None, None, usage_of(self._subject.tally), karat)
