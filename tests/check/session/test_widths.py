"""What widths cost, on the embedded model: the order of the rows, and of their errors."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from karat.check.model.checked import open_model
from karat.check.session.widths import CHOICES, coded_matrices, measure
from karat.config import embedded_model_path
from karat.ops.native import unavailable_reason

DATA = Path(__file__).parents[2] / "data" / "llama_cpp"
IDS = np.random.default_rng(8).integers(0, 1000, 20).tolist()


@pytest.mark.skipif(unavailable_reason() is not None, reason="the default cache is the native executor's")
def test_wider_integers_are_nearer_to_float64() -> None:
    model, told = open_model(None), []
    rows = list(measure(model, IDS, CHOICES, quantize="q4_0", threads=1, progress=told.append))
    names = [(row.activations, row.kv_dtype) for row in rows]
    assert names == [
        ("float64", "float64"),
        *((name, cache) for name in CHOICES for cache in ("float16", "float32")),
    ]
    error = {name: row.rms / row.deviation for name, row in zip(names, rows, strict=True)}
    assert error["float64", "float64"] == 0 and rows[0].agree == rows[0].tokens == 20
    int24, int16, int8 = (error[name, "float32"] for name in ("int24", "int16", "int8"))
    assert 0 < int24 < 2e-6
    assert int24 * 10 < int16 < int8 / 50 and int8 < 0.1
    assert {row.by for row in rows[1:]} == {"native"}
    assert error["int16", "float16"] < 1.5 * error["int24", "float16"]  # the cache's rounding is the larger one
    fine = [row for row in rows if row.activations != "int8"]
    assert all(row.kl < 1e-6 and abs(row.perplexity / rows[0].perplexity - 1) < 1e-3 for row in fine)
    assert told[0].startswith("1 of 5: float64") and any("loading" in text for text in told)


def test_one_cache_for_all_if_it_is_named() -> None:
    rows = list(measure(open_model(None), IDS, ("int24", "int16"), kv_dtype="bfloat16", quantize="q8_0", threads=1))
    assert [row.kv_dtype for row in rows] == ["float64", "bfloat16", "bfloat16"]
    assert all(1e-4 < row.rms / row.deviation < 1e-1 for row in rows[1:])  # of the cache


def test_matrices_in_blocks_are_counted() -> None:
    model = open_model(str(embedded_model_path()))
    matrices = coded_matrices(model)[1]
    assert coded_matrices(model) == (0, matrices) and coded_matrices(model, "q4_0") == (matrices, matrices)


def test_llama_cpp_has_a_row_where_it_is_installed() -> None:
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    model = open_model(str(DATA / "qwen2-Q4_0.gguf"))
    ids = [token % model.config.vocab_size for token in IDS]
    rows = list(measure(model, ids, ("int8",), threads=1))
    assert [row.activations for row in rows] == ["float64", "int8", "int8", "llama.cpp"]
    assert 1e-4 < rows[-1].rms / rows[-1].deviation < 0.2
