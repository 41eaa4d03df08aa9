"""nvcc compiles every kernel (`make cuda` runs this): nothing is spilled, and no operation is less than IEEE's.

So does the module that was built of them say what it lacks where there is no driver.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from karat.errors import ExecutorError
from karat.ops.registry import create

CSRC = Path(__file__).resolve().parents[2] / "csrc"
NVCC = shutil.which("nvcc")
SOURCES = sorted((CSRC / "gpu").glob("*launches*.cpp"))  # where kernels become code
FLAGS = ["-x", "cu", "-std=c++20", "-O3", "-fmad=false", f"-I{CSRC}", "-DKARAT_ISA_NAMESPACE=gpu", "-DKARAT_ONE_LANE"]


def faults(ptx: str, said: str) -> list[str]:
    """What may not be: approximations, flushed denormals, operations without a rounding, spilled registers."""
    found = re.findall(r"\b[\w.]*\.(?:ftz|approx)[\w.]*", ptx)
    found += re.findall(r"\b(?:mul|add|sub)\.f32", ptx)  # a driver may fuse those that do not say how they round
    found += [line.strip() for line in said.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]
    return found


def test_faults_are_found() -> None:
    spilled = "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads"
    assert faults("fma.rn.f32 %f1; ex2.approx.ftz.f32 %f2;", "") == ["ex2.approx.ftz.f32"]
    assert faults("mul.rn.f32 %f1; mul.f32 %f2;", "") == ["mul.f32"]
    assert faults("", f"ptxas info\n{spilled}\n0 bytes spill stores, 0 bytes spill loads") == [spilled.strip()]


def test_the_module_needs_the_driver_alone() -> None:
    """And that only when it computes: it is small, and without a driver its error says so."""
    module = pytest.importorskip("karat_cuda._cuda", reason="`make cuda` builds it")
    path = Path(module.__file__)
    assert path.stat().st_size < 20e6
    needed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed.replace(str(path), "") and "not found" not in needed
    if reason := module.why_no_device():
        assert "NVIDIA driver" in reason
        with pytest.raises(ExecutorError, match=f"^the cuda executor is not available: {re.escape(reason)}"):
            create("auto", "float32", {"device": "cuda"})


def test_a_process_may_have_it_and_the_emulation() -> None:
    """Their classes have the same names: who asks for the emulation gets it, whichever module came first."""
    pytest.importorskip("karat_cuda._cuda", reason="`make cuda` builds it")
    emulated = pytest.importorskip("karat._emulated", reason="`make emulated` builds it")
    assert emulated.Device.__module__ == "karat._emulated" and emulated.Device(0).name == "emulation"


@pytest.mark.long
@pytest.mark.skipif(NVCC is None, reason="no nvcc here")
@pytest.mark.parametrize("architecture", ["80", "90a", "100", "120"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_kernels_compile(source: Path, architecture: str, tmp_path: Path) -> None:
    ptx = tmp_path / "kernels.ptx"
    subprocess.run([str(NVCC), *FLAGS, f"-arch=compute_{architecture}", "-ptx", str(source), "-o", ptx], check=True)
    assembler = [str(Path(str(NVCC)).resolve().with_name("ptxas")), "-v", f"-arch=sm_{architecture}", str(ptx)]
    said = subprocess.run([*assembler, "-o", tmp_path / "kernels.cubin"], capture_output=True, text=True, check=True)
    assert "registers" in said.stderr
    assert faults(ptx.read_text(encoding="utf-8"), said.stderr) == []
