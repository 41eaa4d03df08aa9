"""Anthropic's protocol: messages."""

import msgspec

from karat.server.anthropic import schema
from karat.server.anthropic.answers import message
from karat.server.anthropic.events import MessageEvents, error_of
from karat.server.anthropic.requests import read_message
from karat.server.fields import COUNT, MESSAGES, fields_of
from karat.server.protocol import Counting, ErrorForm, Protocol

MESSAGE = Protocol(
    route=MESSAGES,
    fields=fields_of(MESSAGES),
    read=read_message,
    id_prefix="msg",
    whole=message,
    answer=schema.AnthropicMessage,
    events=MessageEvents,
    event_types=schema.EVENTS,
    counting=Counting(route=COUNT, fields=fields_of(COUNT), read=read_message, answer=schema.MessageTokens),
    errors=ErrorForm(
        lambda error, request_id: msgspec.json.encode(error_of(error, request_id)),
        schema.AnthropicError,
        (b"x-request-id", b"request-id"),
    ),
)
