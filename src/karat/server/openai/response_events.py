"""From updates of the engine to the events of /v1/responses. All events of one update are written together."""

from typing import Any

from msgspec import UNSET

from karat.engine.updates import RequestUpdate
from karat.request import RequestOutput
from karat.server.errors import ApiError
from karat.server.openai.answers import Subject, explained, karat_of, reason_of
from karat.server.openai.response_answers import begun, ended, item, item_id
from karat.server.openai.response_requests import Echo
from karat.server.openai.response_schema import (
    ErrorEvent,
    Event,
    ItemEvent,
    OutputText,
    PartEvent,
    Response,
    ResponseEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from karat.server.schema import FinishReason
from karat.server.sse import named_event


class ResponseEvents:
    """The events of one answer, which is one message of one text. They are numbered from 0."""

    def __init__(self, subject: Subject, echo: Echo) -> None:
        self._subject, self._echo = subject, echo
        self._item_id = item_id(subject)
        self._num_events = 0
        self._text: list[str] = []
        self._reason: FinishReason | None = None
        self._output: RequestOutput | None = None

    def of(self, number: int, update: RequestUpdate) -> bytes:
        """All events of an update; ApiError if the answer ended in an error."""
        written = b"" if self._num_events else self._begin()
        self._output = update.output
        for chunk in update.chunks:
            karat = explained(chunk)
            if chunk.text or karat is not UNSET:
                self._text.append(chunk.text)
                delta = TextDeltaEvent(sequence_number=self._next(), item_id=self._item_id, delta=chunk.text)
                delta.karat = karat
                written += _event(delta)
            if chunk.finish_reason is not None:
                self._reason = reason_of(chunk)
        return written

    def end(self) -> bytes:
        """The last events."""
        if self._reason is None:
            raise ApiError(500, "the answer had no end; this is a bug in Karat")
        text = "".join(self._text)
        made = ended(self._subject, self._echo, text, self._reason)
        if self._output is not None:
            made.karat = karat_of(self._subject, self._output)
        (message,) = made.output
        done = TextDoneEvent(sequence_number=self._next(), item_id=self._item_id, text=text)
        return (
            _event(done)
            + self._part("response.content_part.done", text)
            + _event(ItemEvent(type="response.output_item.done", sequence_number=self._next(), item=message))
            + self._response("response.incomplete" if made.status == "incomplete" else "response.completed", made)
        )

    def error_event(self, error: ApiError) -> bytes:
        """The last event of a stream that ends with an error."""
        return _event(
            ErrorEvent(sequence_number=self._next(), message=error.message, code=error.code, param=error.param)
        )

    def _begin(self) -> bytes:
        made = begun(self._subject, self._echo)
        written = self._response("response.created", made) + self._response("response.in_progress", made)
        added = item(self._subject, "in_progress")
        written += _event(ItemEvent(type="response.output_item.added", sequence_number=self._next(), item=added))
        return written + self._part("response.content_part.added", "")

    def _response(self, kind: Any, made: Response) -> bytes:
        return _event(ResponseEvent(type=kind, sequence_number=self._next(), response=made))

    def _part(self, kind: Any, text: str) -> bytes:
        part = OutputText(text)
        return _event(PartEvent(type=kind, sequence_number=self._next(), item_id=self._item_id, part=part))

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _event(value: Event) -> bytes:
    return named_event(value.type, value)
