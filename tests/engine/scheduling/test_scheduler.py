"""The scheduler on random traffic: limits, order, integrity after every step, and an end for everyone.

Covers: karat.engine.scheduling.sequence.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.engine.scheduling.scheduler import Chunk, Scheduler
from karat.engine.scheduling.sequence import Sequence
from karat.engine.scheduling.step_budget import UNBOUNDED, StepBudget
from karat.errors import CapacityError
from karat.kv.sizes import GroupSize
from tests.engine.schedules import compute, make, sequence, sizes
from tests.support.drawn import examples


@dataclass
class Traffic:
    """A random life of a scheduler; `trace` is everything it decided, `num_found` how many tokens were found."""

    seed: int
    share_prefixes: bool
    with_priorities: bool = False  # and budgets of any size
    with_windows: bool = False  # one or two further cache groups
    trace: list[object] = field(default_factory=list)
    num_found: int = 0

    def run(self) -> None:
        rng = random.Random(self.seed)
        block_size, num_blocks = rng.randint(1, 5), rng.randint(2, 14)
        max_num_seqs = rng.randint(1, 6)
        budget = max_num_seqs + rng.choice([0, 1, 3, 20])
        max_logits = rng.choice([1, 4, 100])
        windowed = [some_window(rng, block_size) for _ in range(rng.randint(1, 2) if self.with_windows else 0)]
        scheduler = make(num_blocks, block_size, max_num_seqs, budget, max_logits, self.share_prefixes, *windowed)
        slots: dict[Place, tuple[int, ...]] = {}  # what was written last: a token and all before it
        capacity = num_blocks * block_size
        live: dict[int, Sequence] = {}
        prompts_read: dict[int, list[int]] = {}
        reading: set[int] = set()  # sequences whose prompt's logits are wanted
        arrivals = rng.randint(1, 15)
        next_id = steps = work = 0
        while live or arrivals:
            if arrivals and (not live or rng.random() < 0.3):
                prompt_len = rng.randint(1, capacity)
                max_new = rng.randint(0, capacity - prompt_len)
                seq = sequence(next_id, prompt_len, max_new, prompt_logits=rng.random() < 0.3)
                reading |= {next_id} if seq.reads_several else set()
                if self.with_priorities:
                    seq.priority = rng.randint(-2, 2)
                common = rng.randint(0, prompt_len)
                seq.token_ids[common:] = [rng.randint(0, 1) for _ in range(prompt_len - common)]
                scheduler.add(seq)
                live[next_id] = seq
                prompts_read[next_id] = []
                work += prompt_len + max_new
                next_id += 1
                arrivals -= 1
                scheduler.check()
            if live and rng.random() < 0.02:
                scheduler.remove(live.pop(rng.choice(sorted(live))))
                scheduler.check()
            if not live:
                continue
            chunks = scheduler.schedule(some_budget(rng) if self.with_priorities else UNBOUNDED)
            self.trace.append((sizes(chunks), scheduler.num_preemptions))
            assert len({c.seq.seq_id for c in chunks}) == len(chunks)
            if not self.with_priorities:
                assert [c.seq.seq_id for c in chunks] == sorted(c.seq.seq_id for c in chunks), "order"
            assert 0 < sum(c.num_tokens for c in chunks) <= budget and len(chunks) <= max_num_seqs
            first = min(scheduler._running, key=lambda seq: (seq.priority, seq.seq_id))
            assert first in [c.seq for c in chunks], "the first in order was not served"
            assert self.with_priorities or first.seq_id == min(live), "the oldest does not run"
            assert sum(len(c.seq.wanted(c.num_tokens)) for c in chunks if c.seq.reads_several) <= max_logits
            for chunk in chunks:
                assert 1 <= chunk.num_tokens <= chunk.seq.num_pending
                assert scheduler.blocks.room(chunk.seq.seq_id) >= chunk.num_tokens
                check_context(scheduler, chunk, slots)
                if chunk.seq.reads_several:
                    last = chunk.seq.prompt_len - 1  # read to sample from, not for the prompt
                    prompts_read[chunk.seq.seq_id] += (p for p in chunk.seq.wanted(chunk.num_tokens) if p != last)
            done = lambda seq: len(seq.token_ids) >= seq.max_len  # noqa: E731
            compute(scheduler, chunks, done, lambda: rng.randint(0, 1))
            scheduler.check()
            ended = [i for i, seq in live.items() if len(seq.token_ids) >= seq.max_len and seq.num_pending == 0]
            for seq_id in ended:
                seq = live.pop(seq_id)
                wanted = range(seq.prompt_len - 1 if seq_id in reading else 0)
                assert prompts_read[seq_id] == list(wanted), "prompt logits were not read once each"
            steps += 1
            assert steps <= 50 + 20 * work, "no end in sight"
        assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
        assert scheduler.num_running == scheduler.num_waiting == 0
        self.num_found = scheduler.num_found_tokens


def some_budget(rng: random.Random) -> StepBudget:
    decoding = rng.choice([0.0, 0.5, 3.0, 20.0])
    return StepBudget(rng.choice([0.0, 0.1]), decoding, decoding / 4, rng.choice([0.0, 4.0, 100.0]))


def some_window(rng: random.Random, block_size: int) -> GroupSize:
    """A group in which a sequence of any length just fits, or has more room."""
    window = rng.randint(1, 9)
    least = GroupSize(1, window).most_held(0, 10**6, 1, block_size)
    return GroupSize(least + rng.choice([0, 1, 5]), window)


Place = tuple[int, int]  # group and slot


def check_context(scheduler: Scheduler, chunk: Chunk, slots: dict[Place, tuple[int, ...]]) -> None:
    """Write the chunk's tokens where the pool says, and see that all that they see is there, whoever wrote it."""
    seq, start, stop = chunk.seq, chunk.seq.num_computed, chunk.seq.num_computed + chunk.num_tokens
    for group, size in enumerate(scheduler.blocks.sizes):
        first = 0 if size.window is None else max(0, start - size.window + 1)
        places = [(group, slot) for slot in scheduler.blocks.slots(seq.seq_id, group, first, stop)]
        slots |= {places[i - first]: tuple(seq.token_ids[: i + 1]) for i in range(start, stop)}
        expected = [tuple(seq.token_ids[: i + 1]) for i in range(first, stop)]
        assert [slots.get(place) for place in places] == expected, "context"


