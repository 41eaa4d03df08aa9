"""How much of a prompt a step computes, so that it takes no longer than it may. Pure: who has a clock calls `note`.

Chunks change no bit of the native executor, so they may follow the clock. Work is counted in tokens: one is a token's
linear layers, and attention adds `key_work` for every key that a token sees.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median_high

FIRST_WORK_PER_S = 80.0  # assumed until a step was measured: little, so that the first one is short
PREFILL_SHARE = 0.25  # of a step, which prefills have also where decoding alone takes as long as a step may
_NUM_KEPT = 5
_LEAST_S = 1e-6  # of a step, should a clock say less


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Work of one step: `decoding` where sequences decode, theirs included, `alone` where none does.

    Prefills have `least` in any case, and a token.
    """

    key_work: float = 0.0
    decoding: float = inf
    least: float = inf
    alone: float = inf

    def of_prefills(self, decoded: float | None) -> float:
        """What is left for prefills beside decoding of so much work; None: nobody decodes."""
        return self.alone if decoded is None else max(self.decoding - decoded, self.least)

    def work(self, start: int, num_tokens: int) -> float:
        """Of `num_tokens` tokens of a sequence from position `start` on."""
        return num_tokens + self.key_work * num_tokens * (start + (num_tokens + 1) / 2)

    def num_tokens(self, start: int, work: float) -> float:
        """How many tokens from position `start` on are so much work; not rounded."""
        # n + key_work * n * (start + (n + 1) / 2) = work, solved for n in the form that cancels nothing.
        linear = 1 + self.key_work * (start + 0.5)
        return work if work == inf else 2 * work / (linear + sqrt(linear * linear + 2 * self.key_work * work))


UNBOUNDED = StepBudget()


class Pace:
    """How fast prompts go, from the steps before: the median of the last five that computed part of one.

    So a step that something else slowed down changes nothing, and the growing context of a prompt is followed.
    """

    def __init__(self, key_work: float) -> None:
        self._key_work = key_work
        self._seconds: deque[float] = deque(maxlen=_NUM_KEPT)  # for one of work

    @property
    def work_per_s(self) -> float:
        return 1 / median_high(self._seconds) if self._seconds else FIRST_WORK_PER_S

    def note(self, work: float, seconds: float) -> None:
        """A step that computed part of a prompt was so much work and took so long."""
        self._seconds.append(max(seconds, _LEAST_S) / work)

    def budget(self, decoding_s: float = inf, alone_s: float = inf) -> StepBudget:
        """Of a step that takes at most so long where sequences decode, and where none does."""
        decoding = decoding_s * self.work_per_s
        return StepBudget(self._key_work, decoding, decoding * PREFILL_SHARE, alone_s * self.work_per_s)
