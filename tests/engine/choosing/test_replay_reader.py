"""A replay beside other requests: bounded in each step, behind all of them, with no block of theirs.

Covers: karat.engine.choosing.replay_reader.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from msgspec import structs

from karat import LLM, SamplingParams
from karat.engine.choosing.replay_reader import ReplayReader
from karat.request_record import Request
from tests.engine.tiny import write_model

PARAMS = SamplingParams(seed=3, max_tokens=40, temperature=1.1, ignore_eos=True)
PROMPT = "Once upon a time, by the sea"


@pytest.fixture
def llm(tmp_path: Any) -> Iterator[LLM]:
    with LLM(write_model(tmp_path), num_blocks=12, max_num_seqs=5) as made:
        yield made


def answered(llm: LLM) -> tuple[Request, tuple[int, ...]]:
    (output,) = llm.generate(PROMPT, PARAMS)
    return Request("again", output.prompt_token_ids, PARAMS, 3), output.outputs[0].token_ids


def test_a_stream_waits_for_one_step_at_most(llm: LLM) -> None:
    """A step is the stream's, or the replay's and then of few rows. On a clock that goes on by 10 ms at each look."""
    request, ids = answered(llm)
    engine, ticks = llm.engine, count()
    engine._clock = lambda: next(ticks) / 100
    engine.add_request(structs.replace(request, request_id="stream", params=replace(PARAMS, max_tokens=90), seed=4))
    engine.advance()
    engine.take("stream")
    hits = engine.stats().prefix_hits
    replay = engine.replay(request, 0, ids, rows=4)
    chosen, streamed = [0], list[int]()
    while not replay.done:
        engine.advance()
        streamed.append(sum(len(chunk.token_ids) for update in engine.take("stream") for chunk in update.chunks))
        chosen.append(len(replay.output.token_ids))
    rows = [b - a for a, b in pairwise(chosen)]
    assert max(rows) == 4 and len(chosen) > 10 and max(streamed) == 1
    assert all(one or other for one, other in pairwise(streamed)), "the stream waits for one step at most"
    assert replay.difference is None and replay.error is None and replay.output.token_ids == ids
    assert engine.stats().prefix_hits == hits, "it computes all anew"


def test_it_waits_for_those_that_wait_and_goes_when_blocks_run_out(llm: LLM) -> None:
    request, ids = answered(llm)
    engine = llm.engine
    replay = engine.replay(request, 0, ids, rows=2)
    engine.advance()
    for number in range(4):
        wanted = structs.replace(request, request_id=str(number), seed=number, params=replace(PARAMS, max_tokens=80))
        engine.add_request(wanted)
    while engine.has_work:
        engine.advance()
    assert engine.stats().num_preemptions > 0
    assert replay.done and replay.difference is None and replay.output.token_ids == ids
    engine.scheduler.check()


def test_verifying_evicts_no_prefix(llm: LLM) -> None:
    """Twelve blocks; a replay takes four of them, eight times over, and one that has only digests is generated."""
    (output,) = llm.generate(PROMPT * 2, PARAMS, receipt=True)
    (found,) = llm.generate(PROMPT * 2, PARAMS)
    kept = llm.engine.scheduler.blocks.num_kept
    assert found.num_cached_tokens > 16 and kept > 1
    (short,) = llm.generate("Once", replace(PARAMS, max_tokens=4), receipt="digests")
    for _ in range(8):
        assert llm.verify(output.outputs[0].receipt).kind == "identical"
        assert llm.verify(short.outputs[0].receipt, "Once").kind == "identical"
    (again,) = llm.generate(PROMPT * 2, PARAMS)
    assert again.num_cached_tokens == found.num_cached_tokens


def test_an_aborted_replay_frees_its_blocks(llm: LLM) -> None:
    request, ids = answered(llm)
    llm.engine.replay(request, 0, ids, rows=1)
    llm.engine.advance()
    assert llm.engine.stats().num_blocks_used > 0
    llm.engine.abort_reading(request)
    assert llm.engine.stats().num_blocks_used == 0 and not llm.engine.has_work


@pytest.mark.parametrize("method", ["_choose", "read"])
def test_an_interrupt_leaves_it_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    request, ids = answered(llm)
    replay, original, num_calls = llm.engine.replay(request, 0, ids, rows=7), getattr(ReplayReader, method), 0

    def interrupted(self: ReplayReader, *args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        result = original(self, *args)
        if num_calls == 1:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(ReplayReader, method, interrupted)
    was_interrupted = False
    while not replay.done:
        try:
            llm.engine.advance()
        except KeyboardInterrupt:
            was_interrupted = True
    assert was_interrupted
    assert replay.difference is None and replay.error is None and replay.output.token_ids == ids


def test_receipts_of_preempted_answers_hold(llm: LLM) -> None:
    params = [replace(PARAMS, seed=number, max_tokens=80) for number in range(4)]
    outputs = llm.generate([PROMPT] * 4, params, receipt=True)
    assert llm.engine.stats().num_preemptions > 0
    assert all(llm.verify(output.outputs[0].receipt).kind == "identical" for output in outputs)
