"""Of a real model too, the tensor-parallel degree changes no bit: heads 9 and KV heads 3 are shared out unevenly."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from karat import LLM, SamplingParams
from tests.real_model.test_answers import ANSWER, QUESTION


@pytest.mark.slow
@pytest.mark.parametrize("degree", [2, 4])
def test_logits_and_tokens_are_those_of_one_process(degree: int, llm: LLM, smollm2: Path) -> None:
    prompt = llm.chat_prompt([{"role": "user", "content": "Write a haiku about the moon."}])
    params = [SamplingParams(temperature=0, max_tokens=16), SamplingParams(temperature=1, seed=7, max_tokens=16)]
    with LLM(smollm2, max_model_len=256, tensor_parallel_size=degree) as ranks:
        assert np.array_equal(
            ranks.logits(prompt.token_ids).view(np.uint32), llm.logits(prompt.token_ids).view(np.uint32)
        )
        ours, theirs = (
            [output.outputs[0].token_ids for output in each.generate([prompt, prompt], params)] for each in (llm, ranks)
        )
    assert ours == theirs


@pytest.mark.slow
def test_ranks_answer_on_the_command_line(answer: Callable[..., str]) -> None:
    assert answer(QUESTION, "--tensor-parallel-size", "4") == ANSWER + "\n"
