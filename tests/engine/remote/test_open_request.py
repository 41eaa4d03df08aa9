"""Requests of AsyncLLM that are cancelled, dropped, aborted, refused, too late or not read; and a message a step."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from karat import LLM, AsyncLLM, RequestOutput, SamplingParams
from karat.children.connection import Connection
from karat.engine.receipts import verifying
from karat.engine.receipts.comparing import Compare
from karat.engine.remote import opening as async_opening
from karat.engine.remote import worker as async_worker
from karat.engine.remote.messages import Abort, Replayed, Stepped
from karat.engine.remote.process import encoded
from karat.engine.remote.worker import Worker, _Line
from karat.engine.requests.request_updates import Gathered, RequestUpdate
from karat.errors import OverloadedError, RequestError, SlowReaderError, UsageError
from karat.ops.executor import AtOnce
from karat.outputs import StreamChunk
from karat.receipts.verdict import Difference
from karat.request_record import Request
from tests.engine.test_async_llm import GREEDY, PROMPTS, run

LONG = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    """Two at a time, blocks for not much more than that, long prompts in chunks."""
    made = AsyncLLM(threads=1, max_num_seqs=2, num_blocks=80, max_num_batched_tokens=32, max_queue=4)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def tight() -> Iterator[AsyncLLM]:
    """With so few blocks that of three at a time some have to give theirs back."""
    made = AsyncLLM(threads=1, max_num_seqs=3, num_blocks=12, max_model_len=192, max_num_batched_tokens=32)
    yield made
    made.shutdown()


async def at_rest(engine: AsyncLLM) -> None:
    """Returns when the engine has nothing left of any request; a new one makes it say so."""
    assert engine._engine._open == {} and engine._engine._num_coming == 0
    await engine.generate("a", SamplingParams(max_tokens=1))
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)


class Line:
    """What a worker hears before each step, and what it said."""

    def __init__(self, commands: list[list[Any]]) -> None:
        self.commands = commands
        self.told: list[Stepped] = []

    def take(self, wait_s: float | None) -> list[Any]:
        if not self.commands[1:]:
            raise EOFError
        return self.commands.pop(0)

    def send(self, message: Stepped) -> None:
        self.told.append(message)

    def take_logs(self) -> list[Any]:
        return []


def served(llm: LLM, *commands: list[Any]) -> list[Stepped]:
    line = Line([list(some) for some in commands])
    with suppress(EOFError):
        Worker(line, llm).serve()  # type: ignore[arg-type]
    return line.told


def add(number: int, *, length: int = 40, max_tokens: int = 900) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(str(number), (number + 1,) * length, params, 0)


def test_the_worker_frees_before_the_next_step_and_tells_each_step_once(llm: LLM) -> None:
    """An abort that comes while a step is computed is obeyed before the next one: two steps at the most."""
    told = served(llm, [add(0), add(1), add(2, max_tokens=2)], [], [Abort("0"), Abort("7")], [], [Abort("1")], [])
    steps = [{update.request_id: update for update in message.updates} for message in told]
    assert [sorted(step) for step in steps] == [["0", "1", "2"], ["0", "1", "2"], ["0", "1"], ["1"], ["1"]][
        : len(steps)
    ]
    assert steps[1]["2"].ended and steps[1]["2"].chunks[-1].finish_reason == "length"
    assert steps[2]["0"].ended and steps[2]["0"].chunks[-1].finish_reason == "abort"
    assert [message.stats.num_running for message in told] == [3, 2, 1, 1, 0]
    assert told[-1].stats.num_blocks_used == 0 and not llm.engine.has_work


@pytest.mark.parametrize("is_asked", [True, False])
def test_progress_is_told_twice_a_second_to_who_asks(is_asked: bool, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes 10 ms on the engine's clock, of which its pace knows. Without asking, chunks are whole."""
    engine, now = llm.engine, [0.0]
    run = engine.run

    def slow(batch: Any) -> Any:
        now[0] += 0.01 * batch.num_tokens
        return run(batch)

    engine._pace.__init__(0.0)  # type: ignore[misc]
    monkeypatch.setattr(engine, "run", AtOnce(slow))
    monkeypatch.setattr(engine, "_clock", lambda: now[0])
    asked = add(50 + is_asked, length=800, max_tokens=1)
    told = served(llm, [structs.replace(asked, tells_progress=is_asked)], *[[] for _ in range(40)])
    computed = [update.progress.num_computed for message in told for update in message.updates if update.progress]
    if is_asked:
        assert computed[-1] == 800 and max(b - a for a, b in pairwise(computed)) <= 50, "half a second"
    else:
        assert computed == [512]
    assert told[-1].updates[-1].ended
    engine._pace.__init__(0.0)  # type: ignore[misc]


