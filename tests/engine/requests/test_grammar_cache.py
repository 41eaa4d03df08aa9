"""GrammarCache that take long to compile: who waits for them, for how long, and who does not."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from threading import enumerate as all_threads
from typing import Any

import pytest
from msgspec import structs

from karat import LLM, AsyncLLM, SamplingParams
from karat.engine.receipts.verifying import ReplayCommand
from karat.engine.remote.messages import Abort, Stepped
from karat.engine.remote.worker import Worker
from karat.engine.requests.grammar_cache import COMPILE_THREADS, MAX_KEPT
from karat.errors import OverloadedError, RequestError, UsageError
from karat.request import StructuredOutputs
from karat.request_record import Request
from tests.engine.fakes import BYTES
from tests.engine.remote.test_open_request import LONG, Line, at_rest
from tests.engine.test_async_llm import GREEDY, run
from tests.support.slow_forms import GATE_S, SlowForms

FORM = StructuredOutputs(regex="[a-z ]{5}")
FORMED = SamplingParams(temperature=0, max_tokens=30, structured_outputs=FORM)
SHORT_S = 0.05


def forms_of(count: int) -> list[StructuredOutputs]:
    return [StructuredOutputs(regex=f"a{{{n}}}") for n in range(1, count + 1)]


def until(condition: Any) -> None:
    end = time.monotonic() + GATE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def slow() -> Iterator[SlowForms]:
    made = SlowForms(BYTES, 258)
    yield made
    made.gate.set()


@pytest.fixture
def hasty() -> Iterator[SlowForms]:
    """With a limit that a form passes as long as the gate is shut."""
    made = SlowForms(BYTES, 258, limit_s=SHORT_S)
    yield made
    made.gate.set()


def test_the_last_ones_are_kept(slow: SlowForms) -> None:
    slow.gate.set()
    forms = forms_of(MAX_KEPT + 1)
    first = slow.forms.compile(forms[0])
    assert slow.forms.compile(StructuredOutputs(regex="a{1}")) is first
    for form in forms[1:]:
        slow.forms.compile(form)
    assert slow.forms.compile(forms[-1]) is slow.forms.compile(forms[-1])
    assert slow.compiled == forms
    assert slow.forms.compile(forms[0]) is not first


def test_few_are_compiled_at_a_time_and_none_twice(slow: SlowForms) -> None:
    forms = forms_of(7)
    asked = [slow.forms.ask(form) for form in forms * 3]
    until(lambda: len(slow.compiled) == COMPILE_THREADS)
    assert all(one.grammar is None for one in asked)
    slow.gate.set()
    grammars = [one.wait() for one in asked]
    assert sorted(slow.compiled, key=forms.index) == forms and slow.most == COMPILE_THREADS
    assert grammars == grammars[:7] * 3
    for one in asked:
        one.leave()
    until(lambda: not any(thread.name == "karat-forms" for thread in all_threads()))


def test_a_form_that_passes_the_limit_is_refused_and_kept_when_it_is_done(hasty: SlowForms) -> None:
    for _ in range(2):
        with pytest.raises(RequestError, match=r"regex was not compiled within 0\.05 s; expected a simpler form"):
            hasty.forms.compile(FORM)
    with pytest.raises(RequestError, match="regex was not compiled"):
        run(hasty.forms.compiled(FORM))
    hasty.gate.set()
    until(lambda: not hasty.forms._jobs)
    assert run(hasty.forms.compiled(FORM)) is hasty.forms.compile(FORM)
    assert hasty.compiled == [FORM]


def test_a_form_that_did_not_begin_is_not_to_blame(hasty: SlowForms) -> None:
    *busy, last = forms_of(COMPILE_THREADS + 1)
    for form in busy:
        hasty.forms.ask(form)
    until(lambda: len(hasty.compiled) == COMPILE_THREADS)
    with pytest.raises(OverloadedError, match="try again later"):
        hasty.forms.compile(last)
    hasty.gate.set()
    until(lambda: not hasty.forms._jobs)
    assert last not in hasty.compiled, "nobody asks for it any more"


def test_an_error_is_everybodys_and_not_kept(slow: SlowForms) -> None:
    wrong = StructuredOutputs(regex="(?=a)")
    asked = [slow.forms.ask(wrong) for _ in range(2)]
    slow.gate.set()
    for one in asked:
        with pytest.raises(RequestError, match="look-around"):
            one.wait()
    assert not slow.forms._jobs and not slow.forms._kept


class Listening(Line):
    """Hears its commands, then nothing, until `is_over`."""

    def __init__(self, commands: list[list[Any]], is_over: Any) -> None:
        super().__init__([*commands, []])
        self._is_over = is_over

    def take(self, wait_s: float | None) -> list[Any]:
        if len(self.commands) > 1:
            return super().take(wait_s)
        if self._is_over(self.told):
            raise EOFError
        time.sleep(wait_s or 0)
        return []


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as made:
        yield made


@pytest.fixture
def slow_llm(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LLM, SlowForms]]:
    slow = SlowForms(llm.tokenizer, llm.engine.config.vocab_size)
    monkeypatch.setattr(llm.engine.admission, "grammars", slow.forms)
    yield llm, slow
    slow.gate.set()
    assert not llm.engine.has_work and llm.engine.stats().num_blocks_used == 0


def pieces(told: list[Stepped], request_id: str) -> list[Any]:
    return [
        piece
        for message in told
        for update in message.updates
        if update.request_id == request_id
        for piece in update.chunks
    ]


def has_ended(told: list[Stepped], *request_ids: str) -> bool:
    ended = {update.request_id for message in told for update in message.updates if update.ended}
    ended |= {replayed.request_id for message in told for replayed in message.replayed}
    return ended >= set(request_ids)


FREE = Request("free", (1, 2, 3), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), 0)


@pytest.mark.parametrize("kind", ["answer", "replay"])
def test_no_step_waits_for_a_form(slow_llm: tuple[LLM, SlowForms], kind: str) -> None:
    """The gate opens when another stream, which came later, has 20 tokens: a step that waited would never see it."""
    llm, slow = slow_llm
    request = Request("formed", (1, 2, 3, 4), replace(FORMED, seed=3), 3)
    ids = tuple(llm.tokenizer.encode("abcde"))

    def is_over(told: list[Stepped]) -> bool:
        if len(pieces(told, "free")) >= 20:
            slow.gate.set()
        return has_ended(told, "free", "formed")

    line = Listening([[request if kind == "answer" else ReplayCommand(request, 0, ids), FREE]], is_over)
    with suppress(EOFError):
        Worker(line, llm).serve()  # type: ignore[arg-type]
    assert len(slow.compiled) == 1 and len(pieces(line.told, "free")) == 60
    if kind == "answer":
        text = "".join(piece.text for piece in pieces(line.told, "formed"))
        assert len(text) == 5 and text.replace(" ", "a").islower()
        first = next(
            n for n, message in enumerate(line.told) for update in message.updates if update.request_id == "formed"
        )
    else:
        first, told = next((n, told) for n, message in enumerate(line.told) for told in message.replayed)
        assert told.refused is None
    assert len(pieces(line.told[:first], "free")) >= 20


def test_a_worker_without_other_work_begins_when_the_form_is_compiled(slow_llm: tuple[LLM, SlowForms]) -> None:
    """In order: two of one form, of which the first wants fewer tokens."""
    llm, slow = slow_llm
    commands = [Request(name, (1, 2, 3, 4), FORMED, 0) for name in ("one", "two")]
    looks = 0

    def is_over(told: list[Stepped]) -> bool:
        nonlocal looks
        looks += 1
        if looks == 5:
            assert not told
            slow.gate.set()
        return has_ended(told, "one", "two")

    line = Listening([commands], is_over)
    with suppress(EOFError):
        Worker(line, llm).serve()  # type: ignore[arg-type]
    first = next(message for message in line.told if message.updates)
    assert [update.request_id for update in first.updates] == ["one", "two"] and len(slow.compiled) == 1


@pytest.mark.parametrize("kind", ["answer", "replay"])
def test_an_abort_while_compiling_leaves_nothing(slow_llm: tuple[LLM, SlowForms], kind: str) -> None:
    llm, slow = slow_llm
    request = Request("formed", (1, 2, 3), replace(FORMED, n=3, logprobs=1), 0)
    add = structs.replace(request, tells_progress=True) if kind == "answer" else ReplayCommand(request, 0, (1, 2))
    line = Listening([[add], [], [], [Abort("formed")], []], lambda told: True)
    worker = Worker(line, llm)  # type: ignore[arg-type]
    with suppress(EOFError):
        worker.serve()
    assert worker._formed == {} and worker._open == {} and worker._waiting == set() and worker._replays == {}
    if kind == "answer":
        ((update,),) = [message.updates for message in line.told]
        assert update.ended and [(piece.index, piece.finish_reason) for piece in update.chunks] == [
            (index, "abort") for index in range(3)
        ]
    slow.gate.set()
    until(lambda: not slow.forms._jobs)


def test_a_worker_refuses_what_passes_the_limit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = SlowForms(llm.tokenizer, llm.engine.config.vocab_size, limit_s=SHORT_S)
    monkeypatch.setattr(llm.engine.admission, "grammars", hasty.forms)
    request = Request("formed", (1, 2, 3), FORMED, 0)
    commands = [request, ReplayCommand(structs.replace(request, request_id="again"), 0, (1, 2))]
    line = Listening([commands], lambda told: has_ended(told, "formed", "again"))
    with suppress(EOFError):
        Worker(line, llm).serve()  # type: ignore[arg-type]
    hasty.gate.set()
    updates = [update for message in line.told for update in message.updates]
    replayed = [replayed for message in line.told for replayed in message.replayed]
    for (told,) in (updates, replayed):
        assert told.refused is not None and told.refused[0] == "RequestError" and "compiled within" in told.refused[1]
    assert not llm.engine.has_work


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    made = AsyncLLM(threads=1)
    yield made
    made.shutdown()


def slowed(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch, limit_s: float = GATE_S) -> SlowForms:
    slow = SlowForms(engine.tokenizer, engine.vocab_size, limit_s=limit_s)
    monkeypatch.setattr(engine.admission, "grammars", slow.forms)
    return slow


def test_other_streams_go_on_while_a_form_is_compiled(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = slowed(engine, monkeypatch)

    async def both() -> None:
        formed = asyncio.create_task(engine.generate("Once", FORMED))
        streams = [engine.stream(f"Once {n}", GREEDY) for n in range(6)]  # more than threads for texts
        for stream in streams:
            for _ in range(5):
                await anext(stream)
        assert not formed.done()
        slow.gate.set()
        output = await formed
        assert not isinstance(output, list) and len(output.outputs[0].text) == 5
        for stream in streams:
            await stream.aclose()
        await at_rest(engine)

    run(both())


def test_the_limit_ends_a_request_and_leaves_nothing(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = slowed(engine, monkeypatch, SHORT_S)

    async def refused() -> None:
        with pytest.raises(RequestError, match="regex was not compiled within"):
            await engine.generate("Once", FORMED)
        await at_rest(engine)

    run(refused())
    slow.gate.set()


def test_who_leaves_while_compiling_leaves_nothing(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is compiled and the others have not begun: these are never compiled."""
    slow = slowed(engine, monkeypatch)
    forms = forms_of(COMPILE_THREADS + 3)

    async def leave() -> None:
        params = [replace(LONG, structured_outputs=form) for form in forms]
        tasks = [asyncio.create_task(engine.generate("Once", one)) for one in params]
        while engine._engine._num_coming < len(tasks) or len(slow.forms._jobs) < len(tasks):
            await asyncio.sleep(0.001)
        while len(slow.compiled) < COMPILE_THREADS:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert len(slow.forms._jobs) <= COMPILE_THREADS
        await at_rest(engine)

    run(leave())
    slow.gate.set()
    until(lambda: not slow.forms._jobs)
    assert len(slow.compiled) == COMPILE_THREADS


def test_closing_waits_for_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close() -> None:
        engine = await AsyncLLM.open(threads=1)
        slow = slowed(engine, monkeypatch)
        formed = asyncio.create_task(engine.generate("Once", FORMED))
        while not slow.compiled:
            await asyncio.sleep(0.001)
        await engine.close()
        assert not slow.gate.is_set()
        slow.gate.set()
        with pytest.raises(UsageError, match="closed"):
            await formed

    run(close())
