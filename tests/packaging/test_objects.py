"""What is built for an instruction set may be run by nobody who has not asked for it.

The linker keeps one copy of a weak symbol: of a function that is compiled for AVX2 and for AVX-512 it could take the
latter for everybody. And what an object does as it is loaded, it does on every machine.
"""

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.drawn import some

ROOT = Path(__file__).resolve().parents[2]
NM = shutil.which("nm")
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
FLAGS = [
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-exceptions",
    f"-I{ROOT / 'csrc'}",
]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx2", "-mfma", "-mf16c"]
BUILDS = {
    "x86_64": {
        "avx2": ["-DKARAT_X86", "-mavx2", "-mfma", "-mf16c"],
        "avx512": ["-DKARAT_X86", *AVX512],
        "avx512_intel": ["-DKARAT_X86", "-DKARAT_OF_INTEL", *AVX512],
        "avx512_vnni": ["-DKARAT_X86", "-mavx512vnni", *AVX512],
        "avx512_vnni_intel": ["-DKARAT_X86", "-DKARAT_OF_INTEL", "-mavx512vnni", *AVX512],
        "avx512_amx": ["-DKARAT_X86", "-mavx512vnni", *AVX512],
    },
    "aarch64": {"neon": ["-DKARAT_ARM"], "neon_dotprod": ["-DKARAT_ARM", "-march=armv8.2-a+dotprod"]},
}.get(platform.machine(), {})
# One of each family, which include all headers between them.
TILES = ("kernels/amx_many.cpp", "kernels/amx_rows.cpp", "kernels/amx_table.cpp")
SOURCES = (
    "kernels/attention.cpp",
    "kernels/embedding.cpp",
    "kernels/integer_many.cpp",
    "kernels/integer_rows.cpp",
    "kernels/linear_few.cpp",
    "kernels/linear_one.cpp",
    "search/k_fit.cpp",
)

pytestmark = [
    pytest.mark.skipif(NM is None, reason="no nm here"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads what nm says of ELF: another system's names differ"),
]


def wrong_symbols(objects: Sequence[Path]) -> list[str]:
    """Weak and unique symbols that are defined, and load-time initialisers, with the object each is in."""
    assert NM is not None
    command = [NM, "-a", "-A", "-C", *map(str, objects)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > len(objects), "nm lists something of each"
    weak = re.compile(r":[0-9a-f]+ [WVu] ")
    initialiser = re.compile(r" (_GLOBAL__sub_I|__cxx_global_var_init|\.init_array|\.ctors)")
    return [line for line in done.stdout.splitlines() if weak.search(line) or initialiser.search(line)]


def built_objects() -> list[Path]:
    """Those of the kernels in the folder that this interpreter's editable installation was built in."""
    for cache in sorted((ROOT / "build").glob("cp3*/CMakeCache.txt")):
        made_by = re.search(r"^Python_EXECUTABLE:\w+=(.*)$", cache.read_text(encoding="utf-8"), re.MULTILINE)
        if made_by and Path(made_by[1]).parent == Path(sys.executable).parent:
            return sorted(cache.parent.glob("CMakeFiles/kernels_*.dir/**/*.o"))
    return []


def test_nothing_in_the_kernels_of_this_installation_is_weak_or_runs_at_load_time() -> None:
    objects = built_objects()
    if not objects:
        pytest.skip("the folder this installation was built in is not here; `make test` leaves it in build/")
    assert not wrong_symbols(objects)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("build", BUILDS)
def test_nothing_in_the_headers_of_kernels_waits_for_a_compiler_to_inline_it(build: str, tmp_path: Path) -> None:
    """Without optimisation a function is inlined only where it says that it must be. Of one build, two sources."""
    assert COMPILER is not None
    objects = []
    for name in some(TILES if build == "avx512_amx" else SOURCES, 2, of=build):
        objects.append(tmp_path / f"{Path(name).stem}.o")
        command = [COMPILER, *FLAGS, *BUILDS[build], f"-DKARAT_ISA_NAMESPACE={build}", "-O0", "-c"]
        subprocess.run([*command, str(ROOT / "csrc" / name), "-o", str(objects[-1])], check=True)
    assert not wrong_symbols(objects)
