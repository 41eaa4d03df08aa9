"""Protocol: all in which one way to ask for answers differs from the others, stated once."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from typing import Protocol as Shape

import msgspec

from karat.engine.requests.request_updates import RequestUpdate
from karat.server.answers.subject import Subject
from karat.server.asking.asked import ChatRequest, TextRequest
from karat.server.bodies import Body, read_body
from karat.server.errors import ApiError
from karat.server.fields import Field
from karat.server.schema import ErrorBody

Asked = TypeVar("Asked", bound=ChatRequest | TextRequest)


class EventWriter(Shape):
    """Writes the events of an answer. `ping` is sent where none comes for long."""

    @property
    def ping(self) -> bytes: ...

    def of(self, number: int, update: RequestUpdate) -> bytes:
        """All events of an update of prompt `number`; ApiError if a choice ended in an error."""
        ...

    def end(self) -> bytes:
        """The last events."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """The last event of a stream that ends with an error."""
        ...


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How errors are written: the body for an error and the request's id, and its struct.

    `id_headers` have the request's id in every answer.
    """

    body: Callable[[ApiError, str | None], bytes] = ApiError.body_for
    struct: type[msgspec.Struct] = ErrorBody
    id_headers: tuple[bytes, ...] = (b"x-request-id",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[Asked]):
    """A route, the fields of its bodies, and what one asks for: `read` raises 400 for what is wrong."""

    route: str
    fields: Mapping[str, Field]
    read: Callable[[Body], Asked]

    def asked(self, content: bytes) -> Asked:
        """What is asked for by a body. 400 for what is wrong."""
        return self.read(read_body(content, self.fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(Reading[ChatRequest]):
    """A route that counts the tokens of the prompt which a request would make. `answer` is called with the number."""

    answer: type[msgspec.Struct]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Reading[ChatRequest | TextRequest]):
    """`whole` is given the subject and the output of each prompt, and raises ApiError if a choice ended in an error.
    `answer` and `event_types` are the structs that both write.
    """

    id_prefix: str
    whole: Callable[..., msgspec.Struct]
    answer: type[msgspec.Struct]
    events: Callable[[Subject], EventWriter]
    event_types: tuple[type, ...]
    counting: Counting | None = None
    errors: ErrorForm = field(default_factory=ErrorForm)

    @property
    def answers(self) -> Iterator[tuple[str, type[msgspec.Struct]]]:
        """The struct of each route's answers."""
        yield self.route, self.answer
        if self.counting is not None:
            yield self.counting.route, self.counting.answer
