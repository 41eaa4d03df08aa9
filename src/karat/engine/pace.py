"""How much of a prompt a step computes, so that it takes no longer than it may. Pure: who has a clock calls `note`.

Chunks change no bit of the native executor, so they may follow the clock. Work is counted in tokens: one is a token's
linear layers, and attention adds `key_work` for every key that a token sees.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median_high

FIRST_WORK_PER_S = 80.0  # assumed until a step was measured: little, so that the first one is short
PREFILL_SHARE = 0.25  # of the bound, which prefills have also where decoding alone takes as long
_NUM_KEPT = 5
_LEAST_SHARE = 1 / 64  # of a step that is prefills', should it be faster than decoding alone
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
    """How fast steps are: the medians of the last five that only decoded, and of the last five that did more.

    What a step takes beyond one that only decodes counts for prefills: where reading the weights is most of a step, it
    is that with few tokens too, and less of a prompt would save nothing. By the median a step that something else
    slowed down changes nothing, and the growing context of a prompt is followed.
    """

    def __init__(self, key_work: float) -> None:
        self._key_work = key_work
        self._decoding: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)  # seconds and work of steps
        self._seconds: deque[float] = deque(maxlen=_NUM_KEPT)  # for one of work of a prefill

    @property
    def work_per_s(self) -> float:
        """Of prefills, beyond what decoding takes."""
        return 1 / median_high(self._seconds) if self._seconds else FIRST_WORK_PER_S

    def note(self, seconds: float, *, decoded: float, prefilled: float) -> None:
        """A step of so much work took so long."""
        seconds = max(seconds, _LEAST_S)
        if not prefilled:
            self._decoding.append((seconds, decoded))
            return
        usual_s, usual = self._usual() if decoded else (0.0, 0.0)
        more = max(prefilled + decoded - usual, prefilled / 2)
        self._seconds.append(max(seconds - usual_s, seconds * _LEAST_SHARE) / more)

    def budget(self, decoding_s: float = inf, alone_s: float = inf) -> StepBudget:
        """Of a step that takes at most so long where sequences decode, and where none does."""
        usual_s, usual = self._usual()
        decoding = (decoding_s - usual_s) * self.work_per_s + usual
        least = decoding_s * PREFILL_SHARE * self.work_per_s
        return StepBudget(self._key_work, decoding, least, alone_s * self.work_per_s)

    def _usual(self) -> tuple[float, float]:
        """Seconds and work of a step that only decodes."""
        return median_high(self._decoding) if self._decoding else (0.0, 0.0)