@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_random_traffic(seed: int, share_prefixes: bool, with_priorities: bool, with_windows: bool) -> None:
    Traffic(seed, share_prefixes, with_priorities, with_windows).run()


@pytest.mark.parametrize("with_windows", [False, True])
@pytest.mark.parametrize("share_prefixes", [False, True])
def test_decisions_depend_on_the_calls_alone(share_prefixes: bool, with_windows: bool) -> None:
    first, second = (Traffic(5, share_prefixes, with_windows=with_windows) for _ in range(2))
    first.run()
    second.run()
    assert first.trace == second.trace and len(first.trace) > 10


@pytest.mark.drawn(2)
@pytest.mark.parametrize("with_windows", [False, True])
@pytest.mark.parametrize("share_prefixes", [False, True])
def test_random_traffic_does_preempt_and_share(share_prefixes: bool, with_windows: bool) -> None:
    """Else the tests above would show less than they say."""
    traffic = [Traffic(seed, share_prefixes, with_windows=with_windows) for seed in range(90)]
    for one in traffic:
        one.run()
    assert sum(one.trace[-1][1] > 0 for one in traffic) > 5
    assert (sum(one.num_found > 0 for one in traffic) > 20) == share_prefixes


def test_prefill_is_cut_at_the_token_budget() -> None:
    scheduler = make(max_num_batched_tokens=10)
    scheduler.add(sequence(0, 25))
    seen = []
    for _ in range(3):
        chunks = scheduler.schedule()
        seen.append(sizes(chunks))
        compute(scheduler, chunks)
    assert seen == [{0: 10}, {0: 10}, {0: 5}]


