"""From updates of the engine to the events of /v1/responses. All events of one update are written together."""

from typing import Any

from msgspec import UNSET

from karat.engine.requests.request_updates import RequestUpdate
from karat.explanation import Explanation
from karat.outputs import RequestOutput
from karat.server.answers.subject import Subject, karat_of, reason_of
from karat.server.errors import ApiError
from karat.server.openai.response_answers import begun, ended
from karat.server.openai.response_items import Items
from karat.server.openai.response_schema import DeltaEvent, ErrorEvent, Event, Response, ResponseEvent
from karat.server.schema import Explained, FinishReason
from karat.server.sse import PING, named_event


class ResponseEvents:
    """The events of one answer. They are numbered from 0."""

    ping = PING

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._num_events = 0
        self._reader = subject.reader()
        self._items = Items(subject.heading.id, self._reader, self._next, subject.echo.meanings)
        self._reason: FinishReason | None = None
        self._output: RequestOutput | None = None
        self._untold: tuple[Explanation, ...] = ()  # of tokens that no event has told of

    def of(self, number: int, update: RequestUpdate) -> bytes:
        """All events of an update; ApiError if the answer ended in an error."""
        written = b"" if self._num_events else self._begin()
        self._output = update.output
        for chunk in update.chunks:
            self._untold += chunk.explanations or ()
            for part in self._reader.read(chunk):
                for event in self._items.add(part):
                    if self._untold and isinstance(event, DeltaEvent):
                        event.karat, self._untold = Explained(self._untold), ()
                    written += _event(event)
            if chunk.finish_reason is not None:
                self._reason = reason_of(chunk)
                self._subject.tally.num_reasoning = self._reader.num_reasoning
        return written

    def end(self) -> bytes:
        """The last events."""
        if self._reason is None:
            raise ApiError(500, "the answer had no end; this is a bug in Karat")
        closing = self._items.end("incomplete" if self._reason == "length" else "completed")
        made = ended(self._subject, self._items, self._reason)
        if self._output is not None:
            made.karat = karat_of(self._subject, self._output)
        made.karat.explain = self._untold or UNSET
        last = self._response("response.incomplete" if made.status == "incomplete" else "response.completed", made)
        return b"".join(map(_event, closing)) + last

    def error_event(self, error: ApiError) -> bytes:
        """The last event of a stream that ends with an error."""
        return _event(
            ErrorEvent(sequence_number=self._next(), message=error.message, code=error.code, param=error.param)
        )

    def _begin(self) -> bytes:
        made = begun(self._subject)
        return self._response("response.created", made) + self._response("response.in_progress", made)

    def _response(self, kind: Any, made: Response) -> bytes:
        return _event(ResponseEvent(type=kind, sequence_number=self._next(), response=made))

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _event(value: Event) -> bytes:
    return named_event(value.type, value)
