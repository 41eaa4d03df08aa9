"""The engine where prompts begin alike: the same outputs as without sharing, and less to compute."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from karat.outputs import RequestOutput
from karat.request_record import Request
from tests.engine.fakes import SAMPLED, FakeModel, alone, drive, make_engine, request, run

SYSTEM = b"You are a fox. Be kind."  # 23 tokens: 5 blocks of 4


def related_requests() -> list[Request]:
    """Prompts that begin alike, one within another, one twice, some with choices or log-probabilities."""
    extras: list[tuple[bytes, dict[str, Any]]] = [
        (SYSTEM + b"Hello", {}),
        (SYSTEM + b"Hello, you", {"n": 3}),
        (SYSTEM[:20], {"temperature": 0}),
        (SYSTEM + b"Hello", {"prompt_logprobs": 1}),
        (SYSTEM[:8] + b"not", {"repetition_penalty": 1.5}),
        (b"Another beginning", {"n": 2, "prompt_logprobs": 0}),
        (SYSTEM + b"Hello, you", {"top_p": 0.5}),
    ]
    return [request(str(i), prompt, seed=i, **(SAMPLED | extra)) for i, (prompt, extra) in enumerate(extras)]


@cache
def expected_outputs() -> dict[str, RequestOutput]:
    return {item.request_id: alone(item) for item in related_requests()}


def num_computed(model: FakeModel) -> int:
    return sum(batch.num_tokens for batch in model.batches)


@pytest.mark.parametrize(
    ("sizes", "preempts"),
    [
        ({}, False),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 3}, False),
        ({"block_size": 1, "num_blocks": 512}, False),
        ({"block_size": 16, "num_blocks": 20}, False),
        ({"num_blocks": 12}, True),
        ({"num_blocks": 12, "max_num_batched_tokens": 9}, True),
        ({"block_size": 1, "num_blocks": 46}, True),
    ],
    ids=str,
)
def test_shared_and_not_are_the_same(sizes: dict[str, int], preempts: bool) -> None:
    """Tokens, text, log-probabilities, prompt log-probabilities and finish reasons, exactly."""
    requests = related_requests()
    plain, computing_all = make_engine(enable_prefix_caching=False, **sizes)
    sharing, computing_less = make_engine(**sizes)
    expected = expected_outputs()
    assert run(plain, *requests) == run(sharing, *requests) == expected
    assert plain.scheduler.num_found_tokens == 0 < sharing.scheduler.num_found_tokens
    assert num_computed(computing_less) < num_computed(computing_all)
    assert (sharing.scheduler.num_preemptions > 0) == preempts
    if not preempts:
        found = sharing.scheduler.num_found_tokens
        assert num_computed(computing_less) + found == num_computed(computing_all)


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_requests_that_come_and_go(rng: Any) -> None:
    waiting = related_requests() * 2
    rng.shuffle(waiting)
    engine, _ = make_engine(num_blocks=rng.choice([12, 20, 64]), max_num_batched_tokens=rng.choice([8, 13, 32]))
    expected = expected_outputs()
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.3 and waiting[-1].request_id not in engine._entries:
            engine.add_request(waiting.pop())
        if rng.random() < 0.05 and engine._entries:
            engine.abort(rng.choice(sorted(engine._entries)))
        for update in engine.step():
            if update.output:
                assert update.output == expected[update.request_id]
        engine.scheduler.check()
    assert engine.scheduler.blocks.num_free == engine.config.num_blocks


def test_a_prompt_is_computed_once_for_all_choices() -> None:
    engine, model = make_engine()
    run(engine, request("a", SYSTEM, n=4, max_tokens=2))
    assert [batch.num_tokens for batch in model.batches[:2]] == [23, 1 + 3 * 3]
    assert engine.scheduler.num_found_tokens == 3 * 20


def test_a_conversation_is_found_with_its_answers() -> None:
    engine, model = make_engine()
    first = run(engine, request("a", SYSTEM, temperature=0, max_tokens=15, ignore_eos=True))["a"]
    told = [*SYSTEM, *first.outputs[0].token_ids, *b"And?"]
    model.batches.clear()
    run(engine, request("b", told, temperature=0, max_tokens=1))
    assert num_computed(model) == len(told) - 36, "of 38 tokens, those generated but the last included"


def test_what_an_aborted_request_computed_is_found() -> None:
    engine, model = make_engine(max_num_batched_tokens=8)
    engine.add_request(request("a", SYSTEM))
    engine.step()
    engine.abort("a")
    item = request("b", SYSTEM, **SAMPLED)
    assert run(engine, item)["b"] == alone(item)
    assert model.batches[1].positions[0] == 8


def test_what_went_wrong_is_not_found() -> None:
    """Blocks of a sequence whose logits are not finite may hold what is not finite either."""
    broken = True

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        is_wrong = broken and len(context) >= len(SYSTEM)
        return np.full(258, np.nan, np.float32) if is_wrong else model.noise(context)

    engine, model = make_engine(logits_of, max_num_batched_tokens=8)
    item = request("a", SYSTEM, **SAMPLED)
    assert run(engine, item)["a"].outputs[0].finish_reason == "error"
    assert engine.scheduler.blocks.num_kept == 0
    broken = False
    model.batches.clear()
    assert run(engine, item)["a"] == alone(item)
    assert model.batches[0].positions[0] == 0 and engine.scheduler.num_found_tokens == 0


def test_logits_of_a_text_are_all_computed_whatever_is_known_of_it() -> None:
    engine, model = make_engine()
    for _ in range(2):
        logits = np.empty((23, 258), np.float32)
        engine.add_logits(tuple(SYSTEM), logits)
        drive(engine)
        assert all((logits[i] == model.noise(tuple(SYSTEM[: i + 1]))).all() for i in range(23))
    assert num_computed(model) == 2 * 23


def test_requests_of_different_salts_share_no_block_and_get_the_same_tokens() -> None:
    engine, model = make_engine()
    outputs = []
    for number, salt in enumerate([None, "a", "a", "b"]):
        item = structs.replace(request(str(number), bytes(range(16)), seed=1, **SAMPLED), salt=salt)
        before = len(model.batches)
        outputs.append(run(engine, item)[str(number)].outputs)
        computed = model.batches[before].token_ids
        assert len(computed) == (4 if number == 2 else 16), "only the second of a salt finds anything"
    assert all(output == outputs[0] for output in outputs)
