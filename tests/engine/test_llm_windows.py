"""Models with windows on real executors: the same bits as where nothing is given back, and how much less memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import karat.engine.model_loading.load_plan
from karat import LLM, RequestOutput, SamplingParams
from karat.engine.engine_config import EngineConfig
from karat.kv.blocks import BlockPool
from karat.kv.cache import cache_specs
from karat.kv.groups import Keys, groups_of
from karat.ops.native import unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.engine.tiny import at_rest, preempt_often, write_model

WINDOW = 21
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "use_sliding_window": None,
        "sliding_window": WINDOW,
    },
}
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
    "without prefixes": {"enable_prefix_caching": False},
    "on two ranks": {"tensor_parallel_size": 2},
}
SYSTEM = "Once upon a time there was a fox who had a lantern, and it was old, and it was cold. "  # 85 tokens
PROMPTS = [SYSTEM + "Yes.", SYSTEM + "No.", SYSTEM[:50], SYSTEM + "Yes. And", "a"]
PARAMS = [SamplingParams(max_tokens=30, ignore_eos=True, seed=i, logprobs=2) for i in range(len(PROMPTS))]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"hidden_size": 72, "num_attention_heads": 12, "head_dim": 6, "intermediate_size": 50}
    return write_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=3, **shape, **FAMILIES[request.param])


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(folder: Path, executor: str) -> list[Any]:
    """The answers of an engine that gives nothing back: it knows of no window."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(karat.engine.model_loading.load_plan, "windows_of", lambda keeps: (None,) * len(groups_of(keeps)))
        with load(folder, executor) as llm:
            assert set(llm.engine.config.windows) == {None}
            return answers(llm.generate(PROMPTS, PARAMS))


def load(folder: Path, executor: str, **options: Any) -> LLM:
    dtype: Any = "float64" if executor == "reference" else "float32"
    return LLM(folder, executor=executor, dtype=dtype, threads=1, **options)


def answers(outputs: list[RequestOutput]) -> list[Any]:
    return [(tuple(choice.token_ids), choice.logprobs) for output in outputs for choice in output.outputs]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_are_those_of_a_cache_that_keeps_all(
    folder: Path, executor: str, variant: str, expected: list[Any]
) -> None:
    """Prompts are four windows long. Each is answered twice: from an empty cache, and from prefixes.

    The reference executor rounds differently where steps are cut in another way: it has the same tokens.
    """
    with load(folder, executor, **VARIANTS[variant]) as llm:
        assert WINDOW in llm.engine.config.windows
        if variant == "with little room":
            preempt_often(llm)
        for _ in range(2):
            got = answers(llm.generate(PROMPTS, PARAMS))
            assert [tokens for tokens, _ in got] == [tokens for tokens, _ in expected]
            assert executor == "reference" or got == expected
            assert at_rest(llm)
        assert (llm.engine.scheduler.num_found_tokens > 200) == (variant != "without prefixes")
        assert (llm.engine.scheduler.num_preemptions > 0) == (variant == "with little room")


def test_what_was_given_back_is_never_read(folder: Path, executor: str) -> None:
    """Blocks of a window go to another sequence while the first one goes on: its logits stay."""
    ids = np.random.default_rng(3).integers(0, 256, 100).tolist()
    params = [
        SamplingParams(max_tokens=28, ignore_eos=True, seed=1),
        SamplingParams(max_tokens=60, ignore_eos=True, seed=2),
    ]
    with LLM(folder, executor=executor, threads=1, max_num_seqs=2, enable_prefix_caching=False) as llm:
        alone = [
            answers(llm.generate([prompt], [param])) for prompt, param in zip([ids, ids[:40]], params, strict=True)
        ]
        assert answers(llm.generate([ids, ids[:40]], params)) == [one for each in alone for one in each]


def test_a_cache_with_windows_takes_an_eighth() -> None:
    """Mistral 7B with its window of 4,096 at contexts of 32,000 tokens."""
    keeps, ops = [Keys(8, 128, 128, 4096)] * 32, ReferenceOps("float32")
    sizes: dict[str, Any] = {"vocab_size": 32000, "max_model_len": 32000, "num_blocks": 16 * 2000, "max_num_seqs": 16}

    def cache_bytes(windows: tuple[int | None, ...], **changes: Any) -> int:
        config = EngineConfig(**sizes, windows=windows, **changes)
        return sum(map(ops.cache_bytes, cache_specs(keeps, "float16", config.group_blocks)))

    assert cache_bytes((None,)) == 16 * 32000 * 128 * 1024
    assert cache_bytes((None,)) / 8 < cache_bytes((4096,)) < cache_bytes((None,)) / 7.6
    assert cache_bytes((4096,), enable_prefix_caching=True) < cache_bytes((None,)) / 7, "one window more, for prefixes"
    pool = BlockPool(EngineConfig(**sizes, windows=(4096,)).groups, 16)
    pool.allocate(0)
    for _ in range(62):
        pool.reserve(0, 512)
        pool.commit(0, 512)
    for _ in range(200):
        pool.reserve(0, 1)
        pool.commit(0, 1)
        assert sum(block != -1 for block in pool.table(0, 0)) <= 257, "of 2,000"
