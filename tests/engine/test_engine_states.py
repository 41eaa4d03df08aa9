"""The engine with a model that keeps states: the answers of each request alone, and what is computed for them.

Covers: karat.engine.scheduling.state_places.
"""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from karat.engine.scheduling.state_places import SPACING, state_places
from karat.errors import NumericsError
from karat.outputs import RequestOutput
from karat.request import Resume
from karat.request_record import Request
from tests.engine.fakes import (
    BYTES,
    SAMPLED,
    FakeModel,
    WholeEngine,
    alone,
    drive,
    make_config,
    make_engine,
    request,
    run,
)
from tests.engine.test_engine_prefixes import SYSTEM, num_computed, related_requests
from tests.engine.test_overlap import Late
from tests.support.drawn import examples

WINDOWS: list[tuple[int | None, ...]] = [(None,), (), (None, 6), (6,)]  # () is a model of states alone


def engine_with_states(**changes: Any) -> tuple[WholeEngine, FakeModel]:
    engine, model = make_engine(**({"state_bytes": 10, "max_snapshots": 8} | changes))
    return engine, model


def expected(item: Request) -> RequestOutput:
    return alone(structs.replace(item, cache_point=None))


# Where states are kept


def test_the_places_of_a_text() -> None:
    def places(num_tokens: int, start: int = 0, point: int | None = None, known: int = 0) -> tuple[int, ...]:
        return state_places(num_tokens, 16, start=start, cache_point=point, known=known, max_snapshots=12)

    assert places(16) == places(3) == ()
    assert places(17) == places(32) == (16,)
    assert places(100, point=70) == (64, 96) and places(100, point=95) == (80, 96)
    assert places(100, start=64, point=70, known=80) == (80, 96)
    assert places(100, point=5, known=96) == (96,)
    assert places(3 * SPACING + 17) == (SPACING, 2 * SPACING, 3 * SPACING, 3 * SPACING + 16)
    assert places(9 * SPACING) == (4 * SPACING, 8 * SPACING, 9 * SPACING - 16), "a quarter of all at the most"
    others: dict[str, Any] = {"start": 0, "cache_point": None, "known": 0, "max_snapshots": 12}
    assert state_places(2 * SPACING + 2, 1000, **others) == (2000, 4000)
    assert state_places(SPACING * 3, SPACING * 2, **others) == (SPACING * 2,)
    assert state_places(SPACING * 9, 16, **others | {"max_snapshots": 1}) == (8 * SPACING, 9 * SPACING - 16)


def test_a_prompt_that_comes_again_is_computed_from_its_last_full_block() -> None:
    engine, model = engine_with_states()
    item = request("a", SYSTEM, **SAMPLED)
    for start in (0, 20):  # of 23 tokens
        model.batches.clear()
        assert run(engine, item)["a"] == expected(item)
        assert model.batches[0].positions[0] == start
    assert [batch.num_tokens for batch in model.batches[:2]] == [3, 1]
    assert engine.scheduler.num_found_tokens == 20 and engine.scheduler.num_stateless_tokens == 0


@pytest.mark.parametrize("windows", WINDOWS)
def test_an_answer_is_gone_on_with(windows: tuple[int | None, ...]) -> None:
    """The next prompt begins with prompt and answer: nothing but the new tokens, and a part of a block."""
    engine, model = engine_with_states(windows=windows, num_blocks=64 if windows else 0)
    first = request("a", SYSTEM, **SAMPLED, ignore_eos=True)
    answer = run(engine, first)["a"].outputs[0].token_ids
    again = request("b", (*SYSTEM, *answer, *b"And?"), **SAMPLED)
    model.batches.clear()
    assert run(engine, again)["b"] == expected(again)
    assert model.batches[0].positions[0] == 32, "of 23 + 12 tokens, the last of which was not computed"


def test_a_cache_point_is_where_another_end_begins() -> None:
    """As where a template strips reasoning: the text up to there comes again, and then something else."""
    engine, model = engine_with_states()
    first = structs.replace(request("a", SYSTEM + b"<think>", **SAMPLED), cache_point=18)
    assert run(engine, first)["a"] == expected(first)
    assert [batch.num_tokens for batch in model.batches[:3]] == [16, 12, 2]
    model.batches.clear()
    second = request("b", SYSTEM[:18] + b"answer, and more", **SAMPLED)
    assert run(engine, second)["b"] == expected(second)
    assert model.batches[0].positions[0] == 16