@pytest.mark.parametrize("is_watched", [True, False])
def test_who_watches_nothing_has_the_first_token_and_each_end(is_watched: bool, llm: LLM) -> None:
    """And the same answers."""
    params = SamplingParams(n=2, max_tokens=20, stop=(" a",), ignore_eos=True)
    asked = structs.replace(add(60), params=params, seed=3, is_watched=is_watched)
    (plain,) = [gathered.output() for gathered in llm._shared.run([asked], show_progress=False)]
    lengths = {len(choice.token_ids) for choice in plain.outputs}
    updates = [update for message in served(llm, [asked], *[[] for _ in range(25)]) for update in message.updates]
    gathered = Gathered(asked)
    for update in updates:
        gathered.add(update)
    assert gathered.output().outputs == plain.outputs and len(lengths) == 2 and min(lengths) > 1
    assert len(updates) == (max(lengths) if is_watched else 3)
    assert updates[0].chunks and updates[0].progress is not None and updates[-1].ended


def test_a_step_that_nobody_watches_is_not_bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """But it is where one watches. And while it lasts the worker says now and then that it goes on."""
    bounded, now, advance = list[bool](), [0.0], llm.engine.advance

    def slow(*, is_watched: bool, prompt_step_s: float) -> None:
        bounded.append(is_watched)
        now[0] += 0.3
        advance(is_watched=is_watched, prompt_step_s=prompt_step_s)

    monkeypatch.setattr(llm.engine, "advance", slow)
    line = Line([[structs.replace(add(61, max_tokens=14), is_watched=False)], *[[] for _ in range(5)], [add(62)]])
    line.commands += [[], [Abort("62")], *[[] for _ in range(10)]]
    with suppress(EOFError):
        Worker(line, llm, lambda: now[0]).serve()  # type: ignore[arg-type]
    assert bounded == [False] * 6 + [True] * 2 + [False] * 6
    assert [len(message.updates) for message in line.told[:2]] == [1, 0], (
        "a first token, and after 1.2 s that it goes on"
    )
    assert not llm.engine.has_work


def test_a_request_that_the_engine_refuses_is_told(llm: LLM) -> None:
    (message,) = served(llm, [add(0, length=5000)], [])
    (update,) = message.updates
    assert update.ended and update.refused is not None and update.refused[0] == "CapacityError"


