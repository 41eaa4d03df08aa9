"""Large matrices are packed from a mapped file, whose pages are given back on the way; what is in memory stays."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint.weights import Weight
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
