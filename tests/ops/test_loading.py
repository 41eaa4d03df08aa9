"""Large matrices are packed from a mapped file, whose pages are given back on the way; what is in memory stays."""

import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.slices import block_of
from karat.checkpoint.weights import Weight
from karat.machine.extension import native
from karat.ops.native import NativeOps, unavailable_reason

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

ROWS, COLUMNS = 40_000, 64  # more panels than are packed together


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_all_bytes_arrive_and_nothing_is_lost(tmp_path: Path, threads: int, is_mapped: bool) -> None:
    content = np.random.default_rng(threads).integers(0, 256, ROWS * COLUMNS // 32 * 34, np.uint8)
    path = tmp_path / "weights"
    path.write_bytes(content.tobytes())
    with path.open("rb") as file:
        stored = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    weight = Weight("weight", "Q8_0", (ROWS, COLUMNS), stored if is_mapped else content.copy(), path)
    assert weight.is_mapped is is_mapped
    ops = NativeOps(threads=threads)
    held = ops.held(ops.load(weight))
    assert held.dtype == "Q8_0"
    np.testing.assert_array_equal(held.data, content)
    np.testing.assert_array_equal(weight.stored, content)


def changed_in_memory(path: Path, content: np.ndarray) -> np.ndarray:
    path.write_bytes(bytes(len(content)))
    array = np.memmap(path, np.uint8, mode="c")
    array[:] = content
    return array


def without_a_file(_: Path, content: np.ndarray) -> np.ndarray:
    private = mmap.mmap(-1, len(content), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(private, np.uint8)
    array[:] = content
    return array


def no_mapping(_: Path, content: np.ndarray) -> np.ndarray:
    return content.copy()


@pytest.mark.parametrize("make", [changed_in_memory, without_a_file, no_mapping])
def test_what_no_file_has_is_not_given_back(make: Callable[[Path, np.ndarray], np.ndarray], tmp_path: Path) -> None:
    """It would be zeros, or what the file has, from then on."""
    content = np.random.default_rng(4).integers(0, 256, ROWS * COLUMNS // 32 * 34, np.uint8)
    array = make(tmp_path / "weights", content)
    with pytest.raises(ValueError, match="read-only"):
        native().pack("Q8_0", ROWS, COLUMNS, array, 1, mapped=True)
    weight = Weight("weight", "Q8_0", (ROWS, COLUMNS), array, tmp_path / "weights")
    assert not weight.is_mapped
    ops = NativeOps(threads=1)
    np.testing.assert_array_equal(ops.held(ops.load(weight)).data, content)
    np.testing.assert_array_equal(array, content)


def test_only_flat_bytes_are_packed() -> None:
    for array in (np.zeros(96, np.int8), np.zeros((3, 32), np.uint8), np.zeros(192, np.uint8)[::2]):
        with pytest.raises(TypeError):
            native().pack("F32", 3, 8, array, 1)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="says what is resident")
def test_the_pages_of_the_file_are_not_kept(tmp_path: Path) -> None:
    """Of each thread's last part, and of what lies about the ends of parts, some pages may be."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(ROWS * COLUMNS // 32 * 34))
    with path.open("rb") as file:
        stored = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    weight = Weight("weight", "Q8_0", (ROWS, COLUMNS), stored, path)
    NativeOps(threads=1).load(weight)
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    resident = next(line for line in lines[at:] if line.startswith("Rss:"))
    assert int(resident.split()[1]) <= 8


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="says how much was ever resident")
def test_a_file_and_its_packed_form_are_never_in_memory_together(tmp_path: Path) -> None:
    """27 MB of blocks may take their packed form and 8 MB more at any time, not twice as much."""
    code = (
        "import sys, mmap, re, numpy as np; from pathlib import Path; from karat.checkpoint.weights import Weight\n"
        "from karat.ops.native import NativeOps\n"
        "def most(): return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) * 1024\n"
        "path = Path(sys.argv[1]); file = path.open('rb')\n"
        "stored = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)\n"
        f"weight = Weight('weight', 'Q8_0', ({10 * ROWS}, {COLUMNS}), stored, path); ops = NativeOps(threads=1)\n"
        "ops.load(Weight('small', 'Q8_0', (64, 32), np.zeros(64 * 34, np.uint8), None))\n"
        "before = most(); packed = ops.load(weight); print(most() - before)"
    )
    path = tmp_path / "weights"
    num_bytes = 10 * ROWS * COLUMNS // 32 * 34
    path.write_bytes(bytes(num_bytes))
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert num_bytes * 0.9 < int(done.stdout) < num_bytes * 1.05 + 8 * 2**20


@given(
    stored=st.sampled_from(native().formats()),
    rows=st.integers(1, 150),
    blocks=st.integers(1, 5),
    data=st.data(),
    threads=st.integers(1, 2),
)
def test_columns_and_rows_in_another_order_are_packed_from_where_they_lie(
    stored: str, rows: int, blocks: int, data: st.DataObject, threads: int
) -> None:
    size, num_bytes = block_of(stored)
    first = data.draw(st.integers(0, blocks - 1))
    last = data.draw(st.integers(first + 1, blocks))
    content = np.random.default_rng(rows).integers(0, 256, (rows, blocks, num_bytes), np.uint8)
    order = np.random.default_rng(blocks).permutation(rows)[: data.draw(st.integers(1, rows))].astype(np.int64)
    place = {"row_bytes": blocks * num_bytes, "first_byte": first * num_bytes}
    flat, columns = content.reshape(-1), (last - first) * size
    packed = native().pack(stored, rows, columns, flat, threads, **place)
    np.testing.assert_array_equal(packed.stored(), content[:, first:last].reshape(-1))
    ordered = native().pack(stored, len(order), columns, flat, threads, **place, order=order)
    np.testing.assert_array_equal(ordered.stored(), content[order, first:last].reshape(-1))


def test_a_place_outside_of_what_is_stored_is_refused() -> None:
    content = np.zeros(3 * 8 * 4, np.uint8)
    for wrong in (
        {"row_bytes": 32, "first_byte": 17},
        {"row_bytes": 15},
        {"row_bytes": 33},
        {"row_bytes": 24},
        {"row_bytes": 32, "first_byte": 2**64 - 1},
        {"row_bytes": 32, "order": np.array([0, 1, 3])},
        {"row_bytes": 32, "order": np.array([0, 1, -1])},
        {"row_bytes": 32, "order": np.array([0, 1])},
    ):
        with pytest.raises(ValueError, match=r"a matrix of 3 x 4 as F32 in 96 bytes|row -?\d of 3"):
            native().pack("F32", 3, 4, content, 1, **wrong)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_is_loaded_later_is_complete_when_nothing_is_pending(tmp_path: Path, threads: int) -> None:
    """Matrices of a file wait for each other; what is in memory does not, and neither does one that is loaded now."""
    content = np.random.default_rng(threads).integers(0, 256, (5, 48 * 34 * 2), np.uint8)
    path = tmp_path / "weights"
    path.write_bytes(content.tobytes())
    with path.open("rb") as file:
        whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8).reshape(content.shape)
    weights = [Weight(f"w{i}", "Q8_0", (48, 64), rows, path) for i, rows in enumerate(whole)]
    ops = NativeOps(threads=threads)
    waiting = [ops.load(weight, later=True) for weight in weights[:3]]
    assert ops.pending_bytes == content[:3].nbytes
    now = ops.load(weights[3])
    in_memory = ops.load(Weight("w4", "Q8_0", (48, 64), content[4], path), later=True)
    assert ops.pending_bytes == content[:3].nbytes, "neither waits, and no other is completed by them"
    for loaded, expected in ((now, content[3]), (in_memory, content[4])):
        np.testing.assert_array_equal(ops.held(loaded).data, expected)
    ops.load_pending()
    assert ops.pending_bytes == 0
    for loaded, expected in zip(waiting, content, strict=False):
        np.testing.assert_array_equal(ops.held(loaded).data, expected)
    ops.load_pending()  # of nothing


def test_a_part_of_what_is_pending_is_loaded_at_a_time(tmp_path: Path) -> None:
    content = np.arange(4 * 32 * 4, dtype=np.uint8)
    (tmp_path / "weights").write_bytes(content.tobytes())
    with (tmp_path / "weights").open("rb") as file:
        stored = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    packer = native().Packer(2)
    matrices = [packer.add("F32", 1, 32, stored[128 * i : 128 * (i + 1)], mapped=True) for i in range(4)]
    for left in (2, 1, 0, 0):
        packer.run(129 if left == 2 else 1, spared=2 - left)  # no thread is left over at last: one works all the same
        assert packer.pending == 128 * left
        for i, matrix in enumerate(matrices[: 4 - left]):
            np.testing.assert_array_equal(matrix.stored(), content[128 * i : 128 * (i + 1)])
