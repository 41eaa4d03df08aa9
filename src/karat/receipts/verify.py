"""verify: an answer's receipt, replayed in one teacher-forced pass.

Decoding and prefill have the same bits, so the logits of all tokens are computed at the speed of a prompt, and every
token is chosen again from them, with the same rules, draws and ends.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from karat.engine.choice import Choice
from karat.engine.llm import LLM
from karat.engine.sequence import Sequence
from karat.errors import KaratError, ReceiptError
from karat.receipts.fingerprint import fingerprint_of
from karat.receipts.receipt import Receipt, text_digest
from karat.request import MAX_SEED


@dataclass(frozen=True, slots=True)
class Verdict:
    """finding is the first difference; None: the answer is identical."""

    num_tokens: int
    elapsed_s: float
    finding: str | None = None

    @property
    def is_identical(self) -> bool:
        return self.finding is None

    def __str__(self) -> str:
        if self.finding is None:
            return f"identical, {self.num_tokens} tokens, {self.elapsed_s:.1f} s"
        return f"different: {self.finding}"


def verify(llm: LLM, receipt: Receipt) -> Verdict:
    """Whether this model answers as the receipt says.

    Raises ReceiptError, which is no verdict, if the model or its rules are others than the receipt's, with the names of
    the parts that differ; and the errors of LLM.logits.
    """
    before = perf_counter()
    num_tokens = len(receipt.output.token_ids)
    if names := receipt.altered():
        finding: str | None = f"the receipt was changed after it was written: {', '.join(names)}"
    else:
        if names := receipt.fingerprint.differing(here := fingerprint_of(llm)):
            parts = [f"{name} ({getattr(receipt.fingerprint, name)}, here {getattr(here, name)})" for name in names]
            raise ReceiptError(
                f"the receipt is of another {', '.join(parts)}; no verdict: load what it was made with (model, "
                "--quantize, --kv-dtype, --executor), with a Karat of that numeric contract"
            )
        finding = _first_difference(llm, receipt)
    return Verdict(num_tokens, perf_counter() - before, finding)


def _first_difference(llm: LLM, receipt: Receipt) -> str | None:
    if receipt.end_token_ids not in (_sorted(llm.end_token_ids), _sorted(llm.chat_end_token_ids)):
        return f"end_token_ids {list(receipt.end_token_ids)} are not the model's, {list(_sorted(llm.end_token_ids))}"
    for name, ids in (("prompt", receipt.prompt.token_ids), ("output", receipt.output.token_ids)):
        if (largest := max(ids, default=0)) >= llm.config.vocab_size:
            return f"{name}.token_ids: {largest} is no token of the model, which has {llm.config.vocab_size}"
    if int(receipt.seed) > MAX_SEED:
        return f"seed: {receipt.seed} is no seed; the largest is {MAX_SEED}"
    try:
        replay = _Replay(llm, receipt)
        llm.write_logits((*receipt.prompt.token_ids, *receipt.output.token_ids[:-1]), replay)
    except _DifferenceError as found:
        return str(found)
    return replay.end()


class _DifferenceError(Exception):
    """The first difference; it ends the pass."""


class _Replay:
    """A target of logits that chooses each token of the output again. Only a chunk's logits are in memory."""

    def __init__(self, llm: LLM, receipt: Receipt) -> None:
        try:
            request = receipt.request()
        except (KaratError, ValueError) as fault:
            raise _DifferenceError(f"sampling: {fault}") from None
        self._tokenizer = llm.tokenizer
        self._output, self._prompt_len = receipt.output, len(receipt.prompt.token_ids)
        sequence = Sequence(0, list(request.prompt_token_ids), self._prompt_len, 0)
        self._choice = Choice(request, receipt.choice, sequence, llm.tokenizer, receipt.sampling.max_tokens)

    def __setitem__(self, positions: slice, rows: NDArray[np.floating]) -> None:
        for position, row in enumerate(rows, positions.start):
            if position == self._prompt_len - 1 + self._choice.num_tokens:  # neither prompt nor seen before
                self._choose(row)

    def _choose(self, row: NDArray[np.floating]) -> None:
        choice, number = self._choice, self._choice.num_tokens
        if choice.finish_reason is not None:
            raise _DifferenceError(
                f"output.token_ids: the answer ends after {number} tokens ({choice.finish_reason}), the receipt has "
                f"{len(self._output.token_ids)}"
            )
        try:
            choice.read_last(row)
        except KaratError as fault:
            raise _DifferenceError(f"token {number + 1}: {fault}") from None
        here, stated = choice.sequence.token_ids[-1], self._output.token_ids[number]
        if here != stated:
            margin = f"{abs(float(row[here]) - float(row[stated])):.4g}" if stated < len(row) else "none"
            raise _DifferenceError(
                f"output.token_ids: token {number + 1} of {len(self._output.token_ids)} is {self._shown(here)}, the "
                f"receipt has {self._shown(stated)}; margin of their logits {margin}"
            )

    def end(self) -> str | None:
        """The first difference in how the answer ends, after all its tokens."""
        made = self._choice.output()
        pairs: dict[str, tuple[object, object]] = {
            "finish_reason": (made.finish_reason, self._output.finish_reason),
            "stop_reason": (made.stop_reason, self._output.stop_reason),
            "text_sha256": (text_digest(made.text), self._output.text_sha256),
        }
        for name, (here, stated) in pairs.items():
            if here != stated:
                return f"output.{name} is {here!r}, the receipt has {stated!r}"
        return None

    def _shown(self, token_id: int) -> str:
        return f"{token_id} {self._tokenizer.decode([token_id], skip_special_tokens=False)!r}"


def _sorted(token_ids: frozenset[int]) -> tuple[int, ...]:
    return tuple(sorted(token_ids))
