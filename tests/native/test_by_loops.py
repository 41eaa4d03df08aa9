"""Kernels with VNNI on any machine: compiled as they are, with loops for their intrinsics (by_loops/immintrin.h)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.integer_digests import DATA

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
SOURCES = [
    HERE / "integer_digest.cpp",
    CSRC / "formats" / "packed.cpp",
    *(CSRC / "kernels" / f"integer_{name}.cpp" for name in ("few", "many", "rows", "table")),
]
BUILDS = {
    "avx2_vnni": ["-D__AVX2__", "-D__AVXVNNI__"],
    "avx512_vnni": ["-D__AVX2__", "-D__AVX512F__", "-D__AVX512VNNI__"],
}


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
@pytest.mark.parametrize("build", BUILDS)
def test_kernels_with_vnni_have_the_bits_of_the_definition(build: str, tmp_path: Path) -> None:
    """All formats and widths, for few tokens and for many; nothing is asked of the processor. A minute of compiling."""
    assert COMPILER is not None
    stated = DATA.read_text(encoding="utf-8").splitlines()
    program = tmp_path / "integer_digest"
    command = [COMPILER, "-std=c++20", "-O0", "-ffp-contract=off", "-w", "-Wno-psabi", *BUILDS[build]]
    command += ["-o", str(program), f"-I{HERE / 'by_loops'}", f"-I{HERE}", f"-I{CSRC}", "-include", "declared.h"]
    command += [f"-DKARAT_ISA_NAMESPACE={build}_by_loops", f"-DKARAT_ONE_BUILD=karat::{build}_by_loops"]
    subprocess.run([*command, *map(str, SOURCES)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == stated
