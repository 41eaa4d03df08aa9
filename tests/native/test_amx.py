"""Kernels with Intel's tiles as they are compiled, assembly included: by a processor's own tiles, or emulated where it
it has none (amx_emulator.h). What else is in them needs VNNI.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from karat.machine.processor import cpu_features
from karat.ops.native import refused_isas
from tests.support.drawn import some
from tests.support.integer_digests import DATA

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
COMMON = ["-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-w", f"-I{CSRC}", f"-I{HERE}", "-DKARAT_X86"]
VNNI = ["-mavx512f", "-mavx512bw", "-mavx2", "-mfma", "-mf16c", "-mavx512vnni"]
TILES = [*VNNI, "-mamx-tile", "-mamx-bf16", "-DKARAT_ISA_NAMESPACE=avx512_amx", "-DKARAT_FEW_ROWS=generic"]
RELEASED = ["-DKARAT_ISA_NAMESPACE=avx512_amx_released", "-DKARAT_ONE_BUILD=karat::avx512_amx_released"]
SOURCES = {
    ("-O3", *TILES): [CSRC / "kernels" / f"amx_{name}.cpp" for name in ("many", "rows", "table")],
    ("-O0", "-DKARAT_ISA_NAMESPACE=generic", "-DKARAT_GENERIC"): [
        CSRC / "kernels" / f"integer_{name}.cpp" for name in ("few", "many", "rows", "table")
    ],
    ("-O2", "-mavx2", "-mfma"): [HERE / "amx_emulator.cpp"],
    ("-O1",): [CSRC / "formats" / "packed.cpp", CSRC / "runtime" / "tiles.cpp"],
}
PROGRAMS = {
    "amx_test": {("-O1",): ["amx_test.cpp"]},
    "integer_digest": {
        ("-O1", *RELEASED, "-include", str(HERE / "by_loops" / "declared.h")): [
            "integer_digest.cpp",
            "amx_released.cpp",
        ]
    },
}

pytestmark = [
    pytest.mark.skipif(COMPILER is None or platform.machine() != "x86_64", reason="no C++ compiler for x86-64 here"),
    pytest.mark.skipif("avx512_vnni" not in cpu_features(), reason="this processor has no VNNI of 512 bits"),
    pytest.mark.skipif("avx512-amx" in refused_isas(), reason="the system refuses the tiles that this processor has"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PROGRAMS: half a minute of compiling."""
    asked = [str(COMPILER), "-mamx-tile", "-mamx-bf16", "-x", "c++", "-fsyntax-only", "/dev/null"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("this compiler knows no tiles")
    folder = tmp_path_factory.mktemp("amx")
    shared = [compiled(source, flags, folder) for flags, sources in SOURCES.items() for source in sources]
    for name, own in PROGRAMS.items():
        objects = [compiled(HERE / source, flags, folder) for flags, sources in own.items() for source in sources]
        subprocess.run([str(COMPILER), *shared, *objects, "-pthread", "-o", str(folder / name)], check=True)
    return folder


def compiled(source: Path, flags: tuple[str, ...], folder: Path) -> str:
    made = str(folder / f"{source.stem}.o")
    subprocess.run([str(COMPILER), *COMMON, *flags, "-c", str(source), "-o", made], check=True)
    return made


@pytest.mark.slow
def test_threads_and_signals_lose_no_tiles_and_no_call_leaves_them_in_use(programs: Path) -> None:
    done = subprocess.run([programs / "amx_test"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_tiles_have_the_bits_of_the_definition(programs: Path) -> None:
    """Of all formats in a long run: minutes, as an instruction takes ten microseconds."""
    stated = DATA.read_text(encoding="utf-8").splitlines()
    formats = some(sorted({line.split()[0] for line in stated}), 1, of="test_amx")
    done = subprocess.run([programs / "integer_digest", *formats], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line for line in stated if line.split()[0] in formats]
