"""Streams of an LLM: what generate gives, token by token; left, interrupted and side by side."""

import gc
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, SamplingParams
from karat.engine.requests.request_updates import PromptProgress
from karat.errors import RequestError
from karat.ops.executor import AtOnce
from karat.ops.native import unavailable_reason
from tests.engine.tiny import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    at_rest,
    tokens,
)


def test_a_stream_is_what_generate_gives(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, seed=5, n=2, logprobs=1, prompt_logprobs=1, stop="e")
    (whole,) = llm.generate("Once", params)
    chunks = list(llm.stream("Once", params))
    assert [chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs] == [whole.prompt_logprobs]
    for choice in whole.outputs:
        own = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(chunk.text for chunk in own) == choice.text
        assert sum((chunk.token_ids for chunk in own), ()) == choice.token_ids
        assert sum((chunk.logprobs or () for chunk in own), ()) == choice.logprobs
        assert own[-1].finish_reason == choice.finish_reason and own[-1].stop_reason == choice.stop_reason
        assert not any(chunk.finish_reason for chunk in own[:-1])


def test_a_stream_comes_token_by_token(llm: LLM) -> None:
    stream = llm.stream("Once", GREEDY)
    assert at_rest(llm), "nothing before the first chunk is asked for"
    next(stream)
    assert llm.engine.scheduler.num_running == 1
    assert sum(1 for _ in stream) == 19
    assert at_rest(llm)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("num_chunks", [0, 1, 5])
@pytest.mark.parametrize("leave", ["close", "drop"])
def test_an_abandoned_stream_frees_its_blocks(llm: LLM, num_chunks: int, leave: str) -> None:
    stream = llm.stream("Once", GREEDY)
    for _ in range(num_chunks):
        next(stream)
    if leave == "close":
        stream.close()
    else:
        del stream
        gc.collect()
    assert at_rest(llm) and not llm.engine._entries


def test_streams_side_by_side_and_a_batch_between_them(llm: LLM) -> None:
    alone = [[chunk.token_ids for chunk in llm.stream(prompt, SAMPLED)] for prompt in PROMPTS[:2]]
    streams = [llm.stream(prompt, SAMPLED) for prompt in PROMPTS[:2]]
    got: list[list[tuple[int, ...]]] = [[], []]
    got[0].append(next(streams[0]).token_ids)
    got[1].append(next(streams[1]).token_ids)
    assert tokens(llm.generate("abc", GREEDY)) == tokens(LLM(llm.path, dtype="float64").generate("abc", GREEDY))
    llm.logits([1, 2, 3])
    got[1] += [chunk.token_ids for chunk in streams[1]]
    got[0] += [chunk.token_ids for chunk in streams[0]]
    assert got == alone
    assert at_rest(llm)


def test_an_interrupted_batch_frees_its_blocks(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    run = llm.engine.run

    def interrupt(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return run(batch)

    monkeypatch.setattr(llm.engine, "run", AtOnce(interrupt))
    stream = llm.stream("another", GREEDY)
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)
    assert llm.engine.scheduler.num_running == 1, "the stream is still there"
    assert sum(1 for _ in stream) == 19
    assert at_rest(llm)


def test_interrupted_logits_free_their_blocks(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(batch: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine, "run", AtOnce(interrupt))
    with pytest.raises(KeyboardInterrupt):
        llm.logits([1, 2, 3])
    assert at_rest(llm)


# Prompts that take long


def test_who_asks_is_told_how_far_the_prompt_is(folder: Path) -> None:
    llm = LLM(folder, max_num_batched_tokens=16, dtype="float64")
    told: list[PromptProgress] = []
    chunks = list(llm.stream(list(range(40)), GREEDY, on_prompt=told.append))
    assert told == [PromptProgress(40, 0, 16), PromptProgress(40, 0, 32), PromptProgress(40, 0, 40)]
    assert [chunk.token_ids for chunk in chunks] == [
        chunk.token_ids for chunk in llm.stream(list(range(40)), GREEDY, on_prompt=told.append)
    ]
    assert told[3:] == [PromptProgress(40, 32, 40)], "what was found is said"

    def stop(progress: PromptProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(llm.stream(list(range(100, 140)), GREEDY, on_prompt=stop))
    assert at_rest(llm) and not llm._shared._told and not llm._shared._streams


def test_a_prompt_that_fails_is_told_no_further(llm: LLM) -> None:
    def abort(progress: PromptProgress) -> None:
        llm.engine.abort(next(iter(llm.engine._entries)))

    with pytest.raises(RequestError, match="there is no request"):
        list(llm.stream([1, 2, 3], GREEDY, on_prompt=abort))
    assert at_rest(llm)


@pytest.mark.parametrize(("max_step_ms", "expected"), [(None, 200), (0, 0), (7, 7)])
def test_the_bound_of_a_step(folder: Path, max_step_ms: int | None, expected: int) -> None:
    """Time changes no bit of the native executor; of others it may, so there it is only what is asked for."""
    config = LLM(folder, dtype="float64", max_step_ms=max_step_ms).engine.config
    assert config.max_step_ms == (max_step_ms or 0)
    if unavailable_reason() is None:
        assert LLM(folder, executor="native", max_step_ms=max_step_ms).engine.config.max_step_ms == expected


@pytest.mark.skipif(unavailable_reason() is not None, reason="bits of the native executor")
@pytest.mark.parametrize("max_step_ms", [1, 0])
def test_the_bound_changes_no_token(folder: Path, max_step_ms: int) -> None:
    """A long prompt comes in while others stream; a step of 1 ms computes one token of it or a few."""
    llm = LLM(folder, executor="native", max_step_ms=max_step_ms)
    prompt = [i % 250 for i in range(100)]
    whole = LLM(folder, executor="native").generate([PROMPTS[0], prompt], GREEDY)
    sizes, run = [], llm.engine.run
    llm.engine.run = AtOnce(lambda batch: sizes.append(batch.num_tokens) or run(batch))  # type: ignore[func-returns-value]
    first, second = llm.stream(PROMPTS[0], GREEDY), llm.stream(prompt, GREEDY)
    got: list[list[int]] = [list(next(first).token_ids), []]
    for stream, own in ((second, got[1]), (first, got[0])):
        for chunk in stream:
            own += chunk.token_ids
    assert got == [list(output.outputs[0].token_ids) for output in whole]
    assert (max(sizes) > 100) == (max_step_ms == 0)
