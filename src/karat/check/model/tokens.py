"""The tokens of a trace: their sequences and steps, and the table of a cache.

The table of a cache says for each query token and each position of its context which token's K and V are found there.
Faulty caches are other tables, so they are here too.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from karat.check.trace.format import TraceInfo, counted
from karat.errors import TraceError

NOBODY = -1  # a slot that holds zeros
_LARGEST_SHIFT = 2  # of an engine's positions; a trace with larger ones begins in the middle
# Faults of a cache. "right" is the table without a fault.
CACHE_FAULTS: Mapping[str, str] = {
    "not-written": "K and V of tokens after the first step never reach the cache",
    "late": "K and V of a step are written after its attention has run",
    "slot-late": "K and V are written one slot too late",
    "slot-early": "K and V are written one slot too early",
    "restart": "every step writes from slot 0 on, over what is there",
    "frozen": "every step after the first writes to the same slots",
    "decode-lost": "K and V of decoded tokens never reach the cache",
    "decode-over": "K and V of decoded tokens overwrite those of the prompt's last token",
    "decode-frozen": "K and V of all decoded tokens are written to the slot behind the prompt",
}


@dataclass(frozen=True, slots=True)
class Misplaced:
    """K and V of each step from `step` on are written `by` slots too late (below 0: too early)."""

    by: int
    step: int

    @property
    def text(self) -> str:
        where = f"{abs(self.by)} slot{'s' * (abs(self.by) > 1)} too {'late' if self.by > 0 else 'early'}"
        return f"K and V are written {where} from step {self.step} on"


@dataclass(frozen=True, slots=True)
class Foreign:
    """From step `step` on, `length` positions of a sequence hold what belongs to others.

    start: the first of them; source: the sequence and the first position of what is there, None: zeros.
    """

    sequence: int
    start: int
    length: int
    source: tuple[int, int] | None
    step: int

    @property
    def text(self) -> str:
        def span(start: int) -> str:
            return f"position {start}" if self.length == 1 else f"positions {start}-{start + self.length - 1}"

        held = "zeros" if self.source is None else f"those of sequence {self.source[0]}, {span(self.source[1])}"
        verb = "holds" if self.length == 1 else "hold"
        return f"{span(self.start)} of sequence {self.sequence} {verb} {held}, from step {self.step} on"


CacheFault = str | Misplaced | tuple[Foreign, ...]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Each [tokens]: ids, positions, sequences and steps. context: the number of tokens of the longest sequence.

    stated: the positions that the trace states; None: the right ones.
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    sequences: NDArray[np.int64]
    steps: NDArray[np.int64]
    context: int
    stated: NDArray[np.int64] | None = None
    _sources: dict[CacheFault, NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, info: TraceInfo) -> "Tokens":
        """Positions are counted; an engine may state wrong ones.

        Raises TraceError where these rather say that the trace is not whole: it begins later, or its sequences are not
        told apart.
        """
        count = info.num_tokens
        positions, stated = np.array(counted(info.sequences), np.int64), np.array(info.positions, np.int64)
        sequences = np.array(info.sequences, np.int64)
        steps = np.searchsorted(np.array(info.steps), np.arange(count), side="right") - 1
        for sequence in np.unique(sequences):
            of_one = stated[sequences == sequence]
            if of_one[0] > _LARGEST_SHIFT:
                raise TraceError(
                    f"sequence {sequence} has positions {of_one[:8].tolist()}…; a trace needs all tokens "
                    "from position 0 on, in order: start before the prompt, with an empty cache"
                )
        again = np.flatnonzero((np.diff(stated) < 0) & (np.diff(sequences) == 0) & (np.diff(steps) == 0)) + 1
        if len(again):
            raise TraceError(
                f"token {again[0]} has position {stated[again[0]]}, after {stated[again[0] - 1]} in the same step and "
                "sequence: if another sequence begins there, state sequences=[0, 0, …, 1, 1, …], one number a token"
            )
        wrong = None if np.array_equal(stated, positions) else stated
        ids = np.array(info.token_ids, np.int64)
        return cls(ids, positions, sequences, steps, int(positions.max()) + 1, wrong)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_steps(self) -> int:
        return int(self.steps[-1]) + 1

    @cached_property
    def is_single(self) -> bool:
        """Whether there is one sequence only. Tokens then stand in the order of their positions."""
        return bool((self.sequences == self.sequences[0]).all())

    @cached_property
    def index_in_step(self) -> NDArray[np.int64]:
        """[tokens]: the number of tokens of the same sequence before a token in its step."""
        return self.positions - self.step_start

    @cached_property
    def step_start(self) -> NDArray[np.int64]:
        """[tokens]: position of the first token of the same sequence and step."""
        chunk = self._chunk
        firsts = np.full(chunk.max() + 1, self.context, np.int64)
        np.minimum.at(firsts, chunk, self.positions)
        return firsts[chunk]

    @cached_property
    def step_len(self) -> NDArray[np.int64]:
        """[tokens]: number of tokens of the same sequence and step."""
        counts: NDArray[np.int64] = np.bincount(self._chunk)[self._chunk]
        return counts

    @property
    def step_end(self) -> NDArray[np.int64]:
        """[tokens]: the position behind the last token of the same sequence and step."""
        return self.step_start + self.step_len

    @cached_property
    def in_step(self) -> NDArray[np.bool_]:
        """[tokens, context]: whether the key of a position exists, visible or not, when a step computes a token."""
        return np.arange(self.context) < self.step_end[:, None]

    @cached_property
    def is_prefill(self) -> NDArray[np.bool_]:
        """[tokens]: whether a token is of a prompt: the first of its sequence, or computed beside others of it."""
        return (self.step_start == 0) | (self.step_len > 1)

    @cached_property
    def before(self) -> NDArray[np.int64]:
        """[tokens]: the token of the same sequence before each, or NOBODY."""
        earlier = np.maximum(self.positions - 1, 0)
        return np.where(self.positions > 0, self.owner[self.sequences, earlier], NOBODY)

    @cached_property
    def after_in_step(self) -> NDArray[np.int64]:
        """[tokens]: the next token of the same sequence and step, or NOBODY."""
        later = np.minimum(self.positions + 1, self.context - 1)
        return np.where(self.positions + 1 < self.step_end, self.owner[self.sequences, later], NOBODY)

    @cached_property
    def chunks(self) -> list[NDArray[np.int64]]:
        """The tokens of each pair of sequence and step."""
        return [np.flatnonzero(self._chunk == number) for number in np.unique(self._chunk)]

    @cached_property
    def _chunk(self) -> NDArray[np.int64]:
        """[tokens]: a number for each pair of sequence and step."""
        keys = self.sequences * self.num_steps + self.steps
        return np.unique(keys, return_inverse=True)[1]

    def sources(self, fault: CacheFault = "right") -> NDArray[np.int64]:
        """[tokens, context]: the token whose K and V a query token finds at a position of its sequence, or NOBODY.

        Positions after the query have their token too. The mask decides what is visible.
        """
        if fault not in self._sources:
            self._sources[fault] = self._find_sources(fault)
        return self._sources[fault]

    def _find_sources(self, fault: CacheFault) -> NDArray[np.int64]:
        count, owner = self.num_tokens, self.owner
        right = owner[self.sequences]  # [tokens, context]
        if isinstance(fault, tuple):
            return self._with_foreign(right, fault)
        if fault == "right":
            return right
        position = np.arange(self.context)[None, :]
        start = self.step_start[:, None]
        late = self.steps[right] > 0
        match fault:
            case "not-written":
                return np.where((right != NOBODY) & late, NOBODY, right)
            case "decode-lost":
                return np.where((right != NOBODY) & ~self.is_prefill[right], NOBODY, right)
            case "late":
                return np.where((position >= start) & (self.steps[:, None] > 0), NOBODY, right)
            case "slot-late":
                return np.concatenate((np.full((count, 1), NOBODY), right[:, :-1]), axis=1)
            case "slot-early":
                shifted = np.concatenate((right[:, 1:], np.full((count, 1), NOBODY)), axis=1)
                # Nothing is written yet behind the newest slot.
                newest = self.step_end[:, None] - 1
                return np.where(position >= newest, NOBODY, shifted)
        return self._replayed(fault)

    def _with_foreign(self, right: NDArray[np.int64], parts: tuple[Foreign, ...]) -> NDArray[np.int64]:
        found = right.copy()
        for part in parts:
            held = np.full(part.length, NOBODY, np.int64)
            if part.source is not None:
                sequence, first = part.source
                held = self.owner[sequence, first : first + part.length]
            rows = np.flatnonzero((self.sequences == part.sequence) & (self.steps >= part.step))
            found[rows, part.start : part.start + part.length] = held
        return found

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """[sequences, context]: the token of each position of each sequence, or NOBODY."""
        owner = np.full((int(self.sequences.max()) + 1, self.context), NOBODY, np.int64)
        owner[self.sequences, self.positions] = np.arange(self.num_tokens)
        return owner

    def _replayed(self, fault: str | Misplaced) -> NDArray[np.int64]:
        """What a cache holds when each step writes to the wrong place, step by step."""
        found = np.full((self.num_tokens, self.context), NOBODY, np.int64)
        slots = np.full((int(self.sequences.max()) + 1, self.context), NOBODY, np.int64)
        first_len: dict[int, int] = {}
        for step in range(self.num_steps):
            of_step = np.flatnonzero(self.steps == step)
            for sequence in np.unique(self.sequences[of_step]):
                tokens = of_step[self.sequences[of_step] == sequence]
                begin = int(self.positions[tokens[0]])
                if isinstance(fault, Misplaced):
                    begin += fault.by * (step >= fault.step)
                elif not fault.startswith("decode-"):
                    begin = 0 if fault == "restart" else first_len.get(int(sequence), 0)
                elif not self.is_prefill[tokens[0]]:
                    behind = int((self.is_prefill & (self.sequences == sequence)).sum())
                    begin = behind - (fault == "decode-over")
                end = min(begin + len(tokens), self.context)
                skipped = max(0, -begin)
                slots[sequence, begin + skipped : end] = tokens[skipped : end - begin]
                first_len.setdefault(int(sequence), len(tokens))
                found[tokens] = slots[sequence]
        return found