def test_decodes_come_before_prefills() -> None:
    scheduler = make(num_blocks=32, max_num_batched_tokens=10)
    scheduler.add(sequence(0, 30, 10))
    scheduler.add(sequence(1, 4, 10))
    scheduler.add(sequence(2, 4, 10))
    for expected in ({0: 10}, {0: 10}, {0: 10}, {0: 1, 1: 4, 2: 4}, {0: 1, 1: 1, 2: 1}):
        chunks = scheduler.schedule()
        assert sizes(chunks) == expected
        compute(scheduler, chunks)
    scheduler.add(sequence(3, 20, 10))
    assert sizes(scheduler.schedule()) == {0: 1, 1: 1, 2: 1, 3: 7}


def test_a_running_prefill_waits_for_no_decode_but_gives_them_their_token() -> None:
    scheduler = make(num_blocks=32, max_num_seqs=3, max_num_batched_tokens=3)
    scheduler.add(sequence(0, 1, 50))
    scheduler.add(sequence(1, 8, 10))
    scheduler.add(sequence(2, 1, 10))
    for _ in range(2):
        chunks = scheduler.schedule()
        assert sizes(chunks) == {0: 1, 1: 2}
        compute(scheduler, chunks)


def test_at_most_max_num_seqs_run_and_none_overtakes() -> None:
    scheduler = make(num_blocks=64, max_num_seqs=2, max_num_batched_tokens=16)
    for seq_id, prompt_len in enumerate((4, 4, 9, 1)):
        scheduler.add(sequence(seq_id, prompt_len, 4))
    chunks = scheduler.schedule()
    assert sizes(chunks) == {0: 4, 1: 4} and scheduler.num_waiting == 2
    compute(scheduler, chunks, done=lambda seq: seq.seq_id == 0)
    assert sizes(scheduler.schedule()) == {1: 1, 2: 9}


def test_a_large_prompt_is_not_overtaken_by_a_small_one() -> None:
    scheduler = make(num_blocks=4, block_size=4)
    scheduler.add(sequence(0, 6, 8))
    scheduler.add(sequence(1, 9, 4))
    scheduler.add(sequence(2, 1, 1))
    assert sizes(scheduler.schedule()) == {0: 6}, "1 has no room beside 0, and 2 must not pass it"


def test_nobody_is_let_in_where_the_running_ones_will_need_the_room() -> None:
    scheduler = make(num_blocks=9, block_size=4, max_num_batched_tokens=40)
    scheduler.add(sequence(0, 20, 4))
    scheduler.add(sequence(1, 13, 1))
    assert sizes(scheduler.schedule()) == {0: 20}, "1 needs 4 of 9 blocks; 0 has 5 and will have 6"
    scheduler = make(num_blocks=9, block_size=4, max_num_batched_tokens=40)
    scheduler.add(sequence(0, 20, 4))
    scheduler.add(sequence(1, 12, 1))
    assert sizes(scheduler.schedule()) == {0: 20, 1: 12}, "just enough for both"
    # The rest of a prompt that was cut counts too.
    scheduler = make(num_blocks=9, block_size=4, max_num_batched_tokens=40, max_prompt_logits=2)
    scheduler.add(sequence(0, 20, 4, prompt_logits=True))
    scheduler.add(sequence(1, 13, 1))
    assert sizes(scheduler.schedule()) == {0: 2}


def test_the_youngest_is_preempted_and_computed_anew() -> None:
    scheduler = make(num_blocks=6, block_size=4)
    old, young = sequence(0, 7, 17), sequence(1, 3, 8)
    scheduler.add(old)
    scheduler.add(young)
    steps = 0
    while not scheduler.num_preemptions:
        compute(scheduler, scheduler.schedule())
        scheduler.check()
        steps += 1
        assert steps < 30
    generated = len(young.token_ids) - young.prompt_len
    assert generated > 0 and young.num_computed == 0 and scheduler.num_waiting == 1
    assert old.num_computed > 0, "the oldest went on"
    scheduler.remove(old)
    assert sizes(scheduler.schedule()) == {1: 3 + generated}, "prompt and what was generated, in one go"


