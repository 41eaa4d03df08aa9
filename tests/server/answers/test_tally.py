"""What is counted of a request: tokens, times and what was cached."""

from karat.engine.engine import PromptProgress, RequestUpdate
from karat.outputs import StreamChunk
from karat.server.answers.tally import UpdateTally


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def update(num_tokens: int, progress: PromptProgress | None = None, num_cached: int = 0) -> RequestUpdate:
    chunks = (StreamChunk(0, "", tuple(range(num_tokens))),) if num_tokens else ()
    return RequestUpdate("a", chunks, None, progress, num_cached_tokens=num_cached)


def test_times_and_tokens() -> None:
    clock, firsts = Clock(), list[float]()
    tally = UpdateTally([10, 6], firsts.append, clock)
    clock.now = 1.0
    tally.see(0, update(0, PromptProgress(10, 4, 10)))
    assert firsts == [] and tally.timings().predicted_ms == 0 and tally.timings().predicted_per_second is None
    for now, number, num_tokens in ((2.0, 0, 1), (2.5, 1, 2), (4.0, 0, 1)):
        clock.now = now
        tally.see(number, update(num_tokens, None, 0 if number else 4))
    assert firsts == [2.0] and tally.take_gaps() == [0.5, 1.5] and tally.take_gaps() == []
    made = tally.timings()
    assert (made.cache_n, made.prompt_n, made.prompt_ms, made.prompt_per_second) == (4, 12, 2000, 6)
    assert (made.predicted_n, made.predicted_ms, made.predicted_per_second) == (4, 2000, 1.5)
    usage = tally.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (16, 4, 20)
    assert usage.prompt_tokens_details.cached_tokens == 4
    told = tally.progress(0, update(0, PromptProgress(10, 4, 8)))
    assert told is not None and (told.total, told.cache, told.processed, told.time_ms) == (10, 4, 8, 4000)


def test_what_was_cached_is_told_with_the_first_tokens() -> None:
    tally = UpdateTally([10])
    tally.see(0, update(1, num_cached=4))
    assert (tally.timings().cache_n, tally.timings().prompt_n) == (4, 6)
    assert tally.usage().prompt_tokens_details.cached_tokens == 4
