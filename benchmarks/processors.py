"""Which processor this is, also where its name is kept from a virtual machine: the key of benchmarks.machine.

Clouds show "AMD EPYC" or "Intel(R) Xeon(R) Processor" for several generations. Family and model tell them apart, and
features tell what a virtual machine may use of them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from karat.machine import processor

_AMD, _INTEL = "AuthenticAMD", "GenuineIntel"

# By family, the models of a name: as Linux tells AMD's apart (arch/x86/kernel/cpu/amd.c), and Intel's (intel-family.h).
_NAMES: Mapping[tuple[str, int], tuple[tuple[str, tuple[range | int, ...]], ...]] = {
    (_AMD, 0x17): (
        ("Zen 1", (range(0x30), range(0x50, 0x60))),
        ("Zen 2", (range(0x30, 0x50), range(0x60, 0x80), range(0x90, 0xB0))),
    ),
    (_AMD, 0x19): (
        ("Zen 3", (range(0x10), range(0x20, 0x60))),
        ("Zen 4", (range(0x10, 0x20), range(0x60, 0xB0))),
    ),
    (_AMD, 0x1A): (
        ("Zen 5", (range(0x30), range(0x40, 0x50), range(0x60, 0x80))),
        ("Zen 6", (range(0x50, 0x60), range(0x80, 0xB0), range(0xC0, 0xD0))),
    ),
    (_INTEL, 6): (
        ("Haswell", (0x3C, 0x3F, 0x45, 0x46)),
        ("Broadwell", (0x3D, 0x47, 0x4F, 0x56)),
        ("Skylake", (0x4E, 0x5E)),
        ("Skylake-X or Cascade Lake", (0x55,)),
        ("Kaby Lake or Coffee Lake", (0x8E, 0x9E)),
        ("Comet Lake", (0xA5, 0xA6)),
        ("Ice Lake", (0x6A, 0x6C, 0x7D, 0x7E)),
        ("Tiger Lake", (0x8C, 0x8D)),
        ("Rocket Lake", (0xA7,)),
        ("Alder Lake", (0x97, 0x9A, 0xBE)),
        ("Raptor Lake", (0xB7, 0xBA, 0xBF)),
        ("Meteor Lake", (0xAA, 0xAC)),
        ("Arrow Lake", (0xB5, 0xC5, 0xC6)),
        ("Lunar Lake", (0xBD,)),
        ("Sapphire Rapids", (0x8F,)),
        ("Emerald Rapids", (0xCF,)),
        ("Granite Rapids", (0xAD, 0xAE)),
        ("Sierra Forest", (0xAF,)),
    ),
}
_ARM = {
    (0x41, 0xD0C): "Neoverse N1",
    (0x41, 0xD40): "Neoverse V1",
    (0x41, 0xD49): "Neoverse N2",
    (0x41, 0xD4F): "Neoverse V2",
}
_X86 = {"family": "cpu family", "model": "model", "stepping": "stepping"}
_ROOT = Path("/")


def identify(root: Path = _ROOT) -> dict[str, Any]:
    """`name`, by family and model where they are known, and what it was told from: vendor, family, model, stepping
    (of Arm: implementer, part, variant, revision), features. `root` contains proc.
    """
    path = root / "proc/cpuinfo"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    features = processor.cpu_features(root)
    if (vendor := _stated(text, "vendor_id")) is not None:
        numbers = {key: int(_stated(text, words) or 0) for key, words in _X86.items()}
        name = _name(vendor, numbers["family"], numbers["model"])
        return {"name": name, "vendor": vendor, **numbers, "features": features}
    if (implementer := _stated(text, "CPU implementer")) is not None:
        part = _stated(text, "CPU part") or "0"
        name = _ARM.get((int(implementer, 0), int(part, 0)), f"Arm {implementer} {part}")
        numbers = {"implementer": implementer, "part": part}
        rest = {key: _stated(text, f"CPU {key}") for key in ("variant", "revision")}
        return {"name": name, **numbers, **rest, "features": features}
    return {"name": processor.cpu_model(root) or "unknown", "features": features}


def _stated(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(\S+)", text, re.MULTILINE)
    return match[1] if match else None


def _name(vendor: str, family: int, model: int) -> str:
    for name, models in _NAMES.get((vendor, family), ()):
        if any(model in one if isinstance(one, range) else model == one for one in models):
            return name
    return f"{vendor} family {family} model {model}"
