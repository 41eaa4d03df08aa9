"""nvcc compiles every kernel (`make cuda` runs this): nothing is spilled, and no operation is less than IEEE's."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
NVCC = shutil.which("nvcc")
SOURCES = sorted((CSRC / "gpu").glob("*.cpp"))
FLAGS = ["-x", "cu", "-std=c++20", "-O3", "-fmad=false", f"-I{CSRC}", "-DKARAT_ISA_NAMESPACE=gpu", "-DKARAT_ONE_LANE"]


def faults(ptx: str, said: str) -> list[str]:
    """What may not be in a program: approximations, flushed denormals; what ptxas says of spilled registers."""
    found = re.findall(r"\b[\w.]*\.(?:ftz|approx)[\w.]*", ptx)
    found += [line.strip() for line in said.splitlines() if re.search(r"[1-9]\d* bytes spill", line)]
    return found


def test_faults_are_found() -> None:
    spilled = "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads"
    assert faults("fma.rn.f32 %f1; ex2.approx.ftz.f32 %f2;", "") == ["ex2.approx.ftz.f32"]
    assert faults("", f"ptxas info\n{spilled}\n0 bytes spill stores, 0 bytes spill loads") == [spilled.strip()]


@pytest.mark.long
@pytest.mark.skipif(NVCC is None, reason="no nvcc here")
@pytest.mark.parametrize("architecture", ["80", "90a", "120"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_kernels_compile(source: Path, architecture: str, tmp_path: Path) -> None:
    ptx = tmp_path / "kernels.ptx"
    subprocess.run([str(NVCC), *FLAGS, f"-arch=compute_{architecture}", "-ptx", str(source), "-o", ptx], check=True)
    assembler = [str(Path(str(NVCC)).resolve().with_name("ptxas")), "-v", f"-arch=sm_{architecture}", str(ptx)]
    said = subprocess.run([*assembler, "-o", tmp_path / "kernels.cubin"], capture_output=True, text=True, check=True)
    assert "registers" in said.stderr
    assert faults(ptx.read_text(encoding="utf-8"), said.stderr) == []
