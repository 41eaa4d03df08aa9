"""Pace: how much of a prompt a step computes, so that it keeps its time limit. No clock here: callers `note` times.

The sizes of chunks change no bit of the native executor, so they may follow the clock. Work is counted in tokens: 1 is
a token's linear layers, and attention adds `key_work` for every key that the token sees.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median_high

FIRST_WORK_PER_S = 80.0  # assumed before the first measured step: low, so that this step is short
PREFILL_SHARE = 0.25  # of the time limit: prefills get this even if decoding alone takes the whole time
BESIDE_STEP_S = 0.02  # about the most that other work (verifications, comparisons) adds to a step beside requests
PROMPT_STEP_S = 0.5  # the longest step while a caller follows its prompt's progress and no sequence decodes
_NUM_KEPT = 5
_LEAST_SHARE = 1 / 64  # of a step's time that counts for prefills, if the step is faster than decoding alone
_LEAST_S = 1e-6  # of a step, if the clock measures less


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The work of one step: `decoding` if sequences decode (their work included), `alone` if none does.

    Prefills get at least the work `least`, and at least one token.
    """

    key_work: float = 0.0
    decoding: float = inf
    least: float = inf
    alone: float = inf

    def of_prefills(self, decoded: float | None) -> float:
        """The work left for prefills beside `decoded` work of decoding sequences; None means that none decodes."""
        return self.alone if decoded is None else max(self.decoding - decoded, self.least)

    def work(self, start: int, num_tokens: int) -> float:
        """The work of `num_tokens` tokens of a sequence from position `start` on."""
        return num_tokens + self.key_work * num_tokens * (start + (num_tokens + 1) / 2)

    def num_tokens(self, start: int, work: float) -> float:
        """The number of tokens from position `start` on whose work is `work`; not rounded."""
        # n + key_work * n * (start + (n + 1) / 2) = work, solved for n in the form that cancels nothing.
        linear = 1 + self.key_work * (start + 0.5)
        return work if work == inf else 2 * work / (linear + sqrt(linear * linear + 2 * self.key_work * work))


UNBOUNDED = StepBudget()


def pause_after(seconds: float) -> float:
    """The seconds that requests have for themselves after other work of so many: it gets PREFILL_SHARE of the time."""
    return seconds * (1 / PREFILL_SHARE - 1)


class Pace:
    """The speed of steps: medians of the last five steps that only decoded, and of the last five with prefills.

    The time of a step beyond that of a step that only decodes counts for prefills. If reading the weights takes most of
    a step, it does so with few tokens too, and computing less of a prompt saves nothing. With medians, a step that
    something else slowed down changes nothing, while the growing context of a prompt is followed.
    """

    def __init__(self, key_work: float) -> None:
        self._key_work = key_work
        self._decoding: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)  # seconds and work of steps
        self._seconds: deque[float] = deque(maxlen=_NUM_KEPT)  # for a work of 1 of a prefill
        self._beside: deque[float] = deque(maxlen=_NUM_KEPT)  # the same beside requests, which reads more logits

    @property
    def work_per_s(self) -> float:
        """Work of prefills in a second, beyond the time of decoding."""
        return 1 / median_high(self._seconds) if self._seconds else FIRST_WORK_PER_S

    def note(self, seconds: float, *, decoded: float, prefilled: float, beside: bool = False) -> float:
        """Record a step of `seconds` with `decoded` work of decoding and `prefilled` work of prefills.

        `beside`: the prefills are work beside requests. Returns the seconds that count for the prefills.
        """
        seconds = max(seconds, _LEAST_S)
        if not prefilled:
            self._decoding.append((seconds, decoded))
            return 0.0
        usual_s, usual = self._usual() if decoded else (0.0, 0.0)
        more = max(prefilled + decoded - usual, prefilled / 2)
        more_s = max(seconds - usual_s, seconds * _LEAST_SHARE)
        (self._beside if beside else self._seconds).append(more_s / more)
        return more_s

    def budget(self, decoding_s: float = inf, alone_s: float = inf) -> StepBudget:
        """The budget of a step that takes at most `decoding_s` if sequences decode, `alone_s` if none does."""
        (usual_s, usual), speed = self._usual(), self.work_per_s
        decoding = (decoding_s - usual_s) * speed + usual
        return StepBudget(self._key_work, decoding, decoding_s * PREFILL_SHARE * speed, alone_s * speed)

    def budget_beside(self) -> StepBudget:
        """The budget of a step with work beside requests: it takes about BESIDE_STEP_S longer than without."""
        # The slowest of the last steps: tokens whose logits are read take longer than those of a prompt before them.
        work = BESIDE_STEP_S / max(self._beside, default=1 / FIRST_WORK_PER_S)
        return StepBudget(self._key_work, decoding=0.0, least=work, alone=work)

    def _usual(self) -> tuple[float, float]:
        """Seconds and work of a step that only decodes."""
        return median_high(self._decoding) if self._decoding else (0.0, 0.0)