def test_a_cache_point_stays_while_calls_of_tools_go_on_behind_it() -> None:
    """Each prompt goes on from the one before, and keeps states of its own; then the next question comes."""
    engine, model = engine_with_states(max_snapshots=3, max_model_len=256, num_blocks=99)
    said = SYSTEM
    for number in range(5):
        item = structs.replace(request(str(number), said, max_tokens=2), cache_point=18)
        run(engine, item)
        said += b"more of it and on"
    model.batches.clear()
    item = request("b", SYSTEM[:18] + b"answer, and more", **SAMPLED)
    assert run(engine, item)["b"] == expected(item)
    assert model.batches[0].positions[0] == 16


def test_a_long_text_is_found_at_every_2048_tokens() -> None:
    engine, model = engine_with_states(max_model_len=8000, num_blocks=2000, max_num_batched_tokens=512)
    text = bytes(random.Random(5).choices(range(256), k=5000))
    run(engine, request("a", text, max_tokens=1))
    model.batches.clear()
    engine.add_request(request("b", text[:4500] + b"?", max_tokens=1))
    engine.step()
    assert model.batches[0].positions[0] == 4096
    engine.abort("b")
    assert engine.scheduler.num_stateless_tokens == 4500 - 4096


def test_where_a_text_leaves_another_its_state_is_kept_for_the_third() -> None:
    """A system prompt of several users: nobody knew where it ends before the second one came."""
    engine, model = engine_with_states()
    starts = []
    for name in ("one", "two", "six"):
        model.batches.clear()
        item = request(name, SYSTEM[:20] * 2 + name.encode() * 3, **SAMPLED)
        assert run(engine, item)[name] == expected(item)
        starts.append(model.batches[0].positions[0])
    assert starts == [0, 0, 40], "of 40 tokens that are the same"
    assert engine.scheduler.num_stateless_tokens == 40


def test_a_prompt_waits_for_the_state_of_one_that_runs() -> None:
    """It is there when the other has computed its prompt, and not with the blocks before."""
    engine, model = engine_with_states(max_num_batched_tokens=12)
    items = [request("a", SYSTEM, **SAMPLED), request("b", SYSTEM + b"more of it", **SAMPLED)]
    assert run(engine, *items) == {item.request_id: expected(item) for item in items}
    assert [batch.num_tokens for batch in model.batches[:3]] == [12, 8, 3 + 9], "b begins where a has a state"
    other, computed = engine_with_states(max_num_batched_tokens=12)
    items = [request("a", SYSTEM, **SAMPLED), request("b", SYSTEM[:18] + b"else", **SAMPLED)]
    assert run(other, *items) == {item.request_id: expected(item) for item in items}
    assert computed.batches[0].num_seqs == 1 and computed.batches[1].num_seqs == 2, "there will be none that b needs"


def test_all_choices_begin_with_the_state_of_the_prompt() -> None:
    engine, model = engine_with_states()
    item = request("a", SYSTEM, n=4, **SAMPLED)
    assert run(engine, item)["a"] == expected(item)
    assert [batch.num_tokens for batch in model.batches[:2]] == [20, 4 * 3]
    states = engine.scheduler.blocks.states
    assert states is not None and len(set(model.batches[1].state_reads.tolist())) == 1, "all read the same"
    assert len(set(model.batches[1].state_writes.tolist())) == 4, "and each has its own from then on"


def test_requests_of_different_salts_share_no_state() -> None:
    engine, model = engine_with_states()
    for number, salt in enumerate([None, "a", "a", "b"]):
        item = structs.replace(request(str(number), SYSTEM, seed=1, **SAMPLED), salt=salt)
        model.batches.clear()
        assert run(engine, item)[str(number)].outputs == expected(item).outputs
        assert model.batches[0].positions[0] == (20 if number == 2 else 0)


def test_a_prompt_does_not_wait_for_the_state_of_another_salt() -> None:
    engine, model = engine_with_states()
    for number, salt in enumerate([None, "a"]):
        engine.add_request(structs.replace(request(str(number), SYSTEM[:10], max_tokens=1), salt=salt))
    engine.step()
    assert model.batches[0].num_seqs == 2


