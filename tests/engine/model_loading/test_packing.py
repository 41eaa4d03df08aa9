"""A model from a packed file: the same answers, nothing read twice, and never a file of other weights."""

import asyncio
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.checkpoint.packed import open_packed
from karat.config import embedded_model_path
from karat.engine.model_loading.packing import SUFFIX
from karat.errors import CheckpointError, DamageError, EngineDiedError, OutputError, UsageError
from karat.models.opening import open_model
from karat.ops.native import unavailable_reason
from tests.engine.tiny import write_model

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason="no native extension")
PARAMS = SamplingParams(max_tokens=12, temperature=1.0, seed=3, logprobs=3)


def answers(llm: LLM) -> list[Any]:
    outputs = llm.generate([[5, 6, 7], [8, 9]], PARAMS)
    return [(out.outputs[0].token_ids, out.outputs[0].logprobs) for out in outputs]


def packed_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


@pytest.mark.parametrize("quantize", [None, "q4_0"])
def test_the_same_bits_the_first_time_and_the_next(folder: Path, tmp_path: Path, quantize: Any) -> None:
    alone = LLM(folder, quantize=quantize)
    done: list[tuple[int, int]] = []
    first = LLM(folder, quantize=quantize, packed_cache=tmp_path / "p", progress=lambda *counts: done.append(counts))
    assert answers(first) == answers(alone) and done
    (path,) = packed_files(tmp_path / "p")
    written = path.stat().st_mtime_ns
    again = LLM(folder, quantize=quantize, packed_cache=tmp_path / "p")
    assert answers(again) == answers(alone)
    assert packed_files(tmp_path / "p") == [path] and path.stat().st_mtime_ns == written
    receipts = [llm.generate([[5, 6]], PARAMS, receipt=True)[0].outputs[0].receipt for llm in (again, alone)]
    assert receipts[0] is not None and receipts[1] is not None
    assert receipts[0].fingerprint == receipts[1].fingerprint and receipts[0].output == receipts[1].output


def test_other_weights_are_packed_anew(tmp_path: Path) -> None:
    (folder := tmp_path / "m").mkdir()
    write_model(folder)
    LLM(folder, packed_cache=tmp_path / "p")
    shutil.rmtree(folder)
    folder.mkdir()
    write_model(folder, seed=1)
    assert answers(LLM(folder, packed_cache=tmp_path / "p")) == answers(LLM(folder))
    assert len(packed_files(tmp_path / "p")) == 1