def test_a_comparison_has_a_quarter_of_the_time_while_others_are_computed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a made up clock a step takes 15 ms. Alone, a comparison has all of it."""
    engine, now, spent = llm.engine, [0.0], {True: [0.0], False: [0.0]}
    step = engine.run

    def timed(batch: Any) -> Any:
        now[0] += 0.015
        return step(batch)

    def compared(beside: Any, asked: Any, rows: Any, grammar: Any, is_alone: Any) -> Any:
        for _ in range(40):
            took = 0.1 if is_alone() else 0.02
            spent[is_alone()].append(took)
            now[0] += took
            yield

    monkeypatch.setattr(engine, "run", AtOnce(timed))
    monkeypatch.setattr(async_worker, "comparing", compared)
    asked = Compare(add(9), 0, (1,), "int8", "int16")
    line = Line([[add(70, max_tokens=100), asked], *[[] for _ in range(200)]])
    with suppress(EOFError):
        Worker(line, llm, lambda: now[0]).serve()  # type: ignore[arg-type]
    beside, alone = sum(spent[False]), sum(spent[True])
    ended = next(place for place, message in enumerate(line.told) if message.updates and message.updates[-1].ended)
    assert ended == 99, "the stream has a token in each step"
    assert 0.2 * 1.5 <= beside <= (1.5 + beside) * 0.25 + 0.02
    assert len(spent[True]) + len(spent[False]) - 2 == 40 and alone > 0
    assert line.told[-1].replayed[0].request_id == "9"


@pytest.mark.slow
def test_one_message_a_step(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = type(engine._engine.process).take

    def counting(process: Any) -> Any:
        messages = take(process)
        taken.append(len(messages))
        return messages

    async def count() -> None:
        await engine.generate("a", GREEDY)
        before = await engine.stats()
        taken.clear()
        await engine.generate(PROMPTS[:2], LONG)
        after = await engine.stats()
        assert 900 <= sum(taken) <= after.num_steps - before.num_steps + 2, "aborts may be told without a step"
        assert len(taken) <= sum(taken)

    monkeypatch.setattr(type(engine._engine.process), "take", counting)
    run(count())


@pytest.mark.parametrize("way", ["cancel", "close", "drop", "break", "time out"])
def test_who_waits_no_longer_frees_the_blocks(way: str, engine: AsyncLLM) -> None:
    """Streaming, in the middle of a prompt, and in the queue."""

    async def leave() -> None:
        began = asyncio.Event()

        async def read(prompt: Any) -> None:
            async for _ in engine.stream(prompt, LONG):
                began.set()
                if way == "break":
                    break

        if way in ("cancel", "time out"):
            tasks = [asyncio.create_task(read(prompt)) for prompt in (PROMPTS[0], range(1, 100), range(2, 90), "a")]
            if way == "time out":
                for task in tasks:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(task, 0.05)
            else:
                await began.wait()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        elif way == "break":
            await read(PROMPTS[0])
        else:
            stream = engine.stream(PROMPTS[0], LONG)
            await anext(stream)
            if way == "close":
                await stream.aclose()
            del stream
        await asyncio.sleep(0)  # an iterator that is dropped ends in a task of its own
        await asyncio.sleep(0)
        await at_rest(engine)

    run(leave())


def test_an_abort_is_the_last_update(engine: AsyncLLM) -> None:
    async def abort() -> None:
        running = [engine.stream(prompt, LONG, request_id=f"{n}") for n, prompt in enumerate(PROMPTS[:2])]
        for stream in running:
            await anext(stream)
        queued = asyncio.create_task(engine.generate("queued", LONG, request_id="queued"))
        while "queued" not in {opened.request.request_id for opened in engine._engine._open.values()}:
            await asyncio.sleep(0)
        for name in ("queued", "0", "1", "nobody"):
            await engine.abort(name)
        output = await queued
        assert isinstance(output, RequestOutput) and output.outputs[0].finish_reason == "abort"
        assert output.outputs[0].token_ids == () and output.request_id == "queued"
        for stream in running:
            updates = [update async for update in stream]
            assert updates[-1].output is not None and updates[-1].output.outputs[0].finish_reason == "abort"
        await at_rest(engine)

    run(abort())


def test_a_full_queue_refuses_at_once(engine: AsyncLLM) -> None:
    async def fill() -> None:
        tasks = [asyncio.create_task(engine.generate(prompt, LONG)) for prompt in [*PROMPTS, *PROMPTS[:2]]]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"4 answers wait already, and 4 may \(max_queue\); try again later"):
            await anext(engine.stream("one too many"))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        outputs = await engine.generate(PROMPTS * 3, GREEDY)  # a list waits by itself
        assert len(outputs) == 12 and all(output.finished for output in outputs)
        await at_rest(engine)

    run(fill())


def test_who_waits_for_too_long_is_told() -> None:
    async def wait() -> None:
        async with await AsyncLLM.open(threads=1, max_num_seqs=1, queue_timeout_s=60) as engine:
            running = engine.stream(PROMPTS[0], LONG)
            await anext(running)
            engine._opener.queue_timeout_s = 0.05  # the first one may take longer to begin, on a machine that is busy
            with pytest.raises(OverloadedError, match=r"the request has waited for 0\.05 s \(queue_timeout_s\)"):
                await engine.generate("late", LONG, request_id="late")
            output = [update.output async for update in running][-1]
            assert output is not None and output.outputs[0].finish_reason == "length"
            await at_rest(engine)

    run(wait())


def test_who_does_not_read_loses_it(engine: AsyncLLM) -> None:
    async def first_update(params: SamplingParams) -> Any:
        """Of a stream that may be 100 tokens behind; others may be more, as where the loop had no core for a while."""
        stream = engine.stream(PROMPTS[0], params, request_id="slow")
        await anext(stream)
        for opened in engine._engine._open.values():
            opened._most_kept = 100
        return stream

    async def sleep() -> None:
        slow = await first_update(LONG)
        output = await engine.generate(PROMPTS[1], LONG)
        assert output.finished, "others go on"
        with pytest.raises(SlowReaderError, match="tokens of request slow wait to be read, of at most 100"):
            await anext(slow)
        short = await first_update(SamplingParams(max_tokens=90, ignore_eos=True))
        await engine.generate(PROMPTS[1], LONG)
        assert sum(len(chunk.token_ids) for update in [u async for u in short] for chunk in update.chunks) == 89
        await at_rest(engine)

    run(sleep())


def test_who_follows_sees_each_update_as_it_comes(engine: AsyncLLM) -> None:
    async def follow() -> None:
        seen: list[Any] = []
        request = await engine.request(PROMPTS[0], GREEDY, request_id="mine", prompt_progress=True)
        output = await engine.follow(request, seen.append)
        streamed = [update async for update in engine.stream(PROMPTS[0], GREEDY, request_id="mine")]
        assert [chunk for update in seen for chunk in update.chunks] == [c for u in streamed for c in u.chunks]
        assert seen[-1].output is output and [update.output for update in seen[:-1]] == [None] * (len(seen) - 1)
        assert seen[0].progress is not None and output.outputs == streamed[-1].output.outputs
        await at_rest(engine)

    run(follow())


@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_an_error_of_who_sees_ends_the_request_alone(at: int, engine: AsyncLLM) -> None:
    async def follow() -> None:
        num_seen = 0

        def see(update: Any) -> None:
            nonlocal num_seen
            num_seen += 1
            if num_seen > at:
                raise ZeroDivisionError

        other = asyncio.create_task(engine.generate(PROMPTS[1], GREEDY))
        with pytest.raises(ZeroDivisionError):
            await engine.follow(await engine.request(PROMPTS[0], LONG if at < 11 else GREEDY), see)
        assert num_seen == at + 1
        output = await other
        assert isinstance(output, RequestOutput) and output.finished
        await at_rest(engine)

    run(follow())


def test_the_queue_counts_answers(engine: AsyncLLM) -> None:
    """Two are computed and four may wait; a request of many answers waits for an engine that has nothing else."""

    async def fill() -> None:
        many = SamplingParams(max_tokens=900, ignore_eos=True, n=5)
        tasks = [asyncio.create_task(engine.generate(PROMPTS[0], many))]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"3 answers wait already, 2 more were asked for, and 4 may"):
            await engine.generate(PROMPTS[1], SamplingParams(n=2))
        tasks.append(asyncio.create_task(engine.generate(PROMPTS[1], LONG)))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"4 answers wait already, and 4 may"):
            await engine.generate(PROMPTS[1], GREEDY)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        more_than_there_are_places = SamplingParams(max_tokens=2, n=9)
        (output,) = await engine.generate([PROMPTS[0]], more_than_there_are_places)
        assert len(output.outputs) == 9
        outputs = await engine.generate(PROMPTS, SamplingParams(max_tokens=2, n=4))  # a list waits by itself
        assert [len(output.outputs) for output in outputs] == [4] * len(PROMPTS)
        await at_rest(engine)

    run(fill())


@pytest.mark.parametrize("way", ["generate", "stream"])
def test_an_answer_that_cannot_be_completed_ends_its_request_alone(
    way: str, engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever raises: the others of the same step have all their tokens, and nobody waits for ever."""

    async def both() -> None:
        await engine.fingerprint()
        want = await engine.generate(PROMPTS[1], GREEDY)

        async def bad() -> None:
            if way == "generate":
                await engine.generate(PROMPTS[0], GREEDY, receipt=True)
            else:
                [update async for update in engine.stream(PROMPTS[0], GREEDY, receipt=True)]

        async def good() -> Any:
            return await engine.generate(PROMPTS[1], GREEDY)

        faults = await asyncio.gather(*[each() for _ in range(2) for each in (bad, good)], return_exceptions=True)
        assert [type(fault) for fault in faults[::2]] == [ZeroDivisionError] * 2
        assert [output.outputs for output in faults[1::2]] == [want.outputs] * 2
        await at_rest(engine)

    def fail(*_: object) -> None:
        threads.append(threading.get_ident())
        raise ZeroDivisionError

    threads: list[int] = []
    monkeypatch.setattr(async_opening, "receipts_for", fail)
    run(both())
    assert len(threads) == 2 and threading.get_ident() not in threads, "the event loop hashes nothing"


