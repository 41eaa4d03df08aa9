"""HeldAnswer: an answer whose parts come from several replicas is the answer of one, for every place of the cut."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("ray", reason="Ray cannot be had here")
from karat.engine.llm import LLM
from karat.engine.requests.request_updates import Gathered, PromptProgress, RequestUpdate
from karat.outputs import CompletionOutput, StreamChunk
from karat.ray.held_answer import AnswerPart, HeldAnswer
from karat.request import Resume, SamplingParams
from karat.request_record import Request
from tests.support.seed import SEED

PROMPT = "Once upon a time, there was a fox"
ASKED: dict[str, SamplingParams] = {
    "sampled": SamplingParams(temperature=1, top_p=0.9, max_tokens=24, presence_penalty=0.5),
    "three": SamplingParams(temperature=1, n=3, max_tokens=12, logprobs=2),
    "prompt": SamplingParams(temperature=0, max_tokens=10, prompt_logprobs=1, explain=True),
    "stops": SamplingParams(temperature=1, max_tokens=40, stop=["fox", "a little", ". "], min_tokens=3),
    "three with prompt": SamplingParams(temperature=1, n=3, max_tokens=9, prompt_logprobs=0),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(threads=1, max_model_len=256)


def request_of(llm: LLM, params: SamplingParams) -> Request:
    ids = tuple(llm.tokenizer.encode(PROMPT))
    return Request("r", ids, params, seed=11, end_token_ids=llm.end_token_ids)


def updates_of(llm: LLM, part: AnswerPart) -> list[RequestUpdate]:
    """What an engine says of a part, step by step."""
    llm.engine.add_request(replace(part.request, request_id="part"))
    made: list[RequestUpdate] = []
    while not made or not made[-1].ended:
        made += llm.engine.step()
    return made


def outputs(request: Request, updates: list[RequestUpdate]) -> list[CompletionOutput]:
    gathered = Gathered(request)
    for update in updates:
        gathered.add(update)
    return list(gathered.output().outputs)


@pytest.mark.parametrize("name", ASKED)
def test_the_answer_is_that_of_one(name: str, llm: LLM) -> None:
    request, draws = request_of(llm, ASKED[name]), random.Random(SEED)
    undisturbed = updates_of(llm, AnswerPart(request))
    for _ in range(4):
        held, said = HeldAnswer(request), list[RequestUpdate]()
        parts = [held.whole()]
        while parts:
            part = parts.pop(draws.randrange(len(parts)))
            there = updates_of(llm, part)
            cut = draws.randrange(len(there) + 1)
            said += [made for each in there[:cut] if (made := held.take(part, each)) is not None]
            parts += held.rest(part)
        assert held.has_ended and said[-1].ended and not any(update.ended for update in said[:-1])
        assert outputs(request, said) == outputs(request, undisturbed)
        assert said[0].progress is not None, "it says that it has begun"


def test_a_resumed_request_is_resumed_again(llm: LLM) -> None:
    whole = request_of(llm, SamplingParams(temperature=1, max_tokens=12))
    ids = outputs(whole, updates_of(llm, AnswerPart(whole)))[0].token_ids
    request = replace(whole, resume=Resume(ids[:4]))
    held = HeldAnswer(request)
    held.take(held.whole(), RequestUpdate("part", (StreamChunk(0, "", ids[4:7]),)))
    (part,) = held.rest(held.whole())
    assert part.request.resume == Resume(ids[:7]) and held.num_tokens == 3
    assert outputs(whole, updates_of(llm, part))[0].token_ids == ids[7:]


def test_nothing_came_so_all_is_asked_again() -> None:
    request = Request("r", (1, 2), SamplingParams(n=2), seed=1)
    held = HeldAnswer(request)
    assert held.rest(held.whole()) == [held.whole()] and held.whole().request.tells_progress


def test_progress_goes_on_and_never_back() -> None:
    request = Request("r", tuple(range(100)), SamplingParams(), seed=1)
    held, part = HeldAnswer(request), AnswerPart(request)

    def told(progress: PromptProgress) -> Any:
        made = held.take(part, RequestUpdate("x", (), progress=progress))
        return None if made is None else made.progress

    assert told(PromptProgress(100)) is None  # it waits
    assert told(PromptProgress(100, 0, 50)) == PromptProgress(100, 0, 50)
    assert told(PromptProgress(100, 0, 10)) is None  # of another replica, which begins anew
    assert told(PromptProgress(100, 16, 80)) == PromptProgress(100, 16, 80)


def test_found_tokens_are_those_of_the_first_replica() -> None:
    request = Request("r", tuple(range(100)), SamplingParams(), seed=1)
    held, part = HeldAnswer(request), AnswerPart(request)
    first = held.take(part, RequestUpdate("x", (StreamChunk(0, "a", (1,)),), num_cached_tokens=16))
    second = held.take(part, RequestUpdate("x", (StreamChunk(0, "b", (2,)),), num_cached_tokens=96))
    assert first is not None and second is not None
    assert first.num_cached_tokens == second.num_cached_tokens == 16


def test_a_refusal_ends_it() -> None:
    request = Request("r", (1,), SamplingParams(n=2), seed=1)
    held = HeldAnswer(request)
    made = held.take(held.whole(), RequestUpdate("", (), ended=True, refused=("OverloadedError", "full", None)))
    assert made == RequestUpdate("r", (), ended=True, refused=("OverloadedError", "full", None)) and held.has_ended
    assert held.rest(AnswerPart(request)) == []
