"""The engine on the fake model: what comes out of requests, however they are batched, cut and preempted.

Covers: karat.engine.choosing.logits_readers, karat.engine.engine_config.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.engine.engine import Engine
from karat.errors import CapacityError, RequestError
from karat.outputs import RequestOutput
from karat.request_record import Request
from tests.engine.fakes import (
    BYTES,
    SAMPLED,
    alone,
    drive,
    make_engine,
    request,
    run,
)


def some_requests() -> list[Request]:
    rng = np.random.default_rng(3)
    prompts = [bytes(rng.integers(0, 256, n).tolist()) for n in (1, 2, 4, 5, 9, 17, 30, 3)]
    extras: list[dict[str, Any]] = [
        {},
        {"n": 3},
        {"temperature": 0},
        {"repetition_penalty": 1.5, "top_k": 5},
        {"prompt_logprobs": 1},
        {"top_p": 0.5},
        {"prompt_logprobs": 0, "n": 2},
        {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    ]
    return [
        request(str(i), prompt, seed=i, **(SAMPLED | extra))
        for i, (prompt, extra) in enumerate(zip(prompts, extras, strict=True))
    ]


# Batch composition, chunks and preemption


@pytest.mark.parametrize(
    ("sizes", "preempts"),
    [
        ({}, False),
        ({"max_num_seqs": 1, "max_num_batched_tokens": 1}, False),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 3}, False),
        ({"max_num_batched_tokens": 8}, False),
        ({"block_size": 1, "num_blocks": 256}, False),
        ({"block_size": 64, "num_blocks": 5}, False),
        ({"block_size": 1}, True),
        ({"num_blocks": 16}, True),
        ({"num_blocks": 11, "max_num_batched_tokens": 9}, True),
    ],
    ids=str,
)
def test_alone_together_chunked_and_preempted_are_the_same(sizes: dict[str, int], preempts: bool) -> None:
    """Tokens, text, log-probabilities, prompt log-probabilities and finish reasons, exactly."""
    requests = some_requests()
    engine, _ = make_engine(**sizes)
    together = run(engine, *requests)
    assert together == {item.request_id: alone(item) for item in requests}
    assert (engine.scheduler.num_preemptions > 0) == preempts


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_requests_that_come_and_go_do_not_disturb_each_other(rng: Any) -> None:
    requests = some_requests()
    rng.shuffle(requests)
    engine, _ = make_engine(num_blocks=rng.choice([11, 20, 64]), max_num_batched_tokens=rng.choice([8, 13, 32]))
    outputs: dict[str, RequestOutput] = {}
    aborted: set[str] = set()
    waiting = list(requests)
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.4:
            engine.add_request(waiting.pop())
        if rng.random() < 0.05 and engine._entries:
            victim = rng.choice(sorted(engine._entries))
            update = engine.abort(victim)
            assert update is not None and update.output is not None
            outputs[victim] = update.output
            aborted.add(victim)
        for update in engine.step():
            if update.output:
                assert update.request_id not in outputs, "ended twice"
                outputs[update.request_id] = update.output
        engine.scheduler.check()
    assert engine.scheduler.blocks.num_free == engine.config.num_blocks
    assert set(outputs) == {item.request_id for item in requests}
    for item in requests:
        whole = alone(item)
        got = outputs[item.request_id]
        assert got.finished
        if item.request_id not in aborted:
            assert got == whole
        for part, full in zip(got.outputs, whole.outputs, strict=True):
            assert full.token_ids[: len(part.token_ids)] == part.token_ids
            assert full.text.startswith(part.text.rstrip("\ufffd"))
            assert part.finish_reason == ("abort" if part != full else full.finish_reason)


def test_every_token_goes_through_the_model_once() -> None:
    """Incremental decode: after the prompt, one token a step, at rising positions."""
    engine, model = make_engine()
    run(engine, request("a", b"hello", **SAMPLED))
    assert [batch.positions.tolist() for batch in model.batches] == [[0, 1, 2, 3, 4], *([p] for p in range(5, 16))]


# Choices and seeds


def test_choices_share_the_prompt_and_nothing_else() -> None:
    engine, _ = make_engine()
    output = run(engine, request("a", b"abc", n=4, seed=9, **SAMPLED))["a"]
    assert [choice.index for choice in output.outputs] == [0, 1, 2, 3]
    assert len({choice.token_ids for choice in output.outputs}) == 4
    engine, _ = make_engine()
    fewer = run(engine, request("b", b"abc", n=2, seed=9, **SAMPLED))["b"]
    assert fewer.outputs == output.outputs[:2], "a choice does not depend on how many there are"


def test_greedy_choices_are_the_same() -> None:
    engine, _ = make_engine()
    output = run(engine, request("a", b"abc", n=3, temperature=0, max_tokens=5))["a"]
    assert len({choice.token_ids for choice in output.outputs}) == 1


def test_choices_end_one_by_one() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", b"abc", n=8, seed=1, stop_token_ids=list(range(128)), max_tokens=6))
    outputs, chunks = drive(engine)
    lengths = {choice.index: len(choice.token_ids) for choice in outputs["a"].outputs}
    assert len(set(lengths.values())) > 1
    for index, length in lengths.items():
        own = [chunk for chunk in chunks["a"] if chunk.index == index]
        assert len(own) == length and [chunk.finish_reason is None for chunk in own] == [True] * (length - 1) + [False]


# Prompt log-probabilities and logits


def test_prompt_logprobs_are_those_of_the_models_logits() -> None:
    from karat.engine.choosing.logprobs import token_logprobs

    engine, model = make_engine(max_num_batched_tokens=8)
    prompt = bytes(range(40, 63))
    output = run(engine, request("a", prompt, prompt_logprobs=3, max_tokens=1))["a"]
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for i in range(1, len(prompt)):
        row = model.logits_of(tuple(prompt[:i]))
        want = token_logprobs(row, prompt[i], 3, lambda token_id: BYTES.decode_continuation([token_id]))
        assert output.prompt_logprobs[i] == want


@pytest.mark.parametrize("sizes", [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 16}], ids=str)
def test_prompt_logprobs_come_once_in_the_first_chunk_of_choice_0(sizes: dict[str, int]) -> None:
    engine, _ = make_engine(**sizes)
    for item in some_requests():
        engine.add_request(item)
    engine.add_request(request("n", bytes(20), n=3, prompt_logprobs=2, seed=1, **SAMPLED))
    outputs, chunks = drive(engine)
    assert sum(output.prompt_logprobs is not None for output in outputs.values()) == 3
    for name, output in outputs.items():
        first, *others = [chunk for chunk in chunks[name] if chunk.index == 0]
        assert first.prompt_logprobs == output.prompt_logprobs
        others += [chunk for chunk in chunks[name] if chunk.index != 0]
        assert all(chunk.prompt_logprobs is None for chunk in others)


def test_prompt_logits_are_made_once_for_all_choices() -> None:
    engine, model = make_engine()
    run(engine, request("a", bytes(10), prompt_logprobs=1, n=3, max_tokens=2))
    assert sum(len(batch.logit_rows) for batch in model.batches) == 9 + 3 * 2


def test_prompt_logits_are_made_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karat.engine.engine_config.PROMPT_LOGITS_BYTES", 5 * 258 * 4)
    engine, model = make_engine()
    whole = run(engine, request("a", bytes(30), prompt_logprobs=1, max_tokens=2))["a"]
    assert max(len(batch.logit_rows) for batch in model.batches) == 5
    monkeypatch.undo()
    engine, model = make_engine()
    assert run(engine, request("a", bytes(30), prompt_logprobs=1, max_tokens=2))["a"] == whole
    assert max(len(batch.logit_rows) for batch in model.batches) == 30


@pytest.mark.parametrize("budget", [8, 64])
def test_logits_of_every_position_beside_other_requests(budget: int) -> None:
    engine, model = make_engine(num_blocks=16, max_num_batched_tokens=budget)
    engine.add_request(request("a", b"abcdefgh", max_tokens=40, ignore_eos=True))
    for _ in range(3):
        engine.step()
    text = tuple(range(30))
    logits = np.empty((30, 258), np.float32)
    reader = engine.add_logits(text, logits)
    drive(engine)
    assert reader.done and reader.error is None
    for i in range(30):
        assert (logits[i] == model.logits_of(text[: i + 1])).all()


def test_logits_given_up_leave_nothing() -> None:
    engine, _ = make_engine(max_num_batched_tokens=8)
    logits = np.empty((30, 258), np.float32)
    engine.add_logits(tuple(range(30)), logits)
    engine.step()
    assert engine.scheduler.blocks.num_free < 64
    engine.abort_reading(logits)
    engine.abort_reading(logits)
    assert engine.scheduler.blocks.num_free == 64 and not engine.has_work


# What is refused


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        (b"", {}, RequestError, "the prompt has no tokens"),
        ([258], {}, RequestError, "the prompt: 258 is no token id; expected integers from 0 to 257"),
        ([-1], {}, RequestError, "-1 is no token id"),
        ([True], {}, RequestError, "True is no token id"),
        ([10**5000], {}, RequestError, "too long to print"),
        (b"a", {"stop_token_ids": [258]}, RequestError, "stop_token_ids: 258 is no token id"),
        (b"a", {"logit_bias": {300: 1}}, RequestError, "logit_bias: 300 is no token id"),
        (bytes(64), {}, CapacityError, "the prompt has 64 tokens, and the context of 64 must hold at least one more"),
        (bytes(70), {"max_tokens": 1}, CapacityError, "the prompt has 70 tokens, and the context of 64"),
        (bytes(60), {"max_tokens": 5}, CapacityError, "max_tokens=5 after a prompt of 60 tokens: .* 64 leaves 4"),
        (bytes(60), {"min_tokens": 5}, CapacityError, "min_tokens=5 after a prompt of 60 tokens"),
    ],
)
def test_refused_before_any_work(prompt: Any, params: Any, error: type[Exception], message: str) -> None:
    engine, _ = make_engine()
    with pytest.raises(error, match=message):
        engine.add_request(request("a", prompt, **params))
    assert not engine.has_work and engine.abort("a") is None


def test_a_prompt_that_fills_the_context_but_for_one_token() -> None:
    engine, _ = make_engine()
    (choice,) = run(engine, request("a", bytes(63), ignore_eos=True))["a"].outputs
    assert len(choice.token_ids) == 1 and choice.finish_reason == "length"


def test_within_the_context_but_larger_than_the_cache() -> None:
    engine, _ = make_engine(num_blocks=8)
    with pytest.raises(CapacityError, match=r"grow to 63 tokens.*holds 32 \(8 blocks of 4\)"):
        engine.add_request(request("a", bytes(40)))
    assert run(engine, request("a", bytes(20), max_tokens=13, ignore_eos=True))["a"].finished


def test_the_scheduler_knows_how_long_a_sequence_may_become() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", bytes(20), max_tokens=13))
    assert engine.scheduler._waiting[0].max_len == 32, "the last token never enters the cache"


def test_a_request_id_is_used_once_at_a_time() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", b"abc", max_tokens=2))
    with pytest.raises(RequestError, match="'a' is already running"):
        engine.add_request(request("a", b"abc"))
    drive(engine)
    assert run(engine, request("a", b"abc", max_tokens=2))["a"].finished


# Aborting


@pytest.mark.parametrize("num_steps", [0, 1, 3, 6])
def test_abort_frees_everything_at_once(num_steps: int) -> None:
    """While it waits, in the middle of the prompt, and while it writes."""
    engine, _ = make_engine(max_num_batched_tokens=8)
    other = request("b", b"xyz", seed=2, **SAMPLED)
    engine.add_request(request("a", bytes(20), n=3, ignore_eos=True))
    engine.add_request(other)
    for _ in range(num_steps):
        engine.step()
    update = engine.abort("a")
    assert update is not None and update.output is not None and update.output.finished
    assert [choice.finish_reason for choice in update.output.outputs] == ["abort"] * 3
    assert [chunk.finish_reason for chunk in update.chunks] == ["abort"] * 3
    engine.scheduler.check()
    assert engine.abort("a") is None
    outputs, _ = drive(engine)
    assert outputs["b"] == alone(other)


def test_abort_keeps_choices_that_ended_before() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", b"abc", n=8, seed=1, stop_token_ids=list(range(128)), max_tokens=30))
    for _ in range(2):
        engine.step()
    update = engine.abort("a")
    assert update is not None and update.output is not None
    assert {choice.finish_reason for choice in update.output.outputs} == {"stop", "abort"}


def test_an_engine_at_rest_does_nothing() -> None:
    engine: Engine
    engine, model = make_engine()
    assert engine.step() == [] and model.batches == []
