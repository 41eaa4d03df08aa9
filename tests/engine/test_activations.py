"""LLM(activations=): one meaning in a process, in an engine's process and in ranks."""

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat import LLM, AsyncLLM, SamplingParams
from karat.config import embedded_model_path
from karat.engine.model_running import Preparation
from karat.errors import ExecutorError, UsageError
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops.executor import Executor
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS
from karat.ops.reference import ReferenceOps
from karat.ops.registry import create
from tests.support.forward import run

IDS = np.random.default_rng(27).integers(0, 4000, 12).tolist()
SLOW: Any = {"executor": "reference", "quantize": "q4_0", "max_model_len": 32}


def logits_by(ops: Executor) -> NDArray[np.floating]:
    checkpoint = open_model(embedded_model_path())
    config = read_config(checkpoint.config)
    model = build(config, ops, checkpoint, num_positions=32, prepare=Preparation("q4_0"))
    return run(model, [IDS])[0]


@pytest.fixture(scope="module")
def right() -> dict[str, NDArray[np.floating]]:
    """Logits by the definition, of each width, and in float32."""
    widths = {name: logits_by(IntegerOps(width)) for name, width in WIDTHS.items()}
    return widths | {"float32": logits_by(ReferenceOps("float32"))}


@pytest.mark.parametrize("activations", ["float32", *WIDTHS])
def test_the_reference_computes_integers_as_they_are_defined(activations: Any, right: dict[str, Any]) -> None:
    with LLM(activations=activations, **SLOW) as llm:
        np.testing.assert_array_equal(llm.logits(IDS), right[activations])
        assert (llm.activations, llm.dtype) == (activations, "float32")
        assert llm.numeric_contract == (2 if activations == "float32" else 5)


def test_integers_reach_ranks(right: dict[str, Any]) -> None:
    with LLM(activations="int8", tensor_parallel_size=2, threads=1, **SLOW) as llm:
        off = {name: float(np.abs(llm.logits(IDS) - logits).max()) for name, logits in right.items()}
    assert off["int8"] < off["int16"] / 50  # the sums of other layers are added otherwise


def test_integers_reach_the_process_of_an_engine() -> None:
    async def stated() -> tuple[str, list[int]]:
        llm = await AsyncLLM.open(activations="int8", **SLOW)
        try:
            answer = await llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=4))
            assert not isinstance(answer, list)
            return llm.activations, list(answer.outputs[0].token_ids)
        finally:
            await llm.close()

    with LLM(activations="int8", **SLOW) as llm:
        ids = llm.tokenizer.encode("Once upon a time")
        for _ in range(4):
            ids.append(int(llm.logits(ids)[-1].argmax()))
    assert asyncio.run(stated()) == ("int8", ids[-4:])


def test_a_model_without_blocks_reads_float32() -> None:
    with LLM(activations="int8", executor="reference", max_model_len=16) as llm:
        assert llm.activations == "float32" and llm.numeric_contract == 2


def test_without_the_option_the_reference_rounds_nothing() -> None:
    assert create("reference").activations == "float32"
    assert create("reference", "float64").activations == "float64"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activations": "int4"}, UsageError, r"activations='int4': expected one of .*int16"),
        ({"activations": 8}, UsageError, r"activations=8: expected one of"),
        ({"activations": "int16", "dtype": "float64"}, ExecutorError, r"dtype='float64' reads float64 where"),
        ({"activations": "float32", "dtype": "float64"}, ExecutorError, r"dtype='float64' reads float64 where"),
        (
            {"activations": "float64"},
            ExecutorError,
            r"native .* reads int8, int16, int24 where",
        ),
    ],
)
def test_refusals(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LLM(**options)
