"""Parts of a run: the ranks of a tensor-parallel engine, and tokens by step and by sequence."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from karat.check.model.tokens import Tokens

Mask = NDArray[np.bool_]
_STEPS: Mapping[str, Callable[[Tokens], Mask]] = {
    "in decode steps": lambda tokens: ~tokens.is_prefill,
    "in prefill steps": lambda tokens: tokens.is_prefill,
    "in later chunks of a prompt": lambda tokens: tokens.is_prefill & (tokens.step_start > 0),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Some tokens. steps: a key of _STEPS, "from" or "in" with the number of a step; sequence: one of several."""

    steps: str = ""
    number: int = 0
    sequence: int | None = None

    @property
    def text(self) -> str:
        numbered = {"from": f"from step {self.number} on", "in": f"in step {self.number}"}
        said = [numbered.get(self.steps, self.steps)] if self.steps else []
        return ", ".join(said + ([] if self.sequence is None else [f"in sequence {self.sequence}"]))

    def of(self, tokens: Tokens) -> Mask:
        """[tokens]"""
        found = np.ones(tokens.num_tokens, bool)
        if self.steps:
            numbered = {"from": tokens.steps >= self.number, "in": tokens.steps == self.number}
            found &= numbered[self.steps] if self.steps in numbered else _STEPS[self.steps](tokens)
        if self.sequence is not None:
            found &= tokens.sequences == self.sequence
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """rank: (rank, of how many); None: all. rows: None: all tokens. extent: which heads or columns, for people."""

    rank: tuple[int, int] | None = None
    rows: Rows | None = None
    extent: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """on rank 1 of 2, in decode steps"""
        rank = [] if self.rank is None else ["on rank {} of {}".format(*self.rank)]
        return ", ".join(rank + ([] if self.rows is None else [self.rows.text]))


def row_parts(tokens: Tokens) -> Iterator[Rows]:
    """Natural parts of the tokens, fewer words before more."""
    sequences = [None] if tokens.is_single else [None, *np.unique(tokens.sequences).tolist()]
    steps = [(name, 0) for name in _STEPS] if tokens.num_steps > 1 else []
    numbered = [("from", number) for number in range(1, tokens.num_steps)]
    numbered += [("in", number) for number in range(tokens.num_steps)] if tokens.num_steps > 1 else []
    yield from (Rows(sequence=sequence) for sequence in sequences if sequence is not None)
    for sequence in sequences:
        yield from (Rows(name, number, sequence) for name, number in steps + numbered)
