"""Conversations of ten turns with Qwen3.5 and its released template, which strips the reasoning of past turns: what is
computed anew.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, SamplingParams
from karat.kv.blocks import BLOCK_SIZE
from karat.ops.native import unavailable_reason
from tests.engine.test_states_elsewhere import CONFIG
from tests.engine.tiny import at_rest, write_model
from tests.support.seed import SEED

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

TURNS = 10
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, seed=1)
# How clients send an answer back: its text alone, its reasoning beside it, or both as the model wrote them.
WAYS = {
    "text": lambda thought, said: {"content": said},
    "reasoning beside it": lambda thought, said: {"content": said, "reasoning_content": thought},
    "as it was written": lambda thought, said: {"content": f"<think>\n{thought}\n</think>\n\n{said}"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    template = (data_dir / "templates" / "Qwen3.5-4B.jinja").read_text(encoding="utf-8")
    changes = {"max_position_embeddings": 8192}
    return write_model(tmp_path_factory.mktemp("talking"), chat_template=template, **(CONFIG | changes))


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_ten_turns_compute_the_new_turn_and_a_block(folder: Path, way: str, thinks: bool) -> None:
    """A turn is what a prompt has that the one before has not: the answer without its reasoning, and the question."""
    rng = random.Random(f"{SEED}-{way}")

    def words(least: int, most: int) -> str:
        return "".join(rng.choices("abcdef ", k=rng.randint(least, most))).strip() or "a"

    with LLM(folder, threads=1, chat_template_kwargs={"enable_thinking": thinks}) as llm:
        messages: list[dict[str, Any]] = []
        before: tuple[int, ...] = ()
        for turn in range(TURNS):
            messages.append({"role": "user", "content": words(5, 120)})
            prompt = llm.chat_prompt(messages).token_ids
            (output,) = llm.chat(messages, PARAMS)
            assert output.prompt_token_ids == prompt
            pairs = enumerate(zip(before, prompt, strict=False))
            common = next((place for place, (a, b) in pairs if a != b), min(len(before), len(prompt)))
            new_turn = len(prompt) - common
            assert len(prompt) - output.num_cached_tokens <= new_turn + BLOCK_SIZE, f"turn {turn}, KARAT_SEED={SEED}"
            if turn:
                assert common >= len(before) - len("<think>\n\n</think>\n\n"), "all but what opens the reasoning"
            messages.append({"role": "assistant"} | WAYS[way](words(100, 300), words(5, 80)))
            before = prompt
        assert at_rest(llm)
