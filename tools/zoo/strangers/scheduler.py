"""Which tokens are computed in the next step: chunks of prompts and decoded tokens of all running sequences."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

import numpy as np

from tools.zoo.strangers.cache import BLOCK, Blocks


@dataclass
class Sequence:
    number: int
    tokens: list[int]
    prompt: int  # tokens of the prompt
    limit: int  # tokens in all
    computed: int = 0
    table: list[int] = field(default_factory=list)  # its blocks


@dataclass
class Span:
    """One sequence's rows in a batch."""

    sequence: Sequence
    first: int  # its first row
    start: int  # tokens of it that were computed before
    count: int  # rows
    table: list[int]

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.count)

    @property
    def length(self) -> int:
        """Keys that its last row sees."""
        return self.start + self.count

    @property
    def decodes(self) -> bool:
        return self.start >= self.sequence.prompt


@dataclass
class Batch:
    step: int
    spans: list[Span]
    ids: np.ndarray  # [tokens]
    positions: np.ndarray  # [tokens]
    slots: np.ndarray  # [tokens]
    logit_rows: np.ndarray  # rows whose logits are computed
    sampled: list[tuple[Sequence, int]]  # who gets a new token, from which row of the logits


class Scheduler:
    """At most `running` sequences at a time, each with at most `chunk` tokens of its prompt in a step."""

    def __init__(
        self,
        prompts: Ids[Ids[int]],
        decode: int,
        chunk: int,
        blocks: Blocks,
        all_logits: bool,
        running: int = 2,
    ) -> None:
        self.waiting = [Sequence(n, list(ids), len(ids), len(ids) + decode) for n, ids in enumerate(prompts)]
        self.running: list[Sequence] = []
        self.chunk, self.blocks, self.all_logits, self.most = chunk, blocks, all_logits, running
        self.step = 0

    def positions(self, span: Span) -> np.ndarray:
        return np.arange(span.start, span.length)

    def slots(self, span: Span, step: int) -> np.ndarray:
        at = np.arange(span.start, span.length)
        return np.asarray(span.table)[at // BLOCK] * BLOCK + at % BLOCK

    def wanted(self, spans: list[Span]) -> list[Span]:
        """Sequences that get a new token after this step."""
        return [span for span in spans if span.length == len(span.sequence.tokens)]

    def last_rows(self, spans: list[Span]) -> list[int]:
        """The row that says what comes next, of each wanted sequence."""
        return [span.first + span.count - 1 for span in self.wanted(spans)]

    def next(self) -> Batch | None:
        """None: everything is computed."""
        while self.waiting and len(self.running) < self.most:
            self.running.append(self.waiting.pop(0))
        if not self.running:
            return None
        spans: list[Span] = []
        first = 0
        for sequence in self.running:
            count = min(self.chunk, len(sequence.tokens) - sequence.computed)
            self.blocks.grow(sequence.table, sequence.computed + count)
            spans.append(Span(sequence, first, sequence.computed, count, sequence.table))
            first += count
        rows = self.last_rows(spans)
        sampled = [(span.sequence, i) for i, span in enumerate(self.wanted(spans))]
        if self.all_logits:
            sampled = [(sequence, row) for (sequence, _), row in zip(sampled, rows, strict=True)]
            rows = list(range(first))
        return Batch(
            self.step,
            spans,
            np.concatenate([span.sequence.tokens[span.start : span.length] for span in spans]),
            np.concatenate([self.positions(span) for span in spans]),
            np.concatenate([self.slots(span, self.step) for span in spans]),
            np.asarray(rows, int),
            sampled,
        )

    def done(self, batch: Batch, new: dict[int, int]) -> None:
        """Take the sampled tokens: sequence number → token."""
        self.step += 1
        for span in batch.spans:
            span.sequence.computed = span.length
            if span.sequence.number in new:
                span.sequence.tokens.append(new[span.sequence.number])
            if span.sequence.computed >= span.sequence.limit:
                self.finish(span.sequence)

    def finish(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.table)
        self.running.remove(sequence)