def test_a_receipt_that_cannot_be_made_ends_its_answer_alone(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    made = verifying.receipt_of

    def of_some(found: Any, request: Request, choice: Any, **options: Any) -> Any:
        if choice.index == 1:
            raise MemoryError
        return made(found, request, choice, **options)

    async def ask() -> None:
        params = SamplingParams(max_tokens=4, n=3, seed=1)
        output = await engine.generate(PROMPTS[0], params, receipt=True)
        with LLM(threads=1) as llm:
            (same,) = llm.generate(PROMPTS[0], params, receipt=True)
        assert [choice.finish_reason for choice in output.outputs] == ["length", "error", "length"]
        assert [choice.receipt is None for choice in output.outputs] == [False, True, False]
        assert output.outputs[1].error_type == "OutOfMemoryError"
        assert "choice 1: its receipt could not be made: memory ran out" in str(output.outputs[1].error)
        assert [choice.error for choice in same.outputs] == [choice.error for choice in output.outputs]

    monkeypatch.setattr(verifying, "receipt_of", of_some)
    run(ask())


def test_a_text_of_token_ids_that_is_no_unicode_is_refused(engine: AsyncLLM, llm: LLM) -> None:
    prompt = {"prompt": "a\ud800", "prompt_token_ids": [1, 2]}
    with pytest.raises(RequestError, match="half a surrogate pair"):
        run(engine.generate(prompt, GREEDY, receipt=True))
    with pytest.raises(RequestError, match="half a surrogate pair"):
        llm.generate(prompt, GREEDY)
    run(at_rest(engine))


@pytest.mark.parametrize(
    ("fault", "told"),
    [(MemoryError(), "OutOfMemoryError"), (KeyError("x"), "BugError"), (RequestError("no"), "RequestError")],
)
def test_a_request_that_cannot_be_added_is_refused_alone(
    fault: Exception, told: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is queued, and in the middle of that."""
    queue = llm.engine.scheduler.add

    def failing(seq: Any) -> None:
        if seq.token_ids[0] == 1:  # of add(0)
            raise fault
        queue(seq)

    monkeypatch.setattr(llm.engine.scheduler, "add", failing)
    first, *_, last = served(llm, [add(0), add(1, max_tokens=3)], [], [], [])
    by_id = {update.request_id: update for update in first.updates}
    assert by_id["0"].refused is not None and by_id["0"].refused[0] == told and by_id["0"].ended
    assert by_id["1"].chunks and last.updates[-1].chunks[-1].finish_reason == "length"
    assert not llm.engine.has_work and "0" not in llm.engine._entries


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Line, Connection]]:
    """A worker's line and the parent's end of it. What it changes of logging is put back."""
    logger = logging.getLogger("karat")
    for name in ("level", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr(logger, "handlers", [])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield _Line(Connection(ours)), Connection(theirs)


def test_a_command_that_comes_in_part_is_not_waited_for(line: tuple[_Line, Connection]) -> None:
    """No step waits for the rest of a command that is larger than what a socket holds."""
    ours, theirs = line
    small, large = encoded(Abort("1")), encoded(Abort("2" * 2_000_000))
    assert not theirs.offer(small) or not theirs.offer(large)
    assert ours.take(0.0) == [Abort("1")]
    assert ours.take(0.0) == []
    found: list[Any] = []
    while not found:
        theirs.offer()
        found = ours.take(0.0)
    assert found == [Abort("2" * 2_000_000)]


def test_news_that_cannot_be_sent_end_their_request_alone(llm: LLM, line: tuple[_Line, Connection]) -> None:
    bad = RequestUpdate("bad", (StreamChunk(0, "\ud800", (1,)),))
    good = RequestUpdate("good", (StreamChunk(0, "a", (2,)),), ended=True)
    line[0].send(Stepped([bad, good], llm.engine.stats(), [], [Replayed("r", Difference("\ud800"), None)]))
    (message,) = line[1].take()
    step = msgspec.msgpack.Decoder(Stepped).decode(message)
    assert step.updates[1] == good and step.updates[0].request_id == "bad" and not step.updates[0].ended
    assert step.updates[0].refused is not None and step.updates[0].refused[0] == "BugError"
    assert step.replayed[0].refused is not None and any("UnicodeEncodeError" in log.text for log in step.logs)


def test_one_event_loop_at_a_time(engine: AsyncLLM) -> None:
    async def other() -> None:
        stream = engine.stream(PROMPTS[0], LONG)
        await anext(stream)
        with pytest.raises(UsageError, match="one event loop at a time"):
            await asyncio.to_thread(asyncio.run, engine.tokenize("a"))

    for _ in range(3):  # each leaves a stream behind
        run(other())
    run(at_rest(engine))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["read", "close", "cancel", "abort"]),
        st.integers(0, 60),  # updates until then
        st.integers(1, 90),  # tokens of the prompt
        st.integers(1, 60),  # max_tokens
        st.integers(1, 3),  # n
        st.integers(-1, 1),  # priority
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25)
@given(actions=ACTIONS)
def test_whatever_clients_do_the_tokens_are_llms_and_all_blocks_come_back(
    actions: list[tuple[str, int, int, int, int, int]], tight: AsyncLLM, llm: LLM
) -> None:
    async def client(number: int, action: tuple[str, int, int, int, int, int]) -> RequestOutput | None:
        what, patience, length, max_tokens, n, priority = action
        params = SamplingParams(max_tokens=max_tokens, seed=number, n=n, ignore_eos=True)
        stream = tight.stream(range(1, length + 1), params, request_id=str(number), priority=priority)
        output, num_updates = None, 0
        async for update in stream:
            output, num_updates = update.output, num_updates + 1
            if num_updates > patience and what != "read":
                if what != "abort":
                    break
                await tight.abort(str(number))
        if what == "close":
            await stream.aclose()
        return output

    async def all_clients() -> list[RequestOutput | None]:
        tasks = [asyncio.create_task(client(*numbered)) for numbered in enumerate(actions)]
        for task, (what, patience, *_) in zip(tasks, actions, strict=True):
            if what == "cancel":
                asyncio.get_running_loop().call_later(patience / 1000, task.cancel)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        await at_rest(tight)
        assert all(isinstance(one, RequestOutput | asyncio.CancelledError | None) for one in found), found
        return [one if isinstance(one, RequestOutput) else None for one in found]

    for number, (output, action) in enumerate(zip(run(all_clients()), actions, strict=True)):
        if output is None:
            assert action[0] != "read" and action[0] != "abort"
            continue
        _, _, length, max_tokens, n, _ = action
        params = SamplingParams(max_tokens=max_tokens, seed=number, n=n, ignore_eos=True)
        (want,) = llm.generate([list(range(1, length + 1))], params)
        for choice, right in zip(output.outputs, want.outputs, strict=True):
            if choice.finish_reason == "abort":
                assert right.token_ids[: len(choice.token_ids)] == choice.token_ids and action[0] == "abort"
            else:
                assert choice == right


def test_preempted_requests_have_the_tokens_of_llm(tight: AsyncLLM, llm: LLM) -> None:
    async def crowd() -> None:
        params = SamplingParams(max_tokens=100, seed=1, ignore_eos=True)
        prompts = [[number] * 40 for number in range(1, 6)]
        found = await tight.generate(prompts, params)
        assert [output.outputs for output in found] == [output.outputs for output in llm.generate(prompts, params)]
        assert (await tight.stats()).num_preemptions > 0
        await at_rest(tight)

    run(crowd())


def test_two_ranks_give_the_same(llm: LLM) -> None:
    async def both() -> None:
        params = SamplingParams(max_tokens=20, seed=5, n=2, ignore_eos=True)
        async with await AsyncLLM.open(threads=1, tensor_parallel_size=2) as engine:
            for want, found in zip(llm.generate(PROMPTS, params), await engine.generate(PROMPTS, params), strict=True):
                assert found.outputs == want.outputs

    run(both())
