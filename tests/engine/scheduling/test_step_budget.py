"""Steps bounded in time: how much of a prompt they compute, on clocks and models that are made up."""

from collections.abc import Callable
from itertools import cycle
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.batch import ForwardBatch
from karat.engine.engine import Engine
from karat.engine.scheduling.step_budget import BESIDE_STEP_S, FIRST_WORK_PER_S, PREFILL_SHARE, Pace, StepBudget
from karat.ops.native import unavailable_reason
from tests.engine.fakes import BYTES, SAMPLED, FakeModel, alone, drive, make_config, make_engine, request
from tests.engine.schedules import compute, make, sequence, sizes

# The budget


@given(st.floats(0, 0.01), st.integers(0, 100_000), st.floats(0, 10_000))
def test_work_and_tokens_are_inverse(key_work: float, start: int, work: float) -> None:
    budget = StepBudget(key_work)
    assert budget.work(start, 1) == pytest.approx(1 + key_work * (start + 1)), "a token sees itself"
    num_tokens = budget.num_tokens(start, work)
    exact = num_tokens + key_work * (num_tokens * start + num_tokens * (num_tokens + 1) / 2)
    assert exact == pytest.approx(work, rel=1e-9)


def test_a_step_is_filled_up_to_its_bound() -> None:
    scheduler = make(num_blocks=1000, max_num_batched_tokens=512)
    scheduler.add(sequence(0, 4, 100))
    compute(scheduler, scheduler.schedule(StepBudget(0.0, 9, 1)))
    scheduler.add(sequence(1, 1000))
    scheduler.add(sequence(2, 10))
    budget = StepBudget(0.01, decoding=20, least=5)
    (first, chunk) = scheduler.schedule(budget)
    assert (first.num_tokens, chunk.seq.seq_id) == (1, 1)
    beside = budget.work(4, 1)
    assert beside + budget.work(0, chunk.num_tokens) <= 20 < beside + budget.work(0, chunk.num_tokens + 1)
    compute(scheduler, [first, chunk])
    later = scheduler.schedule(budget)
    assert 0 < later[1].num_tokens < chunk.num_tokens, "a longer context makes less of it"
    assert sizes(scheduler.schedule()) == {0: 1, 1: 511}, "without a budget a step is as large as it may be"


def test_who_decodes_is_served_whatever_the_bound_and_a_prompt_gets_on() -> None:
    scheduler = make(num_blocks=1000, max_num_batched_tokens=512)
    for seq_id in range(3):
        scheduler.add(sequence(seq_id, 4, 100))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(3, 500))
    assert sizes(scheduler.schedule(StepBudget(0.0, decoding=2, least=2))) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert sizes(scheduler.schedule(StepBudget(0.0, decoding=2, least=0.1))) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_where_nobody_decodes_chunks_are_whole_unless_somebody_is_told() -> None:
    scheduler = make(num_blocks=1000, max_num_batched_tokens=512)
    scheduler.add(sequence(0, 2000))
    assert sizes(scheduler.schedule(StepBudget(0.0, decoding=20, least=5))) == {0: 512}
    assert sizes(scheduler.schedule(StepBudget(0.0, decoding=20, least=5, alone=50))) == {0: 50}


def test_work_beside_requests_takes_turns_with_prompts_and_leaves_who_decodes_in_every_step() -> None:
    scheduler = make(num_blocks=1000, max_num_batched_tokens=512)
    scheduler.add(sequence(0, 4, 100))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(1, 1000))
    for seq_id in (2, 3):
        scheduler.add(sequence(seq_id, 1000, priority=1, is_beside=True))
    requests, beside = StepBudget(0.0, decoding=20, least=5), StepBudget(0.0, decoding=0, least=7, alone=7)
    assert sizes(scheduler.schedule(beside, beside=True)) == {0: 1}, "the prompt came first, and waits"
    assert sizes(scheduler.schedule(requests, beside=False)) == {0: 1, 1: 19}
    compute(scheduler, scheduler.schedule(requests, beside=False))
    assert sizes(scheduler.schedule(beside, beside=True)) == {0: 1, 2: 7}, "one after the other"
    assert sizes(scheduler.schedule()) == {0: 1, 1: 511}, "unless both are asked for"
    for seq_id in (0, 1):
        scheduler.remove(next(seq for seq in scheduler._running if seq.seq_id == seq_id))
    assert sizes(scheduler.schedule(beside, beside=True)) == {2: 7} and not scheduler.schedule(requests, beside=False)


# The estimate


