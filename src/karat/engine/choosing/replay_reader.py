"""ReplayReader: a reader that chooses every token of an answer again, in one teacher-forced pass.

Decoding and prefill have the same bits, so the logits of all tokens are computed at the speed of a prompt, and every
token is chosen again from them, with the same rules, draws and ends. Only a step's logits are in memory.
"""

import numpy as np
from numpy.typing import NDArray

from karat.engine.choosing.choice import Choice
from karat.engine.scheduling.sequence import Sequence
from karat.errors import KaratError
from karat.outputs import CompletionOutput
from karat.receipts.verdict import Difference
from karat.request_record import Request
from karat.text import Tokenizer


class ReplayReader:
    """When `done`: `error` is why it could not be computed; else `difference` is the first different token; else
    `output` is the answer with its end.

    `choice` has a sequence of its own, to which the tokens are added as they are chosen; `sequence` is the text that is
    computed: the prompt and all tokens of the answer but the last.
    """

    def __init__(self, sequence: Sequence, choice: Choice, token_ids: tuple[int, ...], tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self.done = False
        self.error: Exception | None = None
        self.difference: Difference | None = None
        self.margin = 0.0  # where tokens differ: by how much the logit of the one chosen here is above the stated one's
        self._choice = choice
        self._token_ids = token_ids
        self._tokenizer = tokenizer

    @property
    def request(self) -> Request:
        return self._choice.request

    @property
    def output(self) -> CompletionOutput:
        """The answer as far as it was chosen again."""
        return self._choice.output()

    def read(self, first: int, rows: NDArray[np.floating]) -> int:
        for position, row in enumerate(rows, first):
            self._choose(position, row)
        self.done = first + len(rows) == len(self.sequence.token_ids)
        return len(rows)

    def fail(self, error: Exception) -> None:
        if not isinstance(error, _DifferenceError):
            self.error = error
        self.done = True

    def recover(self) -> None:
        """Some rows come again after an interrupt; those of tokens that are chosen already are passed over."""
        self._choice.recover()

    def _choose(self, position: int, row: NDArray[np.floating]) -> None:
        choice, number = self._choice, self._choice.num_tokens
        if position != choice.sequence.prompt_len - 1 + number:
            return
        if choice.finish_reason is not None:
            self._differ(
                f"output.token_ids: the answer ends after {number} tokens ({choice.finish_reason}), the receipt has "
                f"{len(self._token_ids)}",
                number,
            )
        try:
            choice.read(position, row[np.newaxis])
        except KaratError as fault:
            self._differ(f"token {number + 1}: {fault}", number)
        here, stated = choice.sequence.token_ids[-1], self._token_ids[number]
        if here != stated:
            self.margin = float(row[here]) - float(row[stated])
            margin = abs(self.margin)
            self._differ(
                f"output.token_ids: token {number + 1} of {len(self._token_ids)} is {self._shown(here)}, the receipt "
                f"has {self._shown(stated)}; margin of their logits {margin:.4g}",
                number,
                stated,
                here,
                margin,
            )

    def _differ(
        self, text: str, index: int, stated: int | None = None, here: int | None = None, margin: float | None = None
    ) -> None:
        self.difference = Difference(text, index, self._choice.sequence.prompt_len + index, stated, here, margin)
        raise _DifferenceError(text)

    def text_of(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def _shown(self, token_id: int) -> str:
        return f"{token_id} {self.text_of(token_id)!r}"


class _DifferenceError(KaratError):
    """The first difference; it ends the pass."""
