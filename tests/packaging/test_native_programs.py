"""The programs of `make cross` and `make sanitize` keep up with the sources that they call: read here, made there."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
MACHINE = {"x86_64": "-DKARAT_X86", "AMD64": "-DKARAT_X86", "aarch64": "-DKARAT_ARM", "arm64": "-DKARAT_ARM"}


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "native").glob("*.cpp")), ids=lambda path: path.name)
def test_a_program_reads_without_an_error(path: Path) -> None:
    assert COMPILER is not None
    machine = [flag for name, flag in MACHINE.items() if name == platform.machine()]
    command = [COMPILER, "-std=c++20", *machine, "-Icsrc", "-fsyntax-only", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
