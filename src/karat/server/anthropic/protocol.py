"""Anthropic's protocol: messages."""

from functools import partial

import msgspec

from karat.server.anthropic import schema
from karat.server.anthropic.answers import message
from karat.server.anthropic.events import MessageEvents, error_of
from karat.server.anthropic.requests import read_message
from karat.server.fields import COUNT, MESSAGES
from karat.server.protocol import Counting, ErrorForm, Protocol

MESSAGE = Protocol(
    route=MESSAGES,
    id_prefix="msg",
    read=partial(read_message, route=MESSAGES),
    whole=message,
    answer=schema.AnthropicMessage,
    events=MessageEvents,
    event_types=schema.EVENTS,
    counting=Counting(COUNT, partial(read_message, route=COUNT), schema.MessageTokens),
    errors=ErrorForm(
        lambda error, request_id: msgspec.json.encode(error_of(error, request_id)),
        schema.AnthropicError,
        (b"x-request-id", b"request-id"),
    ),
)
