"""From updates of the engine to the events of Anthropic's streams, and errors in its form.

All events of one update are written together.
"""

from collections.abc import Mapping

from msgspec import UNSET

from karat.engine.requests.request_updates import RequestUpdate
from karat.explanation import Explanation
from karat.outputs import RequestOutput
from karat.server.answers.subject import Subject, karat_of
from karat.server.anthropic.answers import delta_usage_of, ending_of, usage_before
from karat.server.anthropic.blocks import Blocks
from karat.server.anthropic.schema import (
    AnthropicError,
    AnthropicErrorDetail,
    AnthropicMessage,
    ContentBlockDelta,
    Ending,
    ErrorKind,
    Event,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
)
from karat.server.errors import ApiError
from karat.server.request_log import request_id
from karat.server.schema import Explained
from karat.server.sse import named_event

_KINDS: Mapping[int, ErrorKind] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "overloaded_error",
}


def error_of(error: ApiError, request_id: str | None) -> AnthropicError:
    """The form of Anthropic's protocol, which has no field for the parameter: the message names it."""
    usual: ErrorKind = "api_error" if error.status >= 500 else "invalid_request_error"
    return AnthropicError(AnthropicErrorDetail(_KINDS.get(error.status, usual), error.message), request_id)


def _event(value: Event) -> bytes:
    return named_event(value.type, value)


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that ends with an error."""
    return _event(error_of(error, request_id()))


PING = _event(Ping())


class MessageEvents:
    """The events of one answer."""

    ping = PING
    error_event = staticmethod(error_event)

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._has_begun = False
        self._ending: Ending | None = None
        self._output: RequestOutput | None = None
        self._reader = subject.reader()
        self._blocks = Blocks(self._reader)
        self._untold: tuple[Explanation, ...] = ()  # of tokens that no event has told of

    def of(self, number: int, update: RequestUpdate) -> bytes:
        """All events of an update; ApiError if the answer ended in an error."""
        written = b""
        self._output = update.output
        is_computed = update.progress is not None and update.progress.num_computed > 0
        if not self._has_begun and (update.chunks or is_computed):
            self._has_begun = True  # not before a step: until then the cached tokens are unknown
            written = _event(MessageStart(self._empty())) + PING
        for chunk in update.chunks:
            self._untold += chunk.explanations or ()
            for part in self._reader.read(chunk):
                for event in self._blocks.add(part):
                    if self._untold and isinstance(event, ContentBlockDelta):
                        event.karat, self._untold = Explained(self._untold), ()
                    written += _event(event)
            if chunk.finish_reason is not None:
                self._ending = ending_of(chunk, has_calls=self._reader.has_calls)
                self._subject.tally.num_reasoning = self._reader.num_reasoning
        return written

    def end(self) -> bytes:
        """The last events."""
        if self._ending is None:
            raise ApiError(500, "the answer had no end; this is a bug in Karat")
        tally = self._subject.tally
        karat = karat_of(self._subject, *(() if self._output is None else (self._output,)))
        karat.explain = self._untold or UNSET
        last = MessageDelta(self._ending, delta_usage_of(tally), karat, tally.timings())
        return b"".join(map(_event, [*self._blocks.end(), last, MessageStop()]))

    def _empty(self) -> AnthropicMessage:
        heading, karat = self._subject.heading, karat_of(self._subject)
        return AnthropicMessage(heading.id, heading.model, [], None, None, usage_before(self._subject.tally), karat)
