"""A scripted model: an executor that emits given tokens, so that answers of any form are had without weights.

A conversation that contains `script(text)` is answered with `text`, token by token, and then ended. The logits are
those of a model that is sure of the next token of its script; where a grammar bars that token, and after it, the model
would rather come to an end than go on. So its answers obey every mask.
"""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from karat import LLM
from karat.batch import ForwardBatch
from karat.ops.executor import Pending, Runner
from karat.request_record import Request
from tests.engine.tiny import CONFIG, write_model

_SCRIPT = re.compile(r"script\[([A-Za-z0-9+/=]*)\]")
_CLOSING = '"}])>'
MAX_KEPT = 256  # requests


def script(text: str) -> str:
    """A message that has the scripted model answer with `text`."""
    return f"script[{base64.b64encode(text.encode()).decode()}]"


def write_scripted(
    folder: Path, template: str, *, special: Sequence[str] = (), added: Sequence[str] = (), eos_token: str | None = None
) -> Path:
    """A small model with a chat template, and further tokens; `special` ones are left out of texts."""
    vocab_size = CONFIG["vocab_size"] + len(special) + len(added)
    sizes = {"max_position_embeddings": 16384, "vocab_size": vocab_size}
    write_model(folder, chat_template=template, eos_token=eos_token, **sizes)
    file = folder / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.add_special_tokens(list(special))
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    backend.save(str(file))
    return folder


class Scripted(Runner):
    """Takes the model's place in `llm.engine.run`. It keeps token ids where K and V would be."""

    def __init__(self, llm: LLM) -> None:
        config = llm.engine.config
        self._slots = np.zeros(config.num_blocks * config.block_size, np.int64)
        self._vocab_size = config.vocab_size
        self._tokenizer = llm.tokenizer
        self._requests: dict[tuple[int, ...], list[int]] = {}  # prompt -> script
        self._usual = np.linspace(0, 0.5, self._vocab_size, dtype=np.float32)
        for rank, char in enumerate(_CLOSING):
            self._usual[self._tokenizer.encode(char, add_special_tokens=False)] = 20 - rank
        for token_id, token in self._tokenizer.added_tokens.items():
            self._usual[token_id] = (
                25 if token.startswith("</") or token == "<|end|>" else 1 - token_id / self._vocab_size
            )
        self._end_ids = sorted(llm.chat_end_token_ids)
        self._usual[self._end_ids] = 30
        add = llm.engine.add_request

        def add_request(request: Request, grammar: Any = None) -> None:
            add(request, grammar)
            self._note(request)

        llm.engine.add_request = add_request  # type: ignore[method-assign]
        llm.engine.run = self

    def submit(self, batch: ForwardBatch) -> Pending:
        return Pending(lambda: self._compute(batch))

    def _compute(self, batch: ForwardBatch) -> NDArray[Any]:
        self._slots[batch.slots(0)] = batch.token_ids
        owner = np.repeat(np.arange(batch.num_seqs), np.diff(batch.query_starts))
        rows = [self._logits(self._context(batch, owner[row], batch.positions[row])) for row in batch.logit_rows]
        return np.array(rows, np.float32).reshape(-1, self._vocab_size)

    def _note(self, request: Request) -> None:
        text = self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        found = _SCRIPT.findall(text)
        said = base64.b64decode(found[-1]).decode() if found else "No script."
        while len(self._requests) >= MAX_KEPT:
            del self._requests[next(iter(self._requests))]
        ids = self._tokenizer.encode(said, add_special_tokens=False)
        self._requests[tuple(request.prompt_token_ids)] = [*ids, *self._end_ids[:1]]

    def _context(self, batch: ForwardBatch, seq: int, position: int) -> tuple[int, ...]:
        positions = np.arange(position + 1)
        blocks = batch.block_tables(0)[seq, positions // batch.block_size]
        return tuple(self._slots[blocks * batch.block_size + positions % batch.block_size].tolist())

    def _logits(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        logits = self._usual.copy()
        for prompt, ids in self._requests.items():
            answer = context[len(prompt) :]
            if context[: len(prompt)] == prompt and list(answer) == ids[: len(answer)] and len(answer) < len(ids):
                logits[ids[len(answer)]] = 60
        return logits
