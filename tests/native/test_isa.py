"""Which build of the kernels a processor gets (csrc/runtime/isa.cpp), for processors that are not this one.

What is compiled is asked of CMake, which is told what the processor has; nothing is compiled but the choice itself.
"""

import json
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
AVX2, AVX512, VNNI = ["avx2", "fma", "f16c"], ["avx512f", "avx512bw"], ["avx512vnni"]
AMD, INTEL = "AuthenticAMD", "GenuineIntel"
MAKERS = {AMD: "amd", INTEL: "intel"}  # as a compiler calls them

pytestmark = [
    pytest.mark.skipif(COMPILER is None or CMAKE is None, reason="no C++ compiler or no CMake here"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the choice between builds is one of x86-64"),
]


def definitions(folder: Path, *options: str) -> list[str]:
    """What isa.cpp is compiled with after `cmake` with these options."""
    assert CMAKE is not None
    given = ["-S", str(HERE), "-B", str(folder), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options]
    subprocess.run([CMAKE, *given], check=True, capture_output=True)
    commands = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    (command,) = {entry["command"] for entry in commands if entry["file"].endswith("runtime/isa.cpp")}
    return [word for word in shlex.split(command) if word.startswith("-DKARAT_")]


def choose(folder: Path, defined: list[str], maker: str, features: list[str]) -> dict[str, list[str]]:
    """What a processor is offered, by the first word of the program's lines."""
    assert COMPILER is not None
    program = folder / "isa_choice"
    if not program.exists():
        command = [COMPILER, "-std=c++20", "-O0", f"-I{CSRC}", *defined, "-include", str(HERE / "isa_choice.h")]
        sources = [str(HERE / "isa_choice.cpp"), str(CSRC / "runtime" / "isa.cpp")]
        subprocess.run([*command, *sources, "-o", str(program)], check=True)
    done = subprocess.run([program, MAKERS[maker], *features], check=True, capture_output=True, text=True)
    return {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A wheel's builds."""
    folder = tmp_path_factory.mktemp("wheel")
    return folder, definitions(folder)


@pytest.mark.parametrize(
    ("maker", "features", "build", "integers"),
    [
        (AMD, [], "generic", "generic"),
        (AMD, AVX2, "avx2", "avx2"),  # up to Zen 3
        (AMD, [*AVX2, *AVX512, *VNNI], "avx512-vnni", "avx512_vnni"),  # Zen 4
        (AMD, [*AVX2, *AVX512, *VNNI, "avxvnni"], "avx512-vnni", "avx512_vnni"),  # Zen 5
        (INTEL, AVX2, "avx2", "avx2"),  # Haswell to Comet Lake
        (INTEL, [*AVX2, "avxvnni"], "avx2-vnni", "avx2_vnni"),  # Alder Lake and later
        (INTEL, [*AVX2, *AVX512], "avx512", "avx512"),  # Skylake-X
        (INTEL, [*AVX2, *AVX512, *VNNI], "avx512-intel", "avx512_vnni_intel"),  # Ice Lake
        (INTEL, [*AVX2, *AVX512, *VNNI, "avxvnni", "amx"], "avx512-amx", "avx512_amx"),  # Sapphire Rapids and later
        (INTEL, [*AVX2, *AVX512, *VNNI, "avxvnni", "amx-refused"], "avx512-intel", "avx512_vnni_intel"),
    ],
)
def test_a_processor_gets_the_kernels_of_its_maker(
    maker: str, features: list[str], build: str, integers: str, everything: tuple[Path, list[str]]
) -> None:
    found = choose(*everything, maker, features)
    assert found["supported"][-1] == build
    assert found[build] == ["has", "integers", "of", integers]
    assert set(found["supported"]) <= set(found["compiled"])
    assert found.get("refused") == (["avx512-amx", "refused"] if "amx-refused" in features else None)


def test_every_processor_with_vnni_can_be_asked_for_the_build_of_the_other_maker(
    everything: tuple[Path, list[str]],
) -> None:
    """So the digests of tests/ops/test_integer_kernels.py are compared on either."""
    features = [*AVX2, *AVX512, *VNNI]
    offered = [set(choose(*everything, maker, features)["supported"]) for maker in MAKERS]
    assert offered[0] == offered[1] == {"generic", "avx2", "avx512", "avx512-vnni", "avx512-intel"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maker", "amx", "builds"),
    [(AMD, 0, ["avx512-vnni"]), (INTEL, 0, ["avx512-intel"]), (INTEL, 1, ["avx512-intel", "avx512-amx"])],
)
def test_a_build_for_one_processor_offers_no_integers_by_loops(
    maker: str, amx: int, builds: list[str], tmp_path: Path
) -> None:
    """`make demo` leaves kernels of integers out that nobody would choose; it must not put loops into their place."""
    has = [f"-DKARAT_CPU_HAS_{name}=1" for name in ("AVX512", "AVX2", "AVX512_VNNI")]
    has.append(f"-DKARAT_CPU_HAS_AMX={amx}")
    defined = definitions(tmp_path, "-DKARAT_ONLY_THIS_CPU=ON", f"-DKARAT_CPU_MAKER={maker}", *has)
    found = choose(tmp_path, defined, maker, [*AVX2, *AVX512, *VNNI, *["amx"] * amx])
    assert found["compiled"] == found["supported"] == ["generic", *builds]
    assert found["limits"] == ["generic", "avx512"], "the limits of floats stay"
    by_loops = [name for name, words in found.items() if words == "has integers of generic".split()]
    assert by_loops == ["generic"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has", "compiled", "read"),
    [
        ("AVX2", "AVX2", "avx2_vnni avx512 avx512_amx avx512_intel avx512_vnni avx512_vnni_intel"),
        ("AVX2 AVX_VNNI", "AVX2 AVX2_VNNI", "avx512 avx512_amx avx512_intel avx512_vnni avx512_vnni_intel"),
        ("AVX2 AVX512", "AVX2 AVX512", "avx2_vnni avx512_amx avx512_intel avx512_vnni avx512_vnni_intel"),
        ("AVX2 AVX512 AVX512_VNNI", "AVX2 AVX512 AVX512_INTEL AVX512_VNNI AVX512_VNNI_INTEL", "avx2_vnni avx512_amx"),
    ],
)
def test_a_build_for_tests_reads_what_the_processor_cannot_run(
    has: str, compiled: str, read: str, tmp_path: Path
) -> None:
    known = ("AVX2", "AVX512", "AVX512_VNNI", "AVX_VNNI", "AMX")
    options = [f"-DKARAT_CPU_HAS_{name}={int(name in has.split())}" for name in known]
    defined = definitions(tmp_path, "-DKARAT_ONLY_RUNNABLE=ON", *options)
    builds = sorted(word.removeprefix("-DKARAT_WITH_") for word in defined if word.startswith("-DKARAT_WITH_"))
    assert builds == sorted([*compiled.split(), "GENERIC"])
    assert sorted(path.stem for path in tmp_path.glob("CMakeFiles/read_*.dir")) == sorted(
        f"read_{build}" for build in read.split()
    )
