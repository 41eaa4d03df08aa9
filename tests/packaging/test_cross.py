"""The C++ sources read for 64-bit Arm, where a compiler for it is; `make cross` makes code of them, and runs it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("aarch64-linux-gnu-g++")
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
FLAGS += ["-DKARAT_ARM", "-Icsrc"]
BUILDS = {
    "generic": ["-DKARAT_ISA_NAMESPACE=generic", "-DKARAT_GENERIC"],
    "neon": ["-DKARAT_ISA_NAMESPACE=neon"],
}
INTEGERS = {  # which alone have these builds
    "neon_dotprod": ["-DKARAT_ISA_NAMESPACE=neon_dotprod", "-march=armv8.2-a+dotprod"],
    "neon_i8mm": ["-DKARAT_ISA_NAMESPACE=neon_i8mm", "-march=armv8.2-a+dotprod+i8mm"],
}
EMULATION = ["-DKARAT_ISA_NAMESPACE=gpu", "-DKARAT_ONE_LANE", "-Wno-unknown-pragmas"]  # of csrc/gpu, as cmake has it

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no aarch64-linux-gnu-g++ here")


def sources() -> list[tuple[str, list[str]]]:
    """Every source that does not need Python, with the flags of each build that it is part of."""
    found = []
    for path in sorted((ROOT / "csrc").rglob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        if path.name.startswith("amx_") or path.name == "device_cuda.cpp":  # for Intel's tiles, for CUDA's runtime
            continue
        if "KARAT_ISA_NAMESPACE" in text:
            builds = BUILDS | INTEGERS if path.name.startswith("integer_") and path.parent.name == "kernels" else BUILDS
            found += [(path.relative_to(ROOT).as_posix(), flags) for flags in builds.values()]
        elif path.parent.name == "gpu":
            found.append((path.relative_to(ROOT).as_posix(), EMULATION))
        elif "nanobind" not in text and "limits_module.h" not in text:
            found.append((path.relative_to(ROOT).as_posix(), []))
    return found


def compile_with(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert COMPILER is not None
    return subprocess.run([COMPILER, *FLAGS, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "flags"), sources(), ids=lambda value: value if isinstance(value, str) else None)
def test_a_source_reads_without_a_warning(name: str, flags: list[str]) -> None:
    done = compile_with(*flags, "-fsyntax-only", name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("build", "intrinsics"), [("generic", False), ("neon", True)])
def test_only_the_neon_build_has_intrinsics(build: str, intrinsics: bool) -> None:
    done = compile_with(*BUILDS[build], "-M", "csrc/kernels/linear_many.cpp")
    assert done.returncode == 0, done.stderr
    assert ("arm_neon.h" in done.stdout) == intrinsics
