"""The prompt of a request whose receipt has only digests, in each way in which it may have been sent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from karat.server.anthropic.requests import read_message
from karat.server.asking.asked import ChatRequest
from karat.server.asking.variables import with_efforts
from karat.server.bodies import read_body
from karat.server.errors import ApiError, invalid
from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT, fields_of
from karat.server.openai.requests import read_chat, read_text
from karat.server.openai.response_requests import read_response
from karat.text.tools.dialect import Dialect


def texts_of(asked: Mapping[str, Any]) -> Iterator[tuple[str | tuple[int, ...], bool]]:
    """The prompts of a request to /v1/completions, and whether the tokenizer adds BOS and the like. 400 if wrong."""
    if "prompt" in asked and "messages" not in asked:
        request = read_text(read_body(msgspec.json.encode(asked), fields_of(TEXT)))
        for prompt in request.prompts:
            yield prompt, request.add_special_tokens


def chats_of(
    asked: Mapping[str, Any], dialect: Dialect
) -> Iterator[tuple[Sequence[Mapping[str, Any]], dict[str, Any]]]:
    """The conversations of a request by each protocol, control tokens as text or not, with options of LLM.chat_prompt.

    400 for a request that is wrong by all protocols, and for one without a prompt.
    """
    content = msgspec.json.encode(asked)
    readers: list[Callable[[], ChatRequest]] = []
    if "input" in asked:
        readers.append(lambda: read_response(content, RESPONSES).chat)
    elif "messages" in asked:
        readers.append(lambda: read_chat(read_body(content, fields_of(CHAT))))
        readers.append(lambda: read_message(content, MESSAGES).chat)
    elif "prompt" not in asked:
        raise invalid("request", "the request has no prompt, messages or input; give it as it was sent")
    faults: list[ApiError] = []
    for read in readers:
        try:
            chat = read()
        except ApiError as fault:
            faults.append(fault)
            continue
        variables, _ = with_efforts(chat.variables, chat.efforts, dialect)
        generation = variables.pop("add_generation_prompt")
        for sanitize in (True, False):
            yield (
                chat.messages,
                {
                    "tools": chat.tools.rendered(),
                    "add_generation_prompt": generation,
                    "continue_final_message": chat.continues,
                    "chat_template_kwargs": variables or None,
                    "sanitize_control_tokens": sanitize,
                },
            )
    if readers and len(faults) == len(readers):
        raise faults[0]
