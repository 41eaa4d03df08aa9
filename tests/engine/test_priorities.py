"""Who goes first: admission, the budget of a step, preemption; and that it changes nobody's tokens.

Covers: karat.engine.stats.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.errors import RequestError
from karat.outputs import RequestOutput
from karat.request_record import Request
from tests.engine.fakes import SAMPLED, alone, drive, make_engine, request
from tests.engine.schedules import compute, make, sequence, sizes, text
from tests.engine.tiny import GREEDY, tokens


def ranked(name: str, prompt: bytes, priority: int, **params: Any) -> Request:
    plain = request(name, prompt, **params)
    return Request(name, plain.prompt_token_ids, plain.params, plain.seed, None, plain.end_token_ids, priority=priority)


def test_the_smallest_priority_enters_first_and_of_one_priority_the_oldest() -> None:
    scheduler = make(num_blocks=64, max_num_seqs=1)
    for seq_id, priority in enumerate([0, 5, -1, 5, -1, 0]):
        scheduler.add(sequence(seq_id, 3, 3, priority=priority))
    served = []
    while scheduler.num_waiting or scheduler.num_running:
        chunks = scheduler.schedule()
        served += sizes(chunks)
        compute(scheduler, chunks, done=lambda seq: True)
        scheduler.check()
    assert served == [2, 4, 0, 5, 1, 3]


def test_who_runs_is_not_stopped_for_one_that_goes_before() -> None:
    scheduler = make(num_blocks=64, max_num_seqs=1)
    scheduler.add(sequence(0, 3, 3, priority=9))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(1, 3, 3, priority=-9))
    assert sizes(scheduler.schedule()) == {0: 1} and scheduler.num_preemptions == 0


def test_the_budget_goes_to_the_smallest_priority_first() -> None:
    scheduler = make(num_blocks=64, max_num_batched_tokens=8)
    scheduler.add(sequence(0, 30, priority=1))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(1, 10, priority=0))
    assert sizes(scheduler.schedule()) == {0: 8}, "all of the step was taken before it came in"
    scheduler = make(num_blocks=64, max_num_batched_tokens=8)
    scheduler.add(sequence(0, 6, 5, priority=1))
    scheduler.add(sequence(1, 30, priority=1))
    compute(scheduler, scheduler.schedule())
    scheduler.add(sequence(2, 30, priority=0))
    compute(scheduler, scheduler.schedule())
    assert sizes(scheduler.schedule()) == {0: 1, 1: 7}


def test_the_largest_priority_is_preempted_first() -> None:
    scheduler = make(num_blocks=6, block_size=4)
    scheduler.add(sequence(0, 7, 8, priority=1))
    scheduler.add(sequence(1, 3, 17, priority=0))
    while not scheduler.num_preemptions:
        compute(scheduler, scheduler.schedule())
        scheduler.check()
    assert [seq.seq_id for seq in scheduler._waiting] == [0], "the older one, which comes after"
    scheduler.add(sequence(2, 3, 1, priority=1))
    assert [seq.seq_id for seq in scheduler._waiting] == [0, 2], "who was preempted has its place in line"


def test_nobody_waits_for_a_prefix_of_one_that_comes_after() -> None:
    scheduler = make(num_blocks=64, max_num_batched_tokens=8, share_prefixes=True)
    scheduler.add(text(0, "abcdefgh" * 3, 4))
    compute(scheduler, scheduler.schedule())
    urgent = text(1, "abcdefgh" * 2 + "x", 4)
    urgent.priority = -1
    scheduler.add(urgent)
    compute(scheduler, scheduler.schedule())
    compute(scheduler, scheduler.schedule())
    assert sizes(scheduler.schedule())[1] >= 1


def crowd() -> list[Request]:
    sizes = [(1, 2), (9, -1), (17, 2), (30, 0), (5, -1), (30, 1), (12, 0), (3, 2)]
    same = bytes(range(40))
    return [
        ranked(str(i), same[:n] if i % 2 else bytes([i]) * n, priority, seed=i, n=1 + i % 2, **SAMPLED)
        for i, (n, priority) in enumerate(sizes)
    ]


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_priorities_aborts_and_preemptions_change_no_token(rng: Any) -> None:
    """Arrivals at random: the same tokens as alone, all blocks back, an end for all, counts that only rise."""
    engine, _ = make_engine(num_blocks=rng.choice([11, 16, 64]), max_num_batched_tokens=rng.choice([8, 13, 32]))
    waiting = crowd()
    rng.shuffle(waiting)
    outputs: dict[str, RequestOutput] = {}
    aborted = set()
    before, num_steps = engine.stats(), 0
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.4:
            engine.add_request(waiting.pop())
        if rng.random() < 0.05 and engine._entries:
            victim = rng.choice(sorted(engine._entries))
            update = engine.abort(victim)
            assert update is not None and update.output is not None
            outputs[victim] = update.output
            aborted.add(victim)
            engine.scheduler.check()
        for update in engine.step():
            if update.output:
                outputs[update.request_id] = update.output
        engine.scheduler.check()
        num_steps += 1
        assert num_steps < 3000, "no end in sight"
        now = engine.stats()
        rising = [name for name in now.__slots__ if name not in ("num_running", "num_waiting", "num_blocks_used")]
        assert all(getattr(before, name) <= getattr(now, name) for name in rising)
        before = now
    for item in crowd():
        assert item.request_id in aborted or outputs[item.request_id] == alone(item)
    at_rest = engine.stats()
    assert at_rest.num_running == at_rest.num_waiting == at_rest.num_blocks_used == 0


def test_what_stats_count() -> None:
    engine, model = make_engine(max_num_seqs=2)
    engine.add_request(request("a", bytes(range(9)), n=2, max_tokens=3, ignore_eos=True))
    engine.add_request(request("b", b"xyz", max_tokens=3, ignore_eos=True))
    now = engine.stats()
    assert (now.num_waiting, now.num_running, now.num_blocks, now.num_steps) == (3, 0, 64, 0)
    engine.step()
    now = engine.stats()
    assert (now.num_waiting, now.num_running, now.num_blocks_used, now.num_steps) == (2, 1, 3, 1)
    assert (now.num_prompt_tokens, now.num_generated_tokens, now.prefix_queries, now.prefix_hits) == (9, 1, 9, 0)
    drive(engine)
    now = engine.stats()
    assert (now.num_waiting, now.num_running, now.num_blocks_used) == (0, 0, 0)
    assert (now.num_prompt_tokens, now.num_generated_tokens) == (9 + 1 + 3, 9), "the second choice found 8 of 9"
    assert (now.prefix_queries, now.prefix_hits) == (9 + 9 + 3, 8)
    assert now.num_steps == len(model.batches) and now.num_preemptions == 0


@pytest.mark.parametrize("priority", [1.0, "1", True, None, 2**31, -(2**31)])
def test_what_is_no_priority_is_refused(priority: Any) -> None:
    engine, _ = make_engine()
    with pytest.raises(RequestError, match=r"priority=.*expected an integer"):
        engine.add_request(ranked("a", b"abc", priority))
    assert not engine.has_work


def test_priorities_of_llm(llm: LLM) -> None:
    expected = tokens(llm.generate(["a", "b", "c"], GREEDY))
    for priority in (1, [2, 1, 0]):
        assert tokens(llm.generate(["a", "b", "c"], GREEDY, priority=priority)) == expected
    assert next(llm.stream("a", GREEDY, priority=-3)).token_ids
    for wrong in ([1, 2], "abc", None, [1, 2, "x"]):
        with pytest.raises(RequestError, match="priority="):
            llm.generate(["a", "b", "c"], GREEDY, priority=wrong)  # type: ignore[arg-type]
    talk = [{"role": "user", "content": "a"}]
    (answer,) = llm.chat(talk, GREEDY, priority=7)
    assert "".join(chunk.text for chunk in llm.stream_chat(talk, GREEDY, priority=7)) == answer.outputs[0].text
    with pytest.raises(RequestError, match="priority="):
        llm.stream("a", SamplingParams(), priority="high")  # type: ignore[arg-type]


def test_a_prompt_within_the_context_but_larger_than_the_pool_is_refused_with_both_numbers() -> None:
    """Never a dead-lock: who asked gets the error, and who runs goes on."""
    engine, _ = make_engine(num_blocks=8)
    good = request("good", b"abc", seed=1, **SAMPLED)
    engine.add_request(good)
    engine.step()
    with pytest.raises(RequestError, match=r"grow to 40 tokens in the KV cache, which holds 32 \(8 blocks of 4\)"):
        engine.add_request(ranked("large", bytes(40), -1, max_tokens=1))
    with pytest.raises(RequestError, match=r"grow to 33 tokens .* holds 32"):
        engine.add_request(request("grows", bytes(20), max_tokens=14))
    assert drive(engine)[0] == {"good": alone(good)}


@pytest.mark.parametrize("when", ["waiting", "in the middle of its prompt", "decoding"])
def test_abort_frees_blocks_at_once(when: str) -> None:
    engine, _ = make_engine(max_num_seqs=2, max_num_batched_tokens=8)
    engine.add_request(request("first", b"x", max_tokens=30, ignore_eos=True))
    engine.step()
    used = engine.stats().num_blocks_used
    engine.add_request(request("a", bytes(30), max_tokens=20, ignore_eos=True))
    for _ in range({"waiting": 0, "decoding": 8}.get(when, 2)):
        engine.step()
    begun = engine.stats()
    assert (begun.num_waiting, begun.num_running) == ((1, 1) if when == "waiting" else (0, 2))
    engine.abort("a")
    assert engine.stats().num_blocks_used <= used + 2, "what the first one has since"
    assert (engine.stats().num_waiting, engine.stats().num_running) == (0, 1)
    engine.scheduler.check()
