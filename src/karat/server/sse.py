"""Server-sent events: from a struct to an event."""

import msgspec

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encoder = msgspec.json.Encoder()


def event(value: object) -> bytes:
    """One event. JSON has no raw line breaks, so a value is one line."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def error_event(body: bytes) -> bytes:
    """The last event of a stream that ends with an error. `body` is ApiError's."""
    return b"data: " + body + b"\n\n"