def test_other_rows_by_an_override_are_packed_anew(tmp_path: Path) -> None:
    """Of a GGUF file with rows of q and k in pairs: which ones follows from the size of a head."""
    path = Path("tests/data/llama_cpp/mistral-Q5_0.gguf")
    shape = open_model(path).config
    changed = {"head_dim": shape["head_dim"] // 2}
    changed |= {name: 2 * shape[name] for name in ("num_attention_heads", "num_key_value_heads")}
    first = LLM(path, hf_overrides=changed, packed_cache=tmp_path / "p")
    assert answers(first) != answers(LLM(path))
    assert answers(LLM(path, packed_cache=tmp_path / "p")) == answers(LLM(path))


def test_a_file_of_another_time_is_packed_anew(folder: Path, tmp_path: Path) -> None:
    """It could hold other weights."""
    shutil.copytree(folder, copy := tmp_path / "m")
    LLM(copy, packed_cache=tmp_path / "p")
    before = packed_files(tmp_path / "p")[0].stat().st_ino
    os.utime(copy / "model.safetensors", ns=(1, 1))
    LLM(copy, packed_cache=tmp_path / "p")
    assert packed_files(tmp_path / "p")[0].stat().st_ino != before


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """The folder of a packed file, a matrix of which has another bit."""
    LLM(folder, packed_cache=tmp_path)
    (path,) = packed_files(tmp_path)
    matrix = open_packed(path).header.matrices[-1]
    with path.open("r+b") as file:
        file.seek(matrix.start)
        byte = file.read(1)[0]
        file.seek(matrix.start)
        file.write(bytes([byte ^ 1]))
    return tmp_path


def test_changed_matrices_end_the_model(folder: Path, damaged: Path) -> None:
    """At the first receipt, before which they are hashed; what streams then ends too."""
    llm = LLM(folder, packed_cache=damaged)
    stream = llm.stream([5, 6, 7], replace(PARAMS, max_tokens=60))
    next(stream)
    for _ in range(2):
        with pytest.raises(DamageError, match="is not what was packed"):
            llm.generate([[5, 6]], PARAMS, receipt=True)
    for use in (lambda: list(stream), lambda: llm.generate([[5, 6]], PARAMS), lambda: llm.logits([5, 6])):
        with pytest.raises(DamageError, match="remove the file, and pack the model again"):
            use()
    llm.close()


def test_changed_matrices_end_the_process_of_an_async_engine(folder: Path, damaged: Path) -> None:
    """They are hashed beside the answers, none of which waits for it; no restart brings it back."""

    async def ask() -> None:
        llm = await AsyncLLM.open(folder, threads=1, packed_cache=damaged)
        try:
            with pytest.raises(EngineDiedError, match="is not what was packed"):
                await asyncio.gather(*(llm.generate([5, 6, 7], PARAMS) for _ in range(1000)))
            with pytest.raises(DamageError, match="is not what was packed"):
                await llm.generate([5, 6, 7], PARAMS, receipt=True)
            assert not llm.healthy and isinstance(llm.failure, DamageError)
            with pytest.raises(EngineDiedError, match="the engine is not started again"):
                await llm.restart()
        finally:
            await llm.close()

    asyncio.run(ask())


def test_a_damaged_file_is_refused_and_stays(folder: Path, tmp_path: Path) -> None:
    LLM(folder, packed_cache=tmp_path)
    (path,) = packed_files(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="remove it, and pack the model again"):
        LLM(folder, packed_cache=tmp_path)
    assert path.exists()


def test_what_reads_no_packed_file_says_so(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="karat"):
        LLM(folder, executor="reference", packed_cache=tmp_path)
    assert "packed_cache has no effect" in caplog.text and not packed_files(tmp_path)
    with pytest.raises(UsageError, match="packed_cache=5"):
        LLM(folder, packed_cache=5)  # type: ignore[arg-type]
    (file := tmp_path / "file").touch()
    with pytest.raises(OutputError, match="name another folder"):
        LLM(folder, packed_cache=file / "p")


def test_a_model_larger_than_memory_is_mapped_with_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: 50_000)
    with caplog.at_level(logging.WARNING, logger="karat"):
        llm = LLM(folder, packed_cache=tmp_path, num_blocks=8, max_model_len=64)
    assert "of memory are available: the system reads what does not fit" in caplog.text
    assert len(answers(llm)) == 2


def test_matrices_are_mapped_and_not_copied(tmp_path: Path) -> None:
    llm = LLM(embedded_model_path(), packed_cache=tmp_path)
    assert llm._model is not None
    matrices = [loaded for spec, loaded in llm._model.parts.items() if len(spec.shape) == 2]
    assert matrices and all(matrix.num_bytes == 0 for matrix in matrices)
    assert np.any(llm._model.ops.held(matrices[0]).data)


def test_the_process_of_an_async_engine_maps_it_too(folder: Path, tmp_path: Path) -> None:
    async def ask(**options: Any) -> Any:
        async with await AsyncLLM.open(folder, threads=1, **options) as llm:
            return (await llm.generate([5, 6, 7], PARAMS, receipt=True)).outputs[0]

    packed, alone = (asyncio.run(ask(**options)) for options in ({"packed_cache": tmp_path}, {}))
    assert packed_files(tmp_path) and packed.token_ids == alone.token_ids
    assert packed.receipt.fingerprint == alone.receipt.fingerprint