def test_a_running_sequence_without_a_block_waits_rather_than_lose_what_it_has() -> None:
    scheduler = make(num_blocks=4, block_size=2)
    old, young = sequence(0, 2, 2), sequence(1, 1, 4)
    scheduler.add(old)
    scheduler.add(young)
    for _ in range(20):
        chunks = scheduler.schedule()
        compute(scheduler, chunks, done=lambda seq: len(seq.token_ids) == seq.max_len)
        scheduler.check()
        if not scheduler.num_running:
            break
    assert scheduler.num_preemptions == 0 and scheduler.num_running == scheduler.num_waiting == 0


@pytest.mark.parametrize("queued", [False, True])
def test_remove_frees_blocks(queued: bool) -> None:
    scheduler = make(max_num_seqs=1)
    scheduler.add(sequence(0, 5, 5))
    scheduler.add(sequence(1, 5, 5))
    compute(scheduler, scheduler.schedule())
    waiting, running = scheduler._waiting[0], scheduler._running[0]
    scheduler.remove(waiting if queued else running)
    scheduler.check()
    assert sizes(scheduler.schedule()) == ({0: 1} if queued else {1: 5})


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    scheduler = make(num_blocks=4, block_size=4)
    scheduler.add(sequence(0, 10, 6))
    with pytest.raises(CapacityError, match=r"17 tokens.*holds 16 \(4 blocks of 4\)"):
        scheduler.add(sequence(1, 10, 7))
    assert scheduler.num_waiting == 1


def test_prompt_logits_have_a_budget_of_their_own() -> None:
    scheduler = make(num_blocks=32, max_num_batched_tokens=30, max_prompt_logits=5)
    scheduler.add(sequence(0, 8, prompt_logits=True))
    scheduler.add(sequence(1, 8, prompt_logits=True))
    scheduler.add(sequence(2, 8))
    chunks = scheduler.schedule()
    assert sizes(chunks) == {0: 5}, "the second may not pass, nor may the third"
    compute(scheduler, chunks)
    assert sizes(scheduler.schedule()) == {0: 3, 1: 2, 2: 8}


def test_nothing_to_do() -> None:
    assert make().schedule() == []


@pytest.mark.parametrize("break_it", ["order", "cache", "lost"])
def test_check_finds_what_is_wrong(break_it: str) -> None:
    scheduler = make()
    scheduler.add(sequence(0, 5, 5))
    scheduler.add(sequence(1, 5, 5))
    compute(scheduler, scheduler.schedule())
    scheduler.check()
    if break_it == "order":
        scheduler._running.reverse()
    elif break_it == "cache":
        scheduler._running[1].num_computed -= 1
    else:
        scheduler._running.pop()
    with pytest.raises(AssertionError):
        scheduler.check()


def test_drafts_are_decoded_where_they_have_room() -> None:
    """A step's tokens are for each decoding sequence first, then for drafts, then for prefills."""
    scheduler = make(40, 4, 3, 6, 100, False)
    decoding, other, prompt = sequence(0, 5, 20), sequence(1, 1, 20), sequence(2, 9, 1)
    for seq in (decoding, other):
        scheduler.add(seq)
    for chunk in scheduler.schedule():
        scheduler.advance(chunk, chunk.num_tokens)
        chunk.seq.token_ids.append(0)
    scheduler.add(prompt)
    decoding.token_ids += [0, 0]
    assert not decoding.is_decoding
    decoding.num_drafts = 2
    assert decoding.is_decoding and [c.num_tokens for c in scheduler.schedule()] == [3, 1, 2]
    decoding.token_ids += [0] * 4
    decoding.num_drafts = 6
    assert [c.num_tokens for c in scheduler.schedule()] == [5, 1]
