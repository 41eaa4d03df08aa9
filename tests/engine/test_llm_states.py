"""Models with states on real executors: the same bits however a text is cut, found, preempted or gone on with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, RequestOutput, SamplingParams
from karat.ops.native import unavailable_reason
from tests.engine.tiny import at_rest, preempt_often, write_model
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
