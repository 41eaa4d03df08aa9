"""Ctrl-C at every line of the engine: what was interrupted leaves nothing, and nobody else loses or repeats a token."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import karat
from karat import LLM, SamplingParams
from karat.engine.engine import Engine
from karat.errors import RequestError
from karat.ops.native import unavailable_reason
from karat.outputs import RequestOutput, StreamChunk
from tests.engine.fakes import SAMPLED, alone, drive, make_engine, outputs_of, request
from tests.engine.tiny import at_rest, tokens, write_model

ROOMS = tuple(str(Path(karat.__file__).parent / room) for room in ("engine", "kv"))
STRIDE = 8  # between the lines of one test, the first of which is drawn; in `make test-long` others take those between


class Interrupt:
    """Raises KeyboardInterrupt at line number `at` that is run in the rooms above; `lines` counts."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __enter__(self) -> "Interrupt":
        self._before = sys.gettrace()
        sys.settrace(self._calls)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    @property
    def is_over(self) -> bool:
        return self.lines <= self.at

    def _calls(self, frame: Any, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(ROOMS) else None

    def _line(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at + 1:
                raise KeyboardInterrupt
        return self._line


def interrupts(act: Callable[[], object], first: int, stride: int = STRIDE) -> Iterator[bool]:
    """Run `act` with an interrupt at one line after the other; whether it came out as one."""
    at = first
    while True:
        interrupt, interrupted = Interrupt(at), False
        try:
            with interrupt:
                act()
        except KeyboardInterrupt:
            interrupted = True
        if interrupt.is_over:
            return
        yield interrupted
        at += stride


SIZES = {"num_blocks": 9, "max_num_batched_tokens": 9, "state_bytes": 10, "max_snapshots": 2}


def crowd() -> list[Any]:
    """More than the cache holds; one with logits of its prompt, one with several choices, one with a stop string."""
    params = SAMPLED | {"max_tokens": 5}
    return [
        request("a", b"abcdefgh", seed=1, **(params | {"max_tokens": 2, "prompt_logprobs": 1})),
        request("b", b"abcdefgh", seed=2, n=2, **params),
        request("c", b"xyz", seed=3, stop=["e", "\x01"], **params),
    ]


@pytest.fixture(scope="module")
def expected() -> dict[str, RequestOutput]:
    return {item.request_id: alone(item) for item in crowd()}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("first", range(STRIDE * 3))
def test_a_step_interrupted_at_any_line_costs_nobody_a_token(expected: dict[str, RequestOutput], first: int) -> None:
    """Outputs and chunks of all, each once, whichever line of whichever step."""
    engine: Engine
    got: list[Any] = []

    def until_done() -> None:
        while engine.has_work:
            got.extend(Engine.step(engine))

    at = first
    while True:
        engine, _ = make_engine(**SIZES)
        got.clear()
        for item in crowd():
            engine.add_request(item)
        interrupt = Interrupt(at)
        try:
            with interrupt:
                until_done()
        except KeyboardInterrupt:
            pass
        if interrupt.is_over:
            break
        engine.abort("nobody")
        engine.scheduler.check()
        until_done()
        got.extend(Engine.step(engine))  # what an interrupt after the last step kept back
        engine.scheduler.check()
        assert engine.scheduler.blocks.num_free == engine.config.num_blocks
        assert outputs_of(got, crowd()) == expected, f"line {at}"
        chunks: dict[tuple[str, int], list[StreamChunk]] = {}
        for update in got:
            for chunk in update.chunks:
                chunks.setdefault((update.request_id, chunk.index), []).append(chunk)
        for (name, index), own in chunks.items():
            choice = expected[name].outputs[index]
            assert sum((chunk.token_ids for chunk in own), ()) == choice.token_ids, f"line {at}"
            assert "".join(chunk.text for chunk in own) == choice.text
            assert sum((chunk.logprobs or () for chunk in own), ()) == choice.logprobs
            assert [chunk.finish_reason for chunk in own if chunk.finish_reason] == [choice.finish_reason]
        at += STRIDE * 3
    assert at > 1000, "lines were seen"


@pytest.mark.slow
def test_adding_and_aborting_interrupted_at_any_line(expected: dict[str, RequestOutput]) -> None:
    """Done again, they are done, and the others go on."""
    engine: Engine
    at = 0
    while True:
        engine, _ = make_engine(**SIZES)
        for item in crowd()[:2]:
            engine.add_request(item)
        got = Engine.step(engine) + Engine.step(engine)
        interrupt = Interrupt(at)
        try:
            with interrupt:
                engine.add_request(crowd()[2])
                engine.abort("b")
        except KeyboardInterrupt:
            pass
        if interrupt.is_over:
            break
        for name in ("b", "c"):
            engine.abort(name)
        engine.scheduler.check()
        while engine.has_work:
            got += Engine.step(engine)
        assert outputs_of(got, crowd()) == {"a": expected["a"]}
        assert engine.scheduler.blocks.num_free == engine.config.num_blocks
        engine.add_request(crowd()[2])
        assert drive(engine)[0] == {"c": expected["c"]}
        at += 1


# Through LLM


@pytest.fixture(scope="module")
def small(folder: Path) -> LLM:
    """A cache of which two requests are most."""
    return LLM(folder, dtype="float64", max_model_len=32, num_blocks=3, max_num_seqs=4)


PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, seed=7, stop="zz", logprobs=1)


@pytest.mark.drawn(1, each="call")
@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("call", ["generate", "chat", "logits"])
def test_calls_interrupted_at_any_line_leave_nothing_behind(small: LLM, call: str, first: int) -> None:
    conversation = [{"role": "user", "content": "a"}]
    act: dict[str, Callable[[], object]] = {
        "generate": lambda: small.generate(["Once upon a time, there", "b"], PARAMS),
        "chat": lambda: small.chat(conversation, SamplingParams(max_tokens=2)),
        "logits": lambda: small.logits(list(range(20))),
    }
    whole = tokens(small.generate("Once", PARAMS))
    count = 0
    for interrupted in interrupts(act[call], first):
        assert interrupted and at_rest(small) and not small.engine._entries, f"interrupt {count}"
        if count % 10 == 0:
            assert tokens(small.generate("Once", PARAMS)) == whole
        count += 1
    assert count > 300 // STRIDE


@pytest.mark.drawn(1)
@pytest.mark.parametrize("first", range(STRIDE))
def test_a_stream_goes_on_while_another_is_interrupted_at_any_line(small: LLM, first: int) -> None:
    whole = [chunk.token_ids for chunk in small.stream("Once", PARAMS)]
    at = first
    while True:
        mine, other = small.stream("Once", PARAMS), small.stream("Twice", PARAMS)
        got = [next(mine).token_ids]
        interrupt = Interrupt(at)
        try:
            with interrupt:
                list(other)
        except KeyboardInterrupt:
            pass
        if interrupt.is_over:
            break
        assert got + [chunk.token_ids for chunk in mine] == whole, f"line {at}"
        assert at_rest(small)
        at += STRIDE


@pytest.mark.skipif(unavailable_reason() is not None, reason="ranks need the native executor")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("first", range(STRIDE * 3))
def test_calls_of_ranks_interrupted_at_any_line_leave_nothing_behind(tmp_path: Path, first: int) -> None:
    """Lines of this process's engine; tests/engine/test_rank_faults.py interrupts among the messages to ranks."""
    prompts = ["Once upon a time, there", "b"]
    folder = write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
    with LLM(folder, tensor_parallel_size=2, threads=1, max_model_len=32, num_blocks=3, max_num_seqs=4) as llm:
        whole, count = tokens(llm.generate(prompts, PARAMS)), 0
        for interrupted in interrupts(lambda: llm.generate(prompts, PARAMS), first, STRIDE * 3):
            assert interrupted and at_rest(llm), f"interrupt {count}"
            if count % 5 == 0:
                assert tokens(llm.generate(prompts, PARAMS)) == whole
            count += 1
        assert count > 300 // (STRIDE * 3) and tokens(llm.generate(prompts, PARAMS)) == whole


def test_who_waits_for_what_is_gone_is_told(small: LLM) -> None:
    stream = small.stream("Once", PARAMS)
    next(stream)
    small.engine.abort(next(iter(small.engine._entries)))
    with pytest.raises(RequestError, match="there is no request"):
        next(stream)


# Whatever fails in one choice


@pytest.mark.parametrize("where", ["choose", "token_logprobs", "push", "stop"])
def test_what_fails_in_one_choice_ends_that_one_alone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from karat.engine.choosing import choice as module

    places: dict[str, tuple[Any, str]] = {
        "choose": (module, "choose"),
        "token_logprobs": (module, "token_logprobs"),
        "push": (module.IncrementalDetokenizer, "push"),
        "stop": (module.StopMatcher, "push"),
    }
    good = request("good", b"abc", seed=1, **SAMPLED)
    whole = alone(good)
    owner, name = places[where]
    real, calls = getattr(owner, name), 0

    def fails_at_the_sixth(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise ZeroDivisionError("a bug")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, fails_at_the_sixth)
    engine, _ = make_engine()
    engine.add_request(good)
    engine.add_request(request("bad", b"xyz", seed=2, **SAMPLED))
    outputs, _ = drive(engine)
    assert outputs["good"] == whole
    (bad,) = outputs["bad"].outputs
    assert bad.finish_reason == "error" and bad.error == "choice 0: ZeroDivisionError: a bug"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_that_makes_scores_overflow_ends_its_choice_alone(temperature: float) -> None:
    good = request("good", b"abc", seed=1, **SAMPLED)
    engine, _ = make_engine()
    engine.add_request(good)
    params = {"temperature": temperature, "repetition_penalty": 1e-310, "max_tokens": 4}
    engine.add_request(request("bad", bytes(range(60)), **params))
    outputs, _ = drive(engine)
    assert outputs["good"] == alone(good)
    (bad,) = outputs["bad"].outputs
    assert bad.finish_reason == "error" and "repetition_penalty=1e-310" in str(bad.error)
