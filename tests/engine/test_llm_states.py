"""Models with states on real executors: the same bits however a text is cut, found, preempted or gone on with."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat import LLM, RequestOutput, SamplingParams
from karat.errors import CapacityError
from karat.ops.native import unavailable_reason
from tests.engine.test_interrupts import interrupts
from tests.engine.tiny import at_rest, preempt_often, write, write_model
from tests.support.stateful import CONFIG, with_toy

EXECUTORS = [
    pytest.param(
        "native", marks=pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor here")
    ),
    "reference",
]
VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "in chunks": {"max_num_seqs": 3, "max_num_batched_tokens": 7},
    "with little room": {"num_blocks": 9},
    "without snapshots": {"state_cache_bytes": 0},
    "without prefixes": {"enable_prefix_caching": False},
}
SYSTEM = "Once upon a time there was a fox who had a lantern, and it was old, and it was cold. "  # 85 tokens
PROMPTS = [SYSTEM + "Yes.", SYSTEM + "No.", SYSTEM[:50], SYSTEM + "Yes. And", "a"]
PARAMS = [SamplingParams(max_tokens=30, ignore_eos=True, seed=i, logprobs=2) for i in range(len(PROMPTS))]


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    with with_toy():
        yield


@pytest.fixture(scope="module", params=["SKS", "SS"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = {"kinds": request.param, "num_hidden_layers": len(request.param)}
    return write_model(tmp_path_factory.mktemp("tiny"), **(CONFIG | kinds))


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(folder: Path, executor: str) -> list[Any]:
    """The answer of each prompt alone, from a model that keeps nothing and computes a prompt in one step."""
    with load(folder, executor, max_num_seqs=1, enable_prefix_caching=False) as llm:
        return [answers(llm.generate([prompt], [param]))[0] for prompt, param in zip(PROMPTS, PARAMS, strict=True)]


def load(folder: Path, executor: str, **options: Any) -> LLM:
    dtype: Any = "float64" if executor == "reference" else "float32"
    if "K" not in (folder / "config.json").read_text().partition("kinds")[2]:
        options.pop("num_blocks", None)
    return LLM(folder, executor=executor, dtype=dtype, threads=1, **options)


def answers(outputs: list[RequestOutput]) -> list[Any]:
    return [(tuple(choice.token_ids), choice.logprobs) for output in outputs for choice in output.outputs]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_are_those_of_each_prompt_alone(folder: Path, executor: str, variant: str, expected: list[Any]) -> None:
    """Each is answered twice: from nothing, and from snapshots. The reference executor rounds chunks in another way."""
    with load(folder, executor, **VARIANTS[variant]) as llm:
        if variant == "with little room":
            preempt_often(llm)
        for _ in range(2):
            got = answers(llm.generate(PROMPTS, PARAMS))
            assert [tokens for tokens, _ in got] == [tokens for tokens, _ in expected]
            assert executor == "reference" or got == expected
            assert at_rest(llm)
        assert (llm.engine.scheduler.num_found_tokens > 200) == (not variant.startswith("without"))
        assert (llm.engine.scheduler.num_preemptions > 0) == (variant == "with little room")


STRIPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_what_disturbs_a_request_changes_no_bit(folder: Path, executor: str, expected: list[Any]) -> None:
    """`n`, an answer that is gone on with, and a receipt that is verified by a replay of its tokens."""
    params = replace(PARAMS[0], logprobs=None)
    with load(folder, executor) as llm:
        several = llm.generate([PROMPTS[0]], replace(params, n=3))[0].outputs
        assert several[0].token_ids == expected[0][0] and len({choice.token_ids for choice in several}) == 3
        for number in (1, 13, 29):
            chunks = llm.resume(PROMPTS[0], expected[0][0][:number], params)
            assert [token for chunk in chunks for token in chunk.token_ids] == list(expected[0][0][number:])
        (output,) = llm.generate([PROMPTS[0]], params, receipt=True)
        receipt = output.outputs[0].receipt
        assert receipt is not None and llm.verify(receipt).is_confirmed
        assert at_rest(llm)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("first", range(24))
def test_interrupts_leave_nothing_behind(folder: Path, executor: str, expected: list[Any], first: int) -> None:
    with load(folder, executor, max_num_batched_tokens=16) as llm:
        count = 0
        for interrupted in interrupts(lambda: llm.generate(PROMPTS[:2], SamplingParams(max_tokens=2)), first, 24 * 3):
            assert interrupted and at_rest(llm), f"interrupt {count}"
            count += 1
        assert [tokens for tokens, _ in answers(llm.generate(PROMPTS, PARAMS))] == [tokens for tokens, _ in expected]
        assert count > 10


def test_other_activations_are_compared_with_a_state_of_their_own(folder: Path) -> None:
    with load(folder, "native", quantize="q8_0") as llm:
        if not llm.comparable:
            pytest.skip("matrices of such sizes have no blocks")
        (output,) = llm.generate([PROMPTS[0]], replace(PARAMS[0], logprobs=None), receipt=True)
        assert output.outputs[0].receipt is not None
        assert llm.compare(output.outputs[0].receipt, "int24") is not None


@pytest.mark.parametrize("guard", [False, True])
def test_a_nan_in_a_state_ends_its_request_and_its_snapshots(folder: Path, tmp_path: Path, guard: bool) -> None:
    """A token whose values overflow; it is found with the first logits, or by the guard at once, which names the op."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.linear_attn.dt_bias"] = np.full(4, np.nan, np.float32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with load(tmp_path, "native", guard=guard, max_num_batched_tokens=16) as llm:
        (output,) = llm.generate([PROMPTS[0]], PARAMS[0])
        assert output.outputs[0].finish_reason == "error"
        assert ("model.layers.0.linear_attn.decay" in str(output.outputs[0].error)) == guard
        stats = llm.engine.stats()
        assert (stats.num_snapshots, stats.state_bytes > 0) == (0, True) and llm.engine.scheduler.blocks.num_kept == 0
        assert at_rest(llm)


@pytest.mark.parametrize("strips", [True, False])
def test_ten_turns_compute_the_new_turn_and_a_block(folder: Path, tmp_path: Path, strips: bool) -> None:
    """Reasoning that the template strips, or an answer as it was: what the prompt before had is found."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write(
        tmp_path / "config.json", json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 4000}
    )
    rng, params = random.Random(4), SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
    with load(tmp_path, "native", chat_template=STRIPPING) as llm:
        messages: list[dict[str, str]] = []
        before: tuple[int, ...] = ()
        for turn in range(10):
            content = "".join(rng.choices("abcdef ", k=rng.randint(5, 120)))
            messages.append({"role": "user", "content": content})
            prompt = llm.chat_prompt(messages).token_ids
            (output,) = llm.chat(messages, params)
            assert output.prompt_token_ids == prompt
            pairs = enumerate(zip(before, prompt, strict=False))
            common = next((place for place, (a, b) in pairs if a != b), min(len(before), len(prompt)))
            assert len(prompt) - output.num_cached_tokens <= len(prompt) - common + 16, f"turn {turn}"
            assert turn == 0 or common > 10
            said = "".join(rng.choices("uvwxyz ", k=rng.randint(5, 60)))
            messages.append({"role": "assistant", "content": f"Hm. {said}</think>{said}" if strips else said})
            before = prompt
        assert at_rest(llm)


def test_only_models_with_states_have_cache_points(folder: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with LLM(write_model(tmp_path), threads=1) as plain:
        assert plain.chat_prompt(messages).cache_point is None
    for options, has_one in [({}, True), ({"state_cache_bytes": 0}, False), ({"enable_prefix_caching": False}, False)]:
        with load(folder, "reference", **options) as made:
            assert (made.chat_prompt(messages).cache_point is not None) == has_one


def test_memory_is_refused_with_the_figures(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with load(folder, "reference", max_num_seqs=3, state_cache_bytes=100_000) as llm:
        size = llm.engine.config.state_bytes
        numbers = 8 * (3 * 64 + 4 * 6 * 10)  # of float64: three rows of u, and the matrices
        assert size == numbers * llm.config.kinds.count("S")  # type: ignore[attr-defined]
        assert llm.engine.stats().max_snapshots == 100_000 // size
        assert llm.engine.stats().state_bytes == (6 + 100_000 // size) * size
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: 800_000)
    with pytest.raises(CapacityError, match=r"the states of max_num_seqs=400 sequences take .* lower max_num_seqs"):
        load(folder, "reference", max_num_seqs=400)
    monkeypatch.undo()
    with LLM(state_cache_bytes=5, threads=1):
        assert "state_cache_bytes has no effect" in caplog.text
