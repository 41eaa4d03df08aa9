"""The processor's name and instruction sets; None or empty where a system states none. `root` contains proc."""

import platform
import re
import subprocess
from pathlib import Path

from karat.machine.files import read_text

# The instruction sets to report: those that kernels use or may use later.
_FEATURES = (
    "sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 "
    "amx_tile amx_int8 amx_bf16 asimd asimdhp asimddp i8mm bf16 sve sve2 sme"
).split()
_ROOT = Path("/")


def cpu_model(root: Path = _ROOT) -> str | None:
    """The name of the processor model."""
    if match := re.search(r"^(?:model name|Model)\s*:\s*(.+)$", read_text(root / "proc/cpuinfo"), re.MULTILINE):
        return match[1]
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
    return platform.processor() or None


def cpu_features(root: Path = _ROOT) -> list[str]:
    """Those of the instruction sets above that the operating system lets programs use."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    listed = set(match[1].split()) if match else set()
    return [feature for feature in _FEATURES if feature in listed]