@pytest.mark.parametrize("most", [0, 1])
def test_little_room_for_snapshots_changes_no_answer_and_drops_no_block(most: int) -> None:
    engine, model = engine_with_states(max_snapshots=most)
    first, second = request("a", SYSTEM, **SAMPLED), request("b", b"Another one, as long.", **SAMPLED)
    for item in (first, second):
        assert run(engine, item)[item.request_id] == expected(item)
    blocks = engine.scheduler.blocks
    assert blocks.num_kept == 8 + 8 and blocks.states is not None and blocks.states.num_snapshots == most
    model.batches.clear()
    assert run(engine, first)["a"] == expected(first)
    assert model.batches[0].positions[0] == 0
    assert [batch.num_tokens for batch in model.batches[:2]] == ([20, 3] if most else [23, 1])


def test_without_prefixes_nothing_is_kept() -> None:
    engine, model = engine_with_states(enable_prefix_caching=False)
    for _ in range(2):
        run(engine, request("a", SYSTEM, **SAMPLED))
    blocks = engine.scheduler.blocks
    assert blocks.states is not None and blocks.states.num_snapshots == 0
    assert sum(batch.num_tokens == 23 for batch in model.batches) == 2


# What disturbs a request


def test_a_preempted_sequence_goes_on_from_its_last_full_block() -> None:
    engine, model = engine_with_states()
    item = request("a", SYSTEM, **SAMPLED, ignore_eos=True)
    engine.add_request(item)
    for _ in range(10):
        engine.step()
    engine.scheduler.preempt_all()
    engine.scheduler.check()
    model.batches.clear()
    assert drive(engine)[0]["a"] == expected(item)
    assert model.batches[0].positions[0] == 28 and model.batches[0].num_tokens <= 4


def test_what_an_aborted_request_computed_is_found() -> None:
    engine, model = engine_with_states(max_num_batched_tokens=8)
    engine.add_request(request("a", SYSTEM))
    engine.step()
    engine.abort("a")
    item = request("b", SYSTEM, **SAMPLED)
    assert run(engine, item)["b"] == expected(item)
    assert model.batches[1].positions[0] == 8


@pytest.mark.parametrize("when", range(8))
def test_a_step_that_fails_halfway_changes_nothing(when: int) -> None:
    engine, model = engine_with_states(max_num_batched_tokens=8)
    items = [request(str(i), SYSTEM[:11] + bytes([97 + i]), seed=i, **SAMPLED) for i in range(3)]
    for item in items:
        engine.add_request(item)
    compute, steps = model.compute, iter(range(1000))

    def fails(batch: Any) -> Any:
        if next(steps) != when:
            return compute(batch)
        for write in batch.state_writes:
            model.states[write] = (-1,)
        raise RuntimeError("once")

    model.compute = fails  # type: ignore[method-assign]
    outputs: dict[str, Any] = {}
    num_raised = 0
    while engine.has_work:
        try:
            updates = engine.step()
        except RuntimeError:
            num_raised += 1
            continue
        engine.scheduler.check()
        outputs.update({update.request_id: update.output for update in updates if update.output})
    assert num_raised == 1 and outputs == {item.request_id: expected(item) for item in items}


def test_an_error_of_numbers_ends_one_sequence_and_forgets_its_states() -> None:
    """It is found in a step with others, which are computed again alone."""
    engine, model = engine_with_states(max_num_batched_tokens=12)
    compute = model.compute

    def overflows(batch: Any) -> Any:
        if ((batch.token_ids == 255) & (batch.positions == 21)).any():
            for write in batch.state_writes:
                model.states[write] = (-1,)
            raise NumericsError("the state of layer 3 is not finite")
        return compute(batch)

    model.compute = overflows  # type: ignore[method-assign]
    good = [request(str(i), bytes([97 + i] * 9), seed=i, **SAMPLED) for i in range(3)]
    bad = request("bad", SYSTEM[:21] + b"\xff.", **SAMPLED)
    outputs = run(engine, good[0], bad, *good[1:])
    assert all(outputs[item.request_id] == expected(item) for item in good)
    assert outputs["bad"].outputs[0].error == "choice 0: the state of layer 3 is not finite"
    model.batches.clear()
    item = request("b", SYSTEM, **SAMPLED)
    assert run(engine, item)["b"] == expected(item)
    assert model.batches[0].positions[0] == 0, "nothing of it is found"


def test_a_resumed_answer_and_a_replayed_one_are_the_undisturbed_one() -> None:
    engine, _ = engine_with_states()
    item = request("a", SYSTEM, **SAMPLED, ignore_eos=True)
    whole = run(engine, item)["a"].outputs[0]
    for number in (1, 7, 11):
        resumed = structs.replace(item, resume=Resume(whole.token_ids[:number]))
        assert run(engine, resumed)["a"].outputs[0].token_ids == whole.token_ids[number:]
    hits = engine.scheduler.num_found_tokens
    replay = engine.replay(item, 0, whole.token_ids)
    drive(engine)
    assert replay.error is None and replay.difference is None and replay.output.token_ids == whole.token_ids
    assert engine.scheduler.num_found_tokens == hits, "it computes all anew"


