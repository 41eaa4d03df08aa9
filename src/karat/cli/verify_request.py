"""What `karat verify --request FILE` reads: the prompt of a request, for a receipt that has only digests of it."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.errors import ReceiptError, TokenizerError

if TYPE_CHECKING:
    from karat.engine.intake import Prompt
    from karat.engine.llm import LLM
    from karat.receipts import Receipt
    from karat.server.openai.requests import ChatRequest

_MAX_BYTES = 64 * 1024**2


def read_request(path: Path) -> Mapping[str, Any]:
    """The JSON object of a file: the body of a request to the server, or {"prompt": …} or {"messages": […]}.

    Raises ReceiptError for anything else.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        value = json.loads(content) if len(content) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError) as fault:
        raise ReceiptError(f"{path}: {fault}; expected the request as JSON") from None
    if not isinstance(value, dict):
        raise ReceiptError(f"{path}: expected the request as a JSON object of at most {_MAX_BYTES} bytes")
    return value


def prompt_of(llm: "LLM", asked: Mapping[str, Any], receipt: "Receipt") -> "Prompt":
    """The prompt of a request as the receipt has it: of several readings, the one of its digest; else the first.

    Raises ReceiptError for a request that has none.
    """
    from karat.receipts.canonical import digest
    from karat.server.errors import ApiError

    first: Prompt | None = None
    complaint = "it has no prompt, messages or input"
    try:
        for prompt in _readings(llm, asked):
            ids = prompt if isinstance(prompt, tuple) else tuple(prompt.token_ids)
            if receipt.prompt.token_ids in (ids, digest(ids)):
                return ids
            first = ids if first is None else first
    except (ApiError, TokenizerError) as fault:
        complaint = str(fault)
    if first is None:
        raise ReceiptError(f"the request cannot be read: {complaint}; give it as it was sent")
    return first


def _readings(llm: "LLM", asked: Mapping[str, Any]) -> Iterator[Any]:
    """The prompt in each way in which a request may have been sent: by each protocol, control tokens as text or not."""
    from karat.server.anthropic.requests import read_message
    from karat.server.bodies import read_body
    from karat.server.errors import ApiError
    from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT, fields_of
    from karat.server.openai.requests import read_chat, read_text
    from karat.server.openai.response_requests import read_response

    content = json.dumps(asked).encode()
    if "prompt" in asked and "messages" not in asked:
        text = read_text(read_body(content, fields_of(TEXT)))
        for prompt in text.prompts:
            yield (
                prompt
                if isinstance(prompt, tuple)
                else tuple(llm.tokenizer.encode(prompt, add_special_tokens=text.add_special_tokens))
            )
        return
    if "input" in asked:
        readers: list[Callable[[], ChatRequest]] = [lambda: read_response(content, RESPONSES).chat]
    else:
        readers = [
            lambda: read_chat(read_body(content, fields_of(CHAT))),
            lambda: read_message(content, MESSAGES).chat,
        ]
    for number, read in enumerate(readers):
        try:
            chat = read()
        except ApiError:
            if number == 0 and len(readers) > 1 and "messages" in asked:
                continue  # then it is of the other protocol, or the second reading says what is wrong
            raise
        variables = dict(chat.variables)
        generation = variables.pop("add_generation_prompt", True)
        for sanitize in (True, False):
            yield llm.chat_prompt(
                chat.messages,
                add_generation_prompt=generation,
                chat_template_kwargs=variables or None,
                sanitize_control_tokens=sanitize,
            )
