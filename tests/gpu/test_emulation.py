"""The emulation of a GPU (csrc/gpu/simt.h) finds what a GPU leaves to chance; a kernel without mistakes is let be."""

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)

SAID = {
    "none": "right",
    "no_barrier": "without a barrier",
    "early_read": "wrong numbers",  # NaN: the copy has not arrived
    "overwritten": "without a barrier",
    "misaligned": "a misaligned access",
    "misaligned_copy": "a misaligned load",
    "outside": "shared memory: byte ",
    "too_much": "more shared memory than the launch has",
    "too_many": "a block of 65 threads, of a kernel for 64",
    "stale": "wrong numbers",  # registers that nobody wrote
    "product": "right",  # on tensor cores
    "inexact": "a sum on tensor cores that is not exact",
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_small_kernels_with_mistakes(tmp_path: Path) -> None:
    program = tmp_path / "emulation"
    flags = ["-std=c++20", "-O0", "-ffp-contract=off", f"-I{CSRC}", "-DKARAT_ISA_NAMESPACE=gpu", "-DKARAT_ONE_LANE"]
    flags += _undefined(tmp_path)
    subprocess.run([str(COMPILER), *flags, str(Path(__file__).with_name("emulation.cpp")), "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    found = dict(line.split(": ", 1) for line in printed.splitlines())
    assert found.keys() == SAID.keys()
    assert {name: said for name, said in found.items() if SAID[name] not in said} == {}


def _undefined(folder: Path) -> list[str]:
    """Flags by which undefined behaviour ends the program, where the compiler has the library for that."""
    flags, program = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"], folder / "empty"
    empty = [str(COMPILER), *flags, "-x", "c++", "-", "-o", program]
    done = subprocess.run(empty, input="int main() {}", capture_output=True, text=True, check=False)
    return flags if done.returncode == 0 else []
