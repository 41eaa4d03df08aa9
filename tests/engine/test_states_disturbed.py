"""A hybrid whose requests are disturbed on real kernels, in one process and over ranks: the bits of each request alone.

Steps that fail, aborts, preemptions, several choices, answers that are gone on with, receipts that are replayed; and
the same of the engine's own process.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.batch import ForwardBatch
from karat.engine.engine import Engine
from karat.engine.requests.request_updates import RequestUpdate
from karat.ops.executor import Pending, Runner
from karat.ops.native import unavailable_reason
from karat.request import Resume
from tests.engine.fakes import outputs_of, request
from tests.engine.test_states_elsewhere import CONFIG, SYSTEM
from tests.engine.tiny import at_rest, preempt_often, tokens, write_model
from tests.support.seed import SEED

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

TEXTS = [SYSTEM + "Yes.", SYSTEM + "No.", SYSTEM[:50], SYSTEM + "Yes. And", "a"]
PROMPTS = [tuple(text.encode()) for text in TEXTS]
SIZES: dict[str, Any] = {"threads": 1, "max_num_batched_tokens": 16, "max_num_seqs": 4, "num_blocks": 40}
Answers = list[tuple[int, ...]]


PARAMS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}


def sampled(number: int, **more: Any) -> SamplingParams:
    return SamplingParams(seed=number, **PARAMS, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("hybrid"), **CONFIG)


@pytest.fixture(scope="module")
def expected(folder: Path) -> Iterator[Answers]:
    """Each prompt alone, in one step, without anything kept."""
    with LLM(folder, threads=1, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield [tokens(llm.generate([prompt], [sampled(n)]))[0] for n, prompt in enumerate(PROMPTS)]


class FailedStepError(Exception):
    pass


class Failing(Runner):
    """Every few steps fail, in turns before and after they are computed: states were written then, and do not count."""

    def __init__(self, run: Runner) -> None:
        self._run, self._steps, self.num_failed = run, 0, 0

    def submit(self, batch: ForwardBatch) -> Pending:
        self._steps += 1
        pending, fails = self._run.submit(batch), self._steps % 3 == 0

        def rows() -> Any:
            if fails and self.num_failed % 2:
                self.num_failed += 1
                raise FailedStepError
            found = pending.rows()
            if fails:
                self.num_failed += 1
                raise FailedStepError
            return found

        return Pending(rows)


def finish(engine: Engine) -> list[RequestUpdate]:
    """Step until nothing is left, whatever fails."""
    updates: list[RequestUpdate] = []
    while engine.has_work:
        with suppress(FailedStepError):
            updates += engine.step()
        engine.scheduler.check()
    return updates


def asked(engine: Engine) -> list[Any]:
    requests = [request(str(n), prompt, seed=n, end=(), **PARAMS) for n, prompt in enumerate(PROMPTS)]
    for item in requests:
        engine.add_request(item)
    return requests


def failed_steps(llm: LLM, expected: Answers) -> None:
    engine = llm.engine
    run = engine.run
    failing = Failing(run)
    engine.run = failing
    requests = asked(engine)
    outputs = outputs_of(finish(engine), requests)
    engine.run = run
    assert [outputs[str(n)].outputs[0].token_ids for n in range(len(PROMPTS))] == expected
    assert failing.num_failed > 10 and at_rest(llm)


def aborts(llm: LLM, expected: Answers) -> None:
    """Of some, in their prompts and among their tokens; asked again they have the same answers."""
    rng, engine = random.Random(f"{SEED}-aborts"), llm.engine
    for _ in range(3):
        requests, updates = asked(engine), []
        gone = rng.sample(range(len(PROMPTS)), 2)
        for number in gone:
            for _ in range(rng.randrange(12)):
                updates += engine.step() if engine.has_work else []
            engine.abort(str(number))
            engine.scheduler.check()
        left = [item for item in requests if int(item.request_id) not in gone]
        kept = [update for update in [*updates, *finish(engine)] if int(update.request_id) not in gone]
        outputs = outputs_of(kept, left)
        assert {int(name): out.outputs[0].token_ids for name, out in outputs.items()} == {
            n: answer for n, answer in enumerate(expected) if n not in gone
        }, f"KARAT_SEED={SEED}"
        assert at_rest(llm)
    assert answers(llm) == expected


def preemptions(llm: LLM, expected: Answers) -> None:
    schedule = llm.engine.scheduler.schedule
    before = llm.engine.scheduler.num_preemptions
    preempt_often(llm)
    for _ in range(2):
        assert answers(llm) == expected and at_rest(llm)
    llm.engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    assert llm.engine.scheduler.num_preemptions > before + 5


def several_choices(llm: LLM, expected: Answers) -> None:
    """A copy of the prompt's state each: choice 0 is that of n = 1, and the others are those of themselves alone."""
    (output,) = llm.generate([PROMPTS[0]], [sampled(0, n=3)])
    together = [choice.token_ids for choice in output.outputs]
    assert together[0] == expected[0] and len(set(together)) == 3
    for number in (1, 2):
        chunks = llm.resume(PROMPTS[0], (), sampled(0, n=3), choice=number)
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == together[number]
    assert at_rest(llm)


