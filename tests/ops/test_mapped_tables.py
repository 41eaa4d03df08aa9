"""Tables of which rows are only gathered stay in their file, on the native and the reference executor."""

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from karat import LLM
from karat.batch import plain_batch
from karat.bench.shapes import written
from karat.checkpoint import open_folder
from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight, mapping_of
from karat.errors import CapacityError
from karat.machine.extension import native
from karat.models.opening import open_model
from karat.models.registry import Model
from karat.ops.executor import Executor
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.engine.tiny import write_model

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

VOCAB, COLUMNS = 151, 512
IDS = (*range(37, 54), 0, 150, 3, 3, 149)  # more than are gathered at once


def table_of(folder: Path, stored: str) -> Weight:
    """A table in a file, at an odd place."""
    size, num_bytes = block_of(stored)
    rng = np.random.default_rng(len(stored))
    if size == 1:
        values = rng.standard_normal((VOCAB, COLUMNS)).astype("<f4")
        whole = {"F32": values, "F16": values.astype("<f2"), "BF16": (values.view(np.uint32) >> 16).astype("<u2")}
        content = whole[stored].reshape(-1).view(np.uint8)
    else:
        content = rng.integers(0, 256, VOCAB * COLUMNS // size * num_bytes, np.uint8)
    (path := folder / "weights").write_bytes(bytes(3) + content.tobytes())
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)[3:]
    return Weight("table", stored, (VOCAB, COLUMNS), mapped, path)


@pytest.mark.parametrize("stored", native().formats())
def test_gathered_rows_have_the_bits_of_the_packed_table(stored: str, tmp_path: Path) -> None:
    weight, batch = table_of(tmp_path, stored), plain_batch(IDS)
    for threads in (1, 2):
        ops = NativeOps(threads=threads)
        assert ops.gathers_mapped(weight)
        mapped, packed = (load(weight) for load in (ops.load_mapped, ops.load))
        got, expected = (ops.read(ops.embedding(batch, table, name="x")) for table in (mapped, packed))
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
        np.testing.assert_array_equal(ops.held(mapped).data, weight.stored)
        assert ops.held(mapped).dtype == stored


@pytest.mark.parametrize("stored", ["F32", "BF16", "Q4_K", "IQ2_XXS"])
def test_the_reference_gathers_the_values(stored: str, tmp_path: Path) -> None:
    ops, weight = ReferenceOps(), table_of(tmp_path, stored)
    mapped, whole = ops.load_mapped(weight), ops.load(weight)
    got = ops.embedding(plain_batch(IDS), mapped, name="x")
    np.testing.assert_array_equal(got, whole[list(IDS)])
    np.testing.assert_array_equal(ops.held(mapped).data, ops.held(whole).data)


@pytest.mark.parametrize("make", [NativeOps, ReferenceOps])
def test_what_is_no_plain_table_of_a_file_is_loaded(make: Callable[[], Executor], tmp_path: Path) -> None:
    ops, weight = make(), table_of(tmp_path, "F16")
    in_memory = Weight("table", "F16", weight.shape, weight.stored.copy(), weight.file)
    turned = Weight("table", "F16", weight.shape, weight.stored, weight.file, row_order=lambda: np.arange(VOCAB)[::-1])
    assert ops.gathers_mapped(weight) and ops.gathers_mapped(weight.rows(3, 9))
    assert not ops.gathers_mapped(in_memory) and not ops.gathers_mapped(turned)


def test_a_table_of_other_sizes_or_in_memory_is_refused(tmp_path: Path) -> None:
    stored = table_of(tmp_path, "Q8_0").stored
    for rows, columns, array in ((VOCAB + 1, COLUMNS, stored), (VOCAB, 31, stored), (VOCAB, COLUMNS, stored.copy())):
        with pytest.raises(ValueError, match=r"no table of|no read-only mmap"):
            native().stored_table("Q8_0", rows, columns, array)


def embedding_of(model: Model | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """The loaded embedding as it is held, and the bytes of its file, if these are the same memory."""
    assert model is not None
    ((spec, loaded),) = ((spec, loaded) for spec, loaded in model.parts.items() if "embed_tokens" in spec.source)
    assert spec.gathered is not model.config.tie_word_embeddings
    held = model.ops.held(loaded).data
    return held, loaded.weight.stored if isinstance(model.ops, ReferenceOps) and spec.gathered else held


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_an_embedding_without_a_tied_head_stays_in_its_file(executor: str, form: str, tmp_path: Path) -> None:
    """Its memory is that of the mapped file; of a tied head, or quantised, it is loaded. The answers are the same."""
    logits = {}
    for tied in (False, True):
        (folder := tmp_path / str(tied)).mkdir()
        path = write_model(folder, tie_word_embeddings=tied)
        if form == "gguf":
            path = written(open_folder(folder), tmp_path / f"{tied}.gguf").path
        checkpoint = open_model(path)
        with LLM(checkpoint, executor=executor, tokenizer=folder) as llm:
            held, memory = embedding_of(llm._model)
            (weight,) = (each for name, each in checkpoint.weights.items() if "embed_tokens" in name)
            place = weight.stored.ctypes.data, weight.stored.nbytes
            assert memory is not None and ((memory.ctypes.data, memory.nbytes) == place) is not tied
            logits[tied] = llm.logits([5, 6, 7])
            assert mapping_of(weight.stored) is not None and held.nbytes
        with LLM(path, executor="reference", tokenizer=folder) as alone:
            np.testing.assert_allclose(logits[tied], alone.logits([5, 6, 7]), atol=0.02)


def test_it_counts_for_no_memory_and_lies_in_no_packed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 4 MB, beside 3 MB of memory in all."""
    (folder := tmp_path / "m").mkdir()
    sizes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 16, "num_hidden_layers": 1}
    write_model(folder, **sizes, tie_word_embeddings=False)
    with LLM(folder, packed_cache=tmp_path / "p") as llm:
        assert llm.packed is not None
        names = {matrix.name for matrix in llm.packed.header.matrices}
        assert "lm_head.weight" in names and "model.embed_tokens.weight" not in names
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: 8 << 20)
    small = {"num_blocks": 8, "max_model_len": 64, "max_num_batched_tokens": 64}
    with LLM(folder, **small) as llm:
        assert len(llm.logits([1, 2])) == 2
    write_model(folder, **sizes | {"vocab_size": 8192}, tie_word_embeddings=False)
    with pytest.raises(CapacityError):
        LLM(folder, **small)
