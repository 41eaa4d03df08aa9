"""What LLM is told when a model is loaded: arguments, what is no model, and the size of the cache.

Covers: karat.engine.model_running, karat.engine.model_loading.load_plan, karat.models.opening.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM
from karat.checkpoint import open_folder
from karat.engine.model_loading.cache_size import LIST_BYTES
from karat.errors import CapacityError, CheckpointError, ConfigError, ExecutorError, UsageError
from karat.models.registry import find_weights, read_config
from karat.ops import registry
from karat.ops.native import unavailable_reason
from karat.ops.rope_table import table_bytes
from tests.engine.tiny import write, write_model


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "float16"}, ExecutorError, "dtype='float16'"),
        ({"executor": "abacus"}, ExecutorError, "executor='abacus' is unknown"),
        ({"kv_dtype": "int8"}, UsageError, "kv_dtype='int8': expected one of float16"),
        ({"generation_config": "vllm"}, UsageError, "expected 'auto' or 'none'"),
        ({"seed": -1}, UsageError, "seed=-1: expected an integer from 0"),
        ({"seed": 1.5}, UsageError, r"seed=1\.5"),
        ({"max_num_seqs": 0}, UsageError, "max_num_seqs=0"),
        (
            {"max_num_batched_tokens": 15},
            UsageError,
            "max_num_batched_tokens=15: expected a token at least for each of max_num_seqs=16",
        ),
        ({"max_model_len": 0}, UsageError, "max_model_len=0"),
        ({"max_model_len": 129}, UsageError, "max_model_len=129: the model was made for 128"),
        ({"num_blocks": 4, "kv_cache_bytes": 5}, UsageError, "give one"),
        ({"num_blocks": 0}, UsageError, "num_blocks=0"),
        ({"state_cache_bytes": -1}, UsageError, "state_cache_bytes=-1: expected an integer of at least 0"),
        ({"max_step_ms": -1}, UsageError, "max_step_ms=-1"),
        ({"max_step_ms": 200.0}, UsageError, "max_step_ms=200.0"),
        ({"kv_cache_bytes": "1G"}, UsageError, "kv_cache_bytes='1G'"),
        (
            {"num_blocks": 7, "executor": "reference"},
            CapacityError,
            r"max_model_len=128 tokens takes 32\.0 KiB .* room for 112 tokens \(num_blocks=7\)",
        ),
        (
            {"kv_cache_bytes": 16 * 256 * 7 + 5, "executor": "reference"},
            CapacityError,
            r"room for 112 tokens \(kv_cache_bytes=28677\)",
        ),
    ],
)
def test_arguments_are_checked(folder: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LLM(folder, **({"kv_dtype": "float32"} | arguments))


def test_unknown_arguments_are_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="tensor_parallel; did you mean tensor_parallel_size"):
        LLM(folder, tensor_parallel=2)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        LLM(tmp_path / "nothing")
    folder = write_model(tmp_path)
    write(folder / "generation_config.json", {"do_sample": "perhaps"})
    with pytest.raises(ConfigError, match="do_sample='perhaps'"):
        LLM(folder)


@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16", "float32", "float64", None])
def test_kv_dtypes(folder: Path, kv_dtype: Any) -> None:
    llm = LLM(folder, kv_dtype=kv_dtype, executor="reference")
    assert llm.kv_dtype == (kv_dtype or "float32")
    exact = LLM(folder, dtype="float64").logits(range(64))
    error = np.abs(llm.logits(range(64)) - exact).max()
    bound = {"float16": 0.1, "bfloat16": 1.0}.get(llm.kv_dtype, 1e-3)
    floor = {"float16": 1e-4, "bfloat16": 1e-3}.get(llm.kv_dtype, 0)
    assert floor < error < bound


def test_the_cache_is_as_large_as_told(folder: Path) -> None:
    def num_blocks(kv_dtype: Any = "float32", **arguments: Any) -> int:
        return LLM(folder, kv_dtype=kv_dtype, **arguments).engine.config.num_blocks

    block_bytes = 16 * 2 * 2 * 2 * 8 * 4  # tokens, K and V, layers, KV heads, head_dim, float32
    assert num_blocks(num_blocks=11) == 11
    assert num_blocks(kv_cache_bytes=20 * block_bytes + 1, executor="reference") == 20
    assert num_blocks(kv_cache_bytes=20 * block_bytes, kv_dtype="float16", executor="reference") == 40
    assert num_blocks(max_num_seqs=3) == 3 * 8, "three contexts of 128 tokens"
    assert num_blocks(max_num_seqs=3, max_model_len=17) == 3 * 2


@pytest.mark.skipif(unavailable_reason() is not None, reason="no native extension here")
def test_regions_of_the_native_cache_are_counted(folder: Path) -> None:
    def num_blocks(kv_dtype: Any, kv_cache_bytes: int) -> int:
        llm = LLM(folder, executor="native", kv_dtype=kv_dtype, kv_cache_bytes=kv_cache_bytes)
        return llm.engine.config.num_blocks

    region_bytes = 256 * 2 * 2 * (8 + 16) * 4  # slots, layers, KV heads, head_dim of K and of V, float32
    assert num_blocks("float32", 3 * region_bytes - 1) == 32
    assert num_blocks("float16", 3 * region_bytes) == 96
    with pytest.raises(CapacityError, match=r"takes 96\.0 KiB of float32 KV cache, which has room for 0 tokens"):
        num_blocks("float32", region_bytes - 1)


def test_the_default_cache_takes_a_share_of_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what the weights and the tables of RoPE leave, lists of blocks counted."""
    block_bytes, ops = 16 * 2 * 2 * 2 * 8 * 4, registry.create("reference", "float32")
    checkpoint = open_folder(folder)
    weights = find_weights(read_config(checkpoint.config), checkpoint)
    del weights["model.embed_tokens.weight"]  # no tied head: it stays in the file
    weight_bytes = sum(ops.bytes_of(weight.dtype, weight.shape) for weight in weights.values())
    other_bytes = weight_bytes + table_bytes(8, 128, 4)
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: other_bytes + 100 * (block_bytes + LIST_BYTES))
    assert LLM(folder, executor="reference").engine.config.num_blocks == 40, "rather than 128"
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: other_bytes + 10 * (block_bytes + LIST_BYTES))
    with pytest.raises(CapacityError, match=r"room for 64 tokens \(40% of the 40\.5 KiB of memory that are available"):
        LLM(folder, executor="reference")
    assert LLM(folder, executor="reference", max_model_len=64).engine.config.num_blocks == 4


def test_a_model_larger_than_memory_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: 1000)
    monkeypatch.setattr("karat.models.registry.Decoder", None)  # nothing is built
    with pytest.raises(CapacityError, match=r"the weights take .* and 1\.0 KiB are available"):
        LLM(folder)


def test_weights_of_64_bits_are_rounded_and_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They give the answers of the float32 weights that they round to, on every executor."""
    from safetensors.numpy import load_file, save_file

    doubles = shutil.copytree(folder, tmp_path / "doubles")
    weights = {name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()}
    save_file(weights, doubles / "model.safetensors")
    executors = ["reference"] + ["native"] * (unavailable_reason() is None)
    for executor in executors:
        expected, found = (LLM(path, executor=executor).logits([1, 2, 3]) for path in (folder, doubles))
        np.testing.assert_array_equal(found, expected)
    assert f"doubles: {len(weights)} F64 tensors are rounded to float32" in caplog.text


def test_progress_counts_the_bytes_of_the_weights(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    LLM(folder, progress=lambda done, total: seen.append((done, total)))
    (total,) = {total for _, total in seen}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}) and seen[-1] == (total, total)
    stored = (folder / "model.safetensors").stat().st_size
    assert 0.9 * stored < total < stored
