"""How far a prompt is, and what an output says of its seed and of what was found in the cache.

Covers: karat.engine.requests.request_updates.
"""

from pathlib import Path

import pytest

from karat import LLM, SamplingParams
from karat.engine.requests.request_updates import PromptProgress
from karat.errors import RequestError
from karat.request_record import Request
from tests.engine.tiny import tokens

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def test_progress_of_a_prompt_in_chunks_and_of_one_that_waits(folder: Path) -> None:
    llm = LLM(folder, max_num_seqs=1, max_num_batched_tokens=16)
    engine, prompt = llm.engine, tuple(range(40))
    engine.add_request(Request("a", prompt, PARAMS, 0))
    engine.add_request(Request("b", prompt, PARAMS, 0))
    assert engine.prompt_progress("a") is None
    for num_computed in (16, 32, 40):
        engine.advance()
        assert engine.prompt_progress("a") == PromptProgress(40, 0, num_computed)
        assert engine.prompt_progress("b") is None
    engine.advance()  # the last of "a"
    engine.take("a")
    with pytest.raises(RequestError, match="there is no request 'a'"):
        engine.prompt_progress("a")
    engine.advance()
    assert engine.prompt_progress("b") == PromptProgress(40, 32, 40)
    assert engine.scheduler.num_wanted_tokens == 80 and engine.scheduler.num_found_tokens == 32
    engine.abort("b")


def test_an_output_says_its_seed_and_what_was_found(folder: Path) -> None:
    llm = LLM(folder, seed=3)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    (first,) = llm.generate([list(range(40))], params)
    assert first.seed is not None and first.num_cached_tokens == 0
    (again,) = llm.generate([list(range(40))], SamplingParams(max_tokens=8, ignore_eos=True, seed=first.seed))
    assert again.seed == first.seed and again.num_cached_tokens == 32 and tokens([again]) == tokens([first])
