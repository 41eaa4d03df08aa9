"""Kernels with VNNI or tiles on any machine: compiled as they are, with loops for their intrinsics
(by_loops/immintrin.h) and for tiles (csrc/simd/tiles.h)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.integer_digests import DATA

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
BOTH = [HERE / "integer_digest.cpp", CSRC / "formats" / "packed.cpp"]
KERNELS = [CSRC / "kernels" / f"integer_{name}.cpp" for name in ("few", "many", "rows", "table")]
TILES = [CSRC / "kernels" / f"amx_{name}.cpp" for name in ("many", "rows", "table")]
BUILDS = {
    "avx2_vnni": ["-D__AVX2__", "-D__AVXVNNI__"],
    "avx512_vnni": ["-D__AVX2__", "-D__AVX512F__", "-D__AVX512VNNI__"],
}


def compiled(sources: list[Path], build: str, folder: Path, *flags: str) -> list[str]:
    """Objects of a build by loops."""
    assert COMPILER is not None
    command = [COMPILER, "-std=c++20", "-ffp-contract=off", "-w", "-Wno-psabi", f"-I{HERE / 'by_loops'}"]
    command += [f"-I{HERE}", f"-I{CSRC}", "-include", "declared.h", f"-DKARAT_ISA_NAMESPACE={build}", *flags]
    objects = []
    for source in sources:
        objects.append(str(folder / f"{build}-{source.stem}.o"))
        subprocess.run([*command, "-c", str(source), "-o", objects[-1]], check=True)
    return objects


def digests_of(objects: list[str], folder: Path) -> list[str]:
    assert COMPILER is not None
    program = folder / "integer_digest"
    subprocess.run([COMPILER, *objects, "-o", str(program)], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
@pytest.mark.parametrize("build", BUILDS)
def test_kernels_with_vnni_have_the_bits_of_the_definition(build: str, tmp_path: Path) -> None:
    """All formats and widths, for few tokens and for many; nothing is asked of the processor. A minute of compiling."""
    stated = DATA.read_text(encoding="utf-8").splitlines()
    name = f"{build}_by_loops"
    objects = compiled([*BOTH, *KERNELS], name, tmp_path, "-O0", f"-DKARAT_ONE_BUILD=karat::{name}", *BUILDS[build])
    assert digests_of(objects, tmp_path) == stated


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_kernels_with_tiles_have_the_bits_of_the_definition(tmp_path: Path) -> None:
    """The same of many rows by tiles; few rows are the generic build's, as they are VNNI's where there are tiles."""
    stated = DATA.read_text(encoding="utf-8").splitlines()
    name = "avx512_amx_by_loops"
    flags = [f"-DKARAT_ONE_BUILD=karat::{name}", "-DKARAT_TILES_BY_LOOPS", "-DKARAT_FEW_ROWS=generic"]
    objects = compiled([*BOTH, *TILES], name, tmp_path, "-O1", *flags, *BUILDS["avx512_vnni"])
    objects += compiled(KERNELS, "generic", tmp_path, "-O1", "-DKARAT_GENERIC")
    assert digests_of(objects, tmp_path) == stated
