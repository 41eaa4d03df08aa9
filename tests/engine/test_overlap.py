"""Steps that overlap: an executor that answers late gives the same tokens, and a step that fails changes nothing."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.batch import ForwardBatch
from karat.engine.engine import Engine
from karat.errors import NumericsError
from karat.ops.executor import Pending, Rows, Runner
from tests.engine.fakes import BYTES, SAMPLED, FakeModel, WholeEngine, alone, drive, make_config, request


class Late(Runner):
    """Computes a step when the one after the next is submitted, or when its rows are asked for, in order."""

    def __init__(self, compute: Callable[[ForwardBatch], Rows]) -> None:
        self.compute = compute
        self.num_overlapped = 0  # steps that were submitted while another one was not computed
        self._number = 0
        self._open: dict[int, ForwardBatch] = {}
        self._done: dict[int, Rows | Exception] = {}

    def submit(self, batch: ForwardBatch) -> Pending:
        self.num_overlapped += bool(self._open)
        number = self._number
        self._run_until(number - 2)
        self._open[number] = batch
        self._number += 1
        return Pending(lambda: self._rows(number))

    def _run_until(self, last: int) -> None:
        for number in sorted(self._open):
            if number > last:
                return
            batch = self._open.pop(number)
            try:
                self._done[number] = self.compute(batch).copy()
            except Exception as error:  # noqa: BLE001 - raised where the rows are asked for
                self._done[number] = error
            except BaseException:
                self._open[number] = batch
                raise

    def _rows(self, number: int) -> Rows:
        self._run_until(number)
        found = self._done.pop(number)
        if isinstance(found, Exception):
            raise found
        return found


def late_engine(**changes: Any) -> tuple[WholeEngine, FakeModel, Late]:
    config = make_config(vocab_size=BYTES.vocab_size, overlaps_steps=True, **changes)
    model = FakeModel(config)
    late = Late(model.compute)
    return WholeEngine(late, BYTES, config), model, late


@pytest.mark.slow
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), num_blocks=st.sampled_from([16, 22, 64]), share=st.booleans())
def test_random_traffic_has_the_same_answers(seed: int, num_blocks: int, share: bool) -> None:
    """Requests that come, end, are aborted and run out of blocks while another step is computed."""
    rng = random.Random(seed)
    engine, _, _ = late_engine(
        num_blocks=num_blocks, max_num_seqs=4, max_num_batched_tokens=9, enable_prefix_caching=share
    )
    waiting = [
        request(
            str(number),
            bytes(rng.choices(b"ab", k=rng.randint(1, 24))),
            seed=number,
            n=rng.choice([1, 1, 3]),
            **{**SAMPLED, "max_tokens": rng.randint(1, 12)},
            prompt_logprobs=rng.choice([None, 1]),
        )
        for number in range(8)
    ]
    items, outputs, aborted = {item.request_id: item for item in waiting}, {}, set()
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.4:
            engine.add_request(waiting.pop())
        if engine.has_work and rng.random() < 0.05:
            name = rng.choice(sorted(items.keys() - outputs.keys()))
            if engine.abort(name) is not None:
                aborted.add(name)
        for update in engine.step():
            if update.output:
                outputs[update.request_id] = update.output
        engine.scheduler.check()
    assert engine.scheduler.blocks.num_free == engine.config.num_blocks
    assert outputs.keys() | aborted == items.keys()
    for name, output in outputs.items():
        assert output.outputs == alone(items[name]).outputs, name


def test_steps_do_overlap() -> None:
    engine, _, late = late_engine(max_num_batched_tokens=8)
    items = [request(str(i), bytes([97 + i] * 20), seed=i, **SAMPLED) for i in range(4)]
    for item in items:
        engine.add_request(item)
    outputs, _ = drive(engine)
    assert late.num_overlapped > 10
    assert all(outputs[item.request_id] == alone(item) for item in items)


def test_a_value_the_cache_cannot_hold_ends_only_its_sequence() -> None:
    """It is found while the next step is computed, whose rows stay."""
    engine, model, late = late_engine(max_num_batched_tokens=8)

    def overflow(batch: Any) -> Any:
        if ((batch.token_ids == 255) & (batch.positions == 2)).any():  # of the prompt
            raise NumericsError("K of layer 3 does not fit")
        return model.compute(batch)

    late.compute = overflow
    good = [request(str(i), bytes([97 + i] * 9), seed=i, **SAMPLED) for i in range(3)]
    for item in (good[0], request("bad", b"ab\xff"), *good[1:]):
        engine.add_request(item)
    outputs, _ = drive(engine)
    assert all(outputs[item.request_id] == alone(item) for item in good)
    assert outputs["bad"].outputs[0].error == "choice 0: K of layer 3 does not fit"


@pytest.mark.parametrize("when", range(6))
@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_fails_changes_nothing(when: int, fault: type[BaseException]) -> None:
    engine, model, late = late_engine(max_num_batched_tokens=8)
    items = [request(str(i), bytes([97 + i] * 11), seed=i, **SAMPLED) for i in range(3)]
    for item in items:
        engine.add_request(item)
    num_steps, num_raised = 0, 0

    def fails(batch: Any) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps == when + 1:
            raise fault("once")
        return model.compute(batch)

    late.compute = fails
    outputs = {}
    while engine.has_work:
        try:
            updates = engine.step()
        except fault:
            num_raised += 1
            continue
        engine.scheduler.check()
        outputs.update({update.request_id: update.output for update in updates if update.output})
    assert num_raised == 1
    assert all(outputs[item.request_id] == alone(item) for item in items)


def test_an_interrupt_while_a_step_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is computed anew, though a step is still computed: what it writes later is overwritten in order."""
    engine, _, _ = late_engine(max_num_batched_tokens=8)
    items = [request(str(i), bytes([97 + i] * 11), seed=i, **SAMPLED) for i in range(3)]
    for item in items:
        engine.add_request(item)
    for _ in range(4):
        engine.step()
    assert engine._in_flight is not None
    serve, interrupted = engine._serve, []

    def interrupt(*given: Any) -> None:
        serve(*given)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_serve", interrupt)
    outputs = {}
    while engine.has_work:
        try:
            outputs.update({update.request_id: update.output for update in engine.step() if update.output})
        except KeyboardInterrupt:
            continue
    assert interrupted
    assert all(outputs[item.request_id] == alone(item) for item in items)


def test_receipts_are_the_same(folder: Path) -> None:
    prompts = ["abc", "another", "abc and more", "x"]
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=9)
    with LLM(folder, max_num_batched_tokens=16) as llm:
        want = llm.generate(prompts, params, receipt=True)
        late = Late(llm.engine.run)
        config = replace(llm.engine.config, overlaps_steps=True)
        llm.engine.__init__(late, llm.tokenizer, config)  # type: ignore[misc]
        got = llm.generate(prompts, params, receipt=True)
        assert late.num_overlapped
        for a, b in zip(want, got, strict=True):
            assert a.outputs[0].token_ids == b.outputs[0].token_ids
            assert a.outputs[0].receipt == b.outputs[0].receipt
        assert llm.verify(got[0].outputs[0].receipt).kind == "identical"
        assert np.isfinite(llm.logits([1, 2, 3])).all()
        assert isinstance(llm.engine, Engine) and not llm.engine.has_work