def gone_on_with(llm: LLM, expected: Answers) -> None:
    for number in (1, 12, 23):
        chunks = llm.resume(PROMPTS[1], expected[1][:number], sampled(1))
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == expected[1][number:]
    assert at_rest(llm)


def receipts(llm: LLM, expected: Answers) -> None:
    """A replay reads prompt and answer at once, where a sequence had a step for each token."""
    (output,) = llm.generate([PROMPTS[3]], [sampled(3)], receipt=True)
    (choice,) = output.outputs
    assert choice.token_ids == expected[3] and choice.receipt is not None
    assert llm.verify(choice.receipt).is_confirmed and at_rest(llm)


def answers(llm: LLM) -> Answers:
    return tokens(llm.generate(PROMPTS, [sampled(n) for n in range(len(PROMPTS))]))


DISTURBANCES = (failed_steps, aborts, preemptions, several_choices, gone_on_with, receipts)


@pytest.mark.parametrize("disturbance", DISTURBANCES, ids=lambda each: each.__name__)
def test_what_is_disturbed_has_the_bits_of_its_own(
    folder: Path, expected: Answers, disturbance: Callable[[LLM, Answers], None]
) -> None:
    with LLM(folder, **SIZES) as llm:
        disturbance(llm, expected)


@pytest.mark.slow
def test_over_ranks_it_has_them_too(folder: Path, expected: Answers) -> None:
    with LLM(folder, tensor_parallel_size=2, **SIZES) as llm:
        for disturbance in DISTURBANCES:
            disturbance(llm, expected)


@pytest.mark.slow
def test_in_the_engine_s_own_process_it_has_them_too(folder: Path, expected: Answers) -> None:
    """Little room for snapshots; a stream that its reader leaves; several choices; a receipt."""

    async def ask() -> None:
        async with await AsyncLLM.open(folder, **SIZES, state_cache_bytes=300_000) as llm:
            for _ in range(2):
                left = llm.stream(PROMPTS[0], sampled(9))
                await anext(left)
                others = [llm.generate(prompt, sampled(n)) for n, prompt in enumerate(PROMPTS)]
                together = asyncio.gather(*others)
                await left.aclose()
                assert tokens(await together) == expected
            several = await llm.generate(PROMPTS[0], sampled(0, n=3))
            assert several.outputs[0].token_ids == expected[0]
            begun = Resume(expected[1][:12])
            went_on = [update async for update in llm.stream(PROMPTS[1], sampled(1), resume=begun)]
            assert went_on[-1].output.outputs[0].token_ids == expected[1][12:]
            (choice,) = (await llm.generate(PROMPTS[3], sampled(3), receipt=True)).outputs
            assert choice.receipt is not None and (await llm.verify(choice.receipt)).is_confirmed

    asyncio.run(ask())