def test_logits_of_a_text_are_all_computed() -> None:
    engine, model = engine_with_states()
    for _ in range(2):
        logits = np.empty((23, 258), np.float32)
        engine.add_logits(tuple(SYSTEM), logits)
        drive(engine)
        assert all((logits[i] == model.noise(tuple(SYSTEM[: i + 1]))).all() for i in range(23))
    assert num_computed(model) == 2 * 23


def test_ten_turns_whose_reasoning_is_stripped_compute_the_new_turn_and_a_block() -> None:
    """The prompt of a turn: what was said, with answers stripped; the new question; and what opens the reasoning."""
    engine, model = engine_with_states(max_model_len=1000, num_blocks=300, max_num_batched_tokens=40)
    rng, said, before = random.Random(3), SYSTEM, len(SYSTEM)
    for turn in range(10):
        said += bytes(rng.choices(b"abc", k=rng.randint(1, 40))) + b"?"
        item = structs.replace(
            request(str(turn), said + b"=>[", **(SAMPLED | {"max_tokens": 20}), ignore_eos=True), cache_point=len(said)
        )
        model.batches.clear()
        assert run(engine, item)[str(turn)] == alone_long(item)
        start = int(model.batches[0].positions[0])
        assert turn == 0 or start > before - 4, "the new turn, and a block"
        before = len(said)
        said += bytes(rng.choices(b"xyz", k=rng.randint(1, 30)))


def alone_long(item: Request) -> RequestOutput:
    engine, _ = make_engine(max_model_len=1000, num_blocks=300, enable_prefix_caching=False)
    return run(engine, structs.replace(item, cache_point=None))[item.request_id]


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    windows=st.sampled_from(WINDOWS),
    room=st.sampled_from([64, 88, 256]),
    max_snapshots=st.sampled_from([0, 1, 2, 30]),
    late=st.booleans(),
)
def test_random_traffic(seed: int, windows: tuple[int | None, ...], room: int, max_snapshots: int, late: bool) -> None:
    """Requests that come, end, are aborted, preempted and out of blocks; some of them related, some with salts."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4])
    config = make_config(
        vocab_size=BYTES.vocab_size,
        windows=windows,
        num_blocks=-(-room // block_size) if windows else 0,
        state_bytes=10,
        max_snapshots=max_snapshots,
        max_num_seqs=rng.choice([2, 4]),
        max_num_batched_tokens=rng.choice([5, 9, 32]),
        overlaps_steps=late,
        block_size=block_size,
    )
    model = FakeModel(config)
    engine = WholeEngine(Late(model.compute) if late else model, BYTES, config)
    waiting = [
        structs.replace(
            request(
                str(number),
                bytes(rng.choices(b"ab", k=rng.randint(1, 24))),
                seed=number,
                n=rng.choice([1, 1, 3]),
                **{**SAMPLED, "max_tokens": rng.randint(1, 12)},
                prompt_logprobs=rng.choice([None, None, 1]),
            ),
            salt=rng.choice([None, None, "a"]),
            cache_point=rng.choice([None, rng.randint(0, 24)]),
        )
        for number in range(8)
    ] + (related_requests() if room == 256 else [])
    waiting = [structs.replace(item, request_id=str(number)) for number, item in enumerate(waiting)]
    items, outputs, aborted = {item.request_id: item for item in waiting}, {}, set()
    rng.shuffle(waiting)
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.4:
            engine.add_request(waiting.pop())
        if engine.has_work and rng.random() < 0.05:
            name = rng.choice(sorted(items.keys() - outputs.keys()))
            if engine.abort(name) is not None:
                aborted.add(name)
        if engine._in_flight is None and rng.random() < 0.05:
            engine.scheduler.preempt_all()
            engine.scheduler.check()
        for update in engine.step():
            if update.output:
                outputs[update.request_id] = update.output
        engine.scheduler.check()
    assert engine.scheduler.blocks.num_free == sum(config.group_blocks)
    assert outputs.keys() | aborted == items.keys()
    for name, output in outputs.items():
        assert output.outputs == expected(items[name]).outputs, name
