"""Streams of an LLM: what generate gives, token by token; left, interrupted and side by side."""

import gc
from typing import Any

import pytest

from karat import LLM, SamplingParams
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

    monkeypatch.setattr(llm.engine, "run", interrupt)
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

    monkeypatch.setattr(llm.engine, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.logits([1, 2, 3])
    assert at_rest(llm)
