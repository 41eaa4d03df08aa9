"""OpenAI's protocols: chats, texts that are continued, and responses."""

from karat.server import schema
from karat.server.fields import CHAT, INPUT_TOKENS, RESPONSES, TEXT, fields_of
from karat.server.openai import response_schema
from karat.server.openai.answers import chat_completion, text_completion
from karat.server.openai.events import ChatEvents, TextEvents
from karat.server.openai.requests import read_chat, read_text
from karat.server.openai.response_answers import response
from karat.server.openai.response_events import ResponseEvents
from karat.server.openai.response_requests import read_response
from karat.server.protocol import Counting, Protocol

CHATS = Protocol(
    route=CHAT,
    fields=fields_of(CHAT),
    read=read_chat,
    id_prefix="chatcmpl",
    whole=chat_completion,
    answer=schema.ChatCompletion,
    events=ChatEvents,
    event_types=(schema.ChatChunk,),
)
TEXTS = Protocol(
    route=TEXT,
    fields=fields_of(TEXT),
    read=read_text,
    id_prefix="cmpl",
    whole=text_completion,
    answer=schema.TextCompletion,
    events=TextEvents,
    event_types=(schema.TextCompletion,),
)
RESPONSE = Protocol(
    route=RESPONSES,
    fields=fields_of(RESPONSES),
    read=read_response,
    id_prefix="resp",
    whole=response,
    answer=response_schema.Response,
    events=ResponseEvents,
    event_types=response_schema.EVENTS,
    counting=Counting(
        route=INPUT_TOKENS, fields=fields_of(INPUT_TOKENS), read=read_response, answer=response_schema.InputTokens
    ),
)
