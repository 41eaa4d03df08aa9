"""Server-sent events: from a struct to an event."""

import msgspec

from karat.server.errors import ApiError
from karat.server.request_log import request_id

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encoder = msgspec.json.Encoder()


encoded = _encoder.encode  # as JSON


def event(value: object) -> bytes:
    """One event. JSON has no raw line breaks, so a value is one line."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """One event with a name, as Anthropic's protocol has them."""
    return b"event: " + name.encode() + b"\n" + event(value)


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that ends with an error, in OpenAI's form."""
    return b"data: " + error.body_for(request_id()) + b"\n\n"
