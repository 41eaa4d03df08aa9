"""OpenAI's protocols: chats, texts that are continued, and responses."""

from functools import partial

from karat.server import schema
from karat.server.bodies import read_body
from karat.server.fields import CHAT, INPUT_TOKENS, RESPONSES, TEXT, fields_of
from karat.server.openai import response_schema
from karat.server.openai.answers import chat_completion, text_completion
from karat.server.openai.events import ChatEvents, TextEvents
from karat.server.openai.requests import read_chat, read_text
from karat.server.openai.response_answers import response
from karat.server.openai.response_events import ResponseEvents
from karat.server.openai.response_requests import read_response
from karat.server.protocol import Counting, Protocol

_FIELDS = {route: fields_of(route) for route in (CHAT, TEXT)}

CHATS = Protocol(
    route=CHAT,
    id_prefix="chatcmpl",
    read=lambda content: read_chat(read_body(content, _FIELDS[CHAT])),
    whole=chat_completion,
    answer=schema.ChatCompletion,
    events=ChatEvents,
    event_types=(schema.ChatChunk,),
)
TEXTS = Protocol(
    route=TEXT,
    id_prefix="cmpl",
    read=lambda content: read_text(read_body(content, _FIELDS[TEXT])),
    whole=text_completion,
    answer=schema.TextCompletion,
    events=TextEvents,
    event_types=(schema.TextCompletion,),
)
RESPONSE = Protocol(
    route=RESPONSES,
    id_prefix="resp",
    read=partial(read_response, route=RESPONSES),
    whole=response,
    answer=response_schema.Response,
    events=ResponseEvents,
    event_types=response_schema.EVENTS,
    counting=Counting(INPUT_TOKENS, partial(read_response, route=INPUT_TOKENS), response_schema.InputTokens),
)
