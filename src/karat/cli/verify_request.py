"""What `karat verify --request FILE` reads: the prompt of a request, for a receipt that has only digests of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.errors import ReceiptError, TokenizerError

if TYPE_CHECKING:
    from karat.engine.llm import LLM
    from karat.receipts import Receipt

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


def prompt_of(llm: "LLM", asked: Mapping[str, Any], receipt: "Receipt") -> tuple[int, ...]:
    """The prompt of a request as the receipt has it. Raises ReceiptError for a request that has none."""
    from karat.server.errors import ApiError
    from karat.server.receipt_requests import chats_of, texts_of
    from karat.text.tools.dialect import dialect_of

    found = []
    try:
        for text, add_special_tokens in texts_of(asked):
            if isinstance(text, str):
                text = tuple(llm.tokenizer.encode(text, add_special_tokens=add_special_tokens))
            found.append(text)
        for messages, options in chats_of(asked, dialect_of(llm.tokenizer)):
            found.append(llm.chat_prompt(messages, **options).token_ids)
    except (ApiError, TokenizerError) as fault:
        raise ReceiptError(f"the request cannot be read: {fault}; give it as it was sent") from None
    return receipt.prompt_among(found)