def test_pace_follows_the_median_of_the_last_steps() -> None:
    pace = Pace(0.0)
    assert pace.budget(0.2).decoding == pytest.approx(0.2 * FIRST_WORK_PER_S)
    pace.note(0.16, decoded=0, prefilled=16)
    assert pace.work_per_s == pytest.approx(100)
    for _ in range(4):
        pace.note(0.1, decoded=0, prefilled=20)
    assert pace.work_per_s == pytest.approx(200)
    pace.note(5.0, decoded=0, prefilled=20)
    pace.note(0.0, decoded=0, prefilled=20)
    assert pace.work_per_s == pytest.approx(200), "what happens once or twice changes nothing"
    budget = pace.budget(0.2, 0.5)
    assert (budget.decoding, budget.alone) == pytest.approx((40, 100))
    assert budget.least == pytest.approx(40 * PREFILL_SHARE)
    assert pace.budget().decoding == pace.budget().alone == inf


def test_prefills_are_charged_what_a_step_takes_beyond_one_that_decodes() -> None:
    pace = Pace(0.0)
    pace.note(0.05, decoded=4, prefilled=0)
    pace.note(0.15, decoded=4, prefilled=20)
    assert pace.work_per_s == pytest.approx(200)
    budget = pace.budget(0.2)
    assert budget.of_prefills(4) == pytest.approx(30), "150 ms are left"
    assert budget.of_prefills(10) == pytest.approx(24), "six more decode"
    pace.note(0.01, decoded=4, prefilled=20)  # faster than decoding alone
    assert pace.work_per_s <= 20 / 0.01 * 64


class TimedModel(FakeModel):
    """Takes as long as `cost` says, on a clock of its own."""

    def __init__(self, config: Any, cost: Callable[[ForwardBatch], float]) -> None:
        super().__init__(config)
        self.now = 0.0
        self.steps: list[tuple[int, int, float]] = []  # sequences, tokens, seconds
        self._cost = cost

    def compute(self, batch: ForwardBatch) -> Any:
        seconds = self._cost(batch)
        self.now += seconds
        self.steps.append((batch.num_seqs, batch.num_tokens, seconds))
        return super().compute(batch)


def timed(cost: Callable[[ForwardBatch], float], **changes: Any) -> tuple[Engine, TimedModel]:
    usual = {"max_model_len": 4096, "num_blocks": 4096, "max_num_batched_tokens": 512, "max_step_ms": 200}
    config = make_config(**{"vocab_size": BYTES.vocab_size} | usual | changes)
    model = TimedModel(config, cost)
    return Engine(model, BYTES, config, clock=lambda: model.now), model


def half_billion(batch: ForwardBatch) -> float:
    """About what two cores take for the 0.5B shape: 20 ms for the weights, 4 ms a token, attention over its context."""
    return 0.020 + sum(0.004 * (1 + 1e-4 * int(position)) for position in batch.positions)


