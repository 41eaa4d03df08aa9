"""What `karat run --receipt` writes: the receipts of the choices, one a line, when all have ended."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from karat.cli.generation import Task

if TYPE_CHECKING:
    from karat.outputs import StreamChunk
    from karat.receipts.signature import Signer
    from karat.request_record import Request


def settle_seed(task: Task) -> None:
    """Give a request without a seed the one that an LLM with seed 0 derives for its first request."""
    from karat.engine.choosing.sampler import derived_seed

    if task.params.seed is None:
        task.params = replace(task.params, seed=derived_seed(0, 0))


class ReceiptChunks:
    """The chunks of a stream that went by."""

    def __init__(self) -> None:
        self._chunks: list[StreamChunk] = []

    def watch(self, chunks: "Iterator[StreamChunk]") -> "Iterator[StreamChunk]":
        """Yield the chunks, and keep them."""
        for chunk in chunks:
            self._chunks.append(chunk)
            yield chunk

    def write(self, task: Task, path: Path, *, signer: "Signer | None", digests_only: bool) -> None:
        """Write the receipts. Raises ReceiptError for a choice that failed, OutputError for a file."""
        from karat.checkpoint.files import whole_file
        from karat.engine.choosing.choice import completion_of
        from karat.engine.requests.admission import resolve_max_tokens
        from karat.receipts.making import receipt_of

        request, fingerprint = _request(task), task.llm.fingerprint()
        max_tokens = resolve_max_tokens(task.params, len(task.prompt_ids), task.llm.max_model_len)
        lines = []
        for index in range(task.params.n):
            choice = completion_of([chunk for chunk in self._chunks if chunk.index == index], task.params)
            made = receipt_of(fingerprint, request, choice, max_tokens=max_tokens, digests_only=digests_only)
            lines.append((made if signer is None else signer.sign(made)).to_json())
        with whole_file(path) as file:
            file.write(b"\n".join(lines) + b"\n")


def _request(task: Task) -> "Request":
    """The request as the model had it."""
    from karat.request_record import Request

    is_chat = not isinstance(task.prompt, str)
    ends = task.llm.chat_end_token_ids if is_chat else task.llm.end_token_ids
    assert task.params.seed is not None
    return Request("0", tuple(task.prompt_ids), task.params, task.params.seed, task.prompt_text, end_token_ids=ends)


def signer_from(path: Path | None) -> "Signer | None":
    """The signer of --receipt-key. Raises UsageError."""
    if path is None:
        return None
    from karat.receipts.signature import read_key

    return read_key(path)
