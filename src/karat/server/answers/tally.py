"""Tally: the tokens and times of one HTTP request while its answer grows."""

from collections.abc import Callable, Sequence
from time import perf_counter

from karat.engine.requests.request_updates import RequestUpdate
from karat.server.schema import CompletionDetails, PrefillProgress, PromptDetails, Timings, Usage


class UpdateTally:
    """`see` receives every update of every prompt. on_first is called with the seconds to the first token; the seconds
    between two updates with tokens are kept for `take_gaps`.
    """

    def __init__(
        self,
        prompt_lens: Sequence[int],
        on_first: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._clock = clock
        self._on_first = on_first
        self._gaps: list[float] = []
        self.prompt_lens = list(prompt_lens)
        self.begun = clock()
        self.num_tokens = 0
        self.num_reasoning = 0  # of these, tokens of reasoning
        self.num_cached = [0] * len(prompt_lens)
        self._first: float | None = None
        self._last = self.begun
        self._num_first = 0  # tokens that came with the first

    def see(self, index: int, update: RequestUpdate) -> None:
        """Count an update of prompt number `index`."""
        if update.progress is not None:
            self._cached(index, update.progress.num_cached)
        if update.chunks:
            self._cached(index, update.num_cached_tokens)
        num_new = 0
        for chunk in update.chunks:
            num_new += len(chunk.token_ids)
        if num_new == 0:
            return
        now = self._clock()
        if self._first is None:
            self._first, self._num_first = now, num_new
            self._on_first(now - self.begun)
        else:
            self._gaps.append(now - self._last)
        self._last = now
        self.num_tokens += num_new

    def _cached(self, index: int, num_found: int) -> None:
        """Of an answer that is resumed, its own first tokens may have been found too; they are none of the prompt."""
        self.num_cached[index] = min(num_found, self.prompt_lens[index])

    def take_gaps(self) -> list[float]:
        """The seconds between updates since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self.begun

    def usage(self) -> Usage:
        num_prompt = sum(self.prompt_lens)
        return Usage(
            num_prompt,
            self.num_tokens,
            num_prompt + self.num_tokens,
            PromptDetails(sum(self.num_cached)),
            CompletionDetails(self.num_reasoning),
        )

    def progress(self, index: int, update: RequestUpdate) -> PrefillProgress | None:
        """The prompt's progress in an update; None if it has none."""
        told = update.progress
        if told is None:
            return None
        num_cached = min(told.num_cached, told.num_tokens)
        return PrefillProgress(told.num_tokens, num_cached, told.num_computed, self.elapsed_s * 1000)

    def timings(self) -> Timings:
        num_cached = sum(self.num_cached)
        num_computed = sum(self.prompt_lens) - num_cached
        first = self._clock() if self._first is None else self._first
        prompt_ms = (first - self.begun) * 1000
        num_after, answer_ms = self.num_tokens - self._num_first, max(0, self._last - first) * 1000
        return Timings(
            num_cached,
            num_computed,
            prompt_ms,
            _ratio(prompt_ms, num_computed),
            _ratio(num_computed * 1000, prompt_ms),
            self.num_tokens,
            answer_ms,
            _ratio(answer_ms, num_after),
            _ratio(num_after * 1000, answer_ms),
        )


def _ratio(amount: float, of: float) -> float | None:
    return amount / of if of > 0 else None