@pytest.mark.parametrize("key_work", [0.0, 1e-4, 3e-4])
def test_streams_get_their_tokens_in_time_while_a_long_prompt_is_computed(key_work: float) -> None:
    """Whether attention is estimated well or not: the estimate follows what is measured."""
    engine, model = timed(half_billion, key_work=key_work)
    for name in "abc":
        engine.add_request(request(name, b"xyz", max_tokens=2000, ignore_eos=True))
    for _ in range(3):
        engine.step()
    begun = len(model.steps)
    engine.add_request(request("long", bytes(3000), max_tokens=1))
    while engine.prompt_progress("long") is None or engine.stats().num_running == 4:
        engine.step()
        if not engine.has_work or "long" not in engine._entries:
            break
    gaps = [seconds for num_seqs, _, seconds in model.steps[begun:] if num_seqs == 4]
    assert gaps[0] < 0.2, "the first one is short"
    assert max(gaps) < 0.3
    assert sorted(gaps)[len(gaps) // 2] > 0.15, "and the bound is used"
    for name in "abc":
        engine.abort(name)


def test_where_decoding_takes_as_long_as_a_step_may_prompts_keep_their_share() -> None:
    """As with 7 billion weights: reading them takes 220 ms, a token 15 ms. A chunk does not shrink to nothing."""
    engine, model = timed(lambda batch: 0.22 + 0.015 * batch.num_tokens)
    engine.add_request(request("a", b"xyz", max_tokens=2000, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.add_request(request("long", bytes(4000), max_tokens=1))
    for _ in range(30):
        engine.step()
    assert [tokens - 1 for _, tokens, _ in model.steps[-10:]] == [3] * 10, "50 ms of 15 each"
    engine.abort("a"), engine.abort("long")


def test_a_slower_machine_is_followed() -> None:
    slowness = [1.0]
    engine, model = timed(lambda batch: slowness[0] * half_billion(batch))
    engine.add_request(request("a", b"xyz", max_tokens=2000, ignore_eos=True))
    engine.step()
    engine.add_request(request("long", bytes(4000), max_tokens=1))
    for step in range(40):
        slowness[0] = 3.0 if step >= 20 else 1.0
        engine.step()
    assert max(seconds for _, _, seconds in model.steps[26:]) < 0.25
    engine.abort("a"), engine.abort("long")


def test_nobody_watches_or_no_bound() -> None:
    for changes, watched in (({}, False), ({"max_step_ms": 0}, True)):
        engine, model = timed(half_billion, **changes)
        engine.add_request(request("a", b"xyz", max_tokens=2000, ignore_eos=True))
        engine.advance(is_watched=watched)
        engine.add_request(request("long", bytes(2000), max_tokens=1))
        engine.advance(is_watched=watched, prompt_step_s=0.1)
        assert model.steps[-1][:2] == (2, 512)
        engine.abort("a"), engine.abort("long")


@pytest.mark.parametrize("row_s", [0.0, 0.03])
@pytest.mark.parametrize("prompt_len", [3000, 1])
def test_replays_add_little_to_a_step_and_have_a_quarter_of_the_time(row_s: float, prompt_len: int) -> None:
    """Whatever a token of theirs costs, while others stream, and a prompt gets on; less where its steps are long."""
    asked = request("r", b"xyz", max_tokens=60, ignore_eos=True)
    answer = alone(asked).outputs[0].token_ids
    beside: list[float] = []

    def cost(batch: ForwardBatch) -> float:
        seconds = half_billion(batch) + row_s * max(0, len(batch.logit_rows) - 1)
        if batch.num_seqs == 2 and (batch.token_ids == 0).sum() < 2:
            beside.append(seconds - 0.024)  # more than a step that only decodes
        return seconds

    engine, model = timed(cost)
    engine.add_request(request("a", b"xyz", max_tokens=4000, ignore_eos=True))
    for _ in range(4):
        engine.step()
    replays = [engine.replay(asked, 0, answer, rows=64) for _ in range(2)]
    engine.add_request(request("long", bytes(prompt_len), max_tokens=1))
    begun = model.now
    while not all(replay.done for replay in replays):
        engine.step()
    assert all(replay.error is None and replay.difference is None for replay in replays)
    assert sorted(beside)[-2] < BESIDE_STEP_S + 0.004 + row_s + 0.005, "about 20 ms, or one token, but for the first"
    share = sum(beside) / (model.now - begun)
    assert 0.1 < share < 0.3 if prompt_len == 1 else 0.03 < share < 0.2, share
    assert engine.stats().num_prompt_tokens > min(prompt_len, 500)
    engine.abort("a"), engine.abort("long")


@given(st.randoms(use_true_random=False), st.integers(1, 400), st.floats(0, 0.01))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_budget_changes_a_token(rng: Any, max_step_ms: int, key_work: float) -> None:
    """A clock that says anything: the same tokens as alone, an end for all, all blocks back."""
    requests = [
        request(str(i), bytes(rng.randrange(256) for _ in range(n)), seed=i, n=1 + i % 2, **SAMPLED)
        for i, n in enumerate((1, 9, 30, 17, 5, 30))
    ]
    engine, _ = make_engine(num_blocks=rng.choice([11, 64]), max_step_ms=max_step_ms, key_work=key_work)
    now = [0.0]

    def clock() -> float:
        now[0] += rng.choice([0.0, 1e-9, 0.01, 0.3, 100.0])
        return now[0]

    engine._clock = clock
    for item in requests:
        engine.add_request(item)
    outputs, _ = drive(engine)
    assert outputs == {item.request_id: alone(item) for item in requests}


# Bits


@pytest.fixture(scope="module")
def native(folder: Path) -> LLM:
    return LLM(folder, executor="native", max_step_ms=1)


@pytest.mark.skipif(unavailable_reason() is not None, reason="bits of the native executor")
@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_budget_changes_a_bit(native: LLM, rng: Any, beside_others: bool) -> None:
    """Logits of every position of a text, cut by clocks that say anything, alone and beside a stream."""
    engine, text = native.engine, [i * 7 % 250 for i in range(70)]
    whole = native.logits(text)
    engine._clock = Clock([rng.choice([0.0, 1e-5, 1e-4, 1e-3, 1.0]) for _ in range(50)])
    logits = np.empty_like(whole)
    others = native.stream("Once", SamplingParams(max_tokens=100, ignore_eos=True))
    if beside_others:
        next(others)
    reader = engine.add_logits(tuple(text), logits)
    steps = 0
    while not reader.done:
        engine.advance(prompt_step_s=rng.choice([1e-4, 1e-3, inf]))
        steps += 1
    others.close()
    engine._clock = perf_counter
    assert reader.error is None and (logits.view(np.uint32) == whole.view(np.uint32)).all(), f"in {steps} steps"


class Clock:
    """Goes on by the given seconds, again and again."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = cycle(seconds)
        self._now = 0.0

    def __call__(self) -> float:
        self._now += next(self._seconds)
        return self._now
