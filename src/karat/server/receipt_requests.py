"""The prompt of a request whose receipt has only digests, in each way in which it may have been sent."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from karat.server.anthropic.protocol import MESSAGE
from karat.server.asking.asked import ChatRequest, TextRequest
from karat.server.asking.variables import with_efforts
from karat.server.bodies import judge
from karat.server.errors import ApiError, invalid
from karat.server.openai.protocols import CHATS, RESPONSE, TEXTS
from karat.server.protocol import Protocol
from karat.text.tools.dialect import Dialect


def texts_of(asked: Mapping[str, Any]) -> Iterator[tuple[str | tuple[int, ...], bool]]:
    """The prompts of a request to /v1/completions, and whether the tokenizer adds BOS and the like. 400 if wrong."""
    if "prompt" in asked and "messages" not in asked:
        request = TEXTS.read(judge(asked, TEXTS.fields))
        assert isinstance(request, TextRequest)
        for prompt in request.prompts:
            yield prompt, request.add_special_tokens


def chats_of(
    asked: Mapping[str, Any], dialect: Dialect
) -> Iterator[tuple[Sequence[Mapping[str, Any]], dict[str, Any]]]:
    """The conversations of a request by each protocol, control tokens as text or not, with options of LLM.chat_prompt.

    400 for a request that is wrong by all protocols, and for one without a prompt.
    """
    protocols: tuple[Protocol, ...] = ()
    if "input" in asked:
        protocols = (RESPONSE,)
    elif "messages" in asked:
        protocols = (CHATS, MESSAGE)
    elif "prompt" not in asked:
        raise invalid("request", "the request has no prompt, messages or input; give it as it was sent")
    faults: list[ApiError] = []
    for protocol in protocols:
        try:
            chat = protocol.read(judge(asked, protocol.fields))
            assert isinstance(chat, ChatRequest)
            chat.tools.check(dialect)
        except ApiError as fault:
            faults.append(fault)
            continue
        variables, _ = with_efforts(chat.variables, chat.efforts, dialect)
        for sanitize in (True, False):
            yield chat.messages, chat.rendering(variables) | {"sanitize_control_tokens": sanitize}
    if protocols and len(faults) == len(protocols):
        raise faults[0]
