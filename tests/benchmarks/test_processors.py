"""A processor is told by its numbers, where its name says little."""

from pathlib import Path

import pytest

from benchmarks.processors import identify


def cpuinfo(root: Path, *lines: str) -> Path:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text("\n".join(["processor\t: 0", *lines, ""]), encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 23, 49, "Zen 2"),  # EPYC 7002
        ("AuthenticAMD", 25, 1, "Zen 3"),  # EPYC 7003
        ("AuthenticAMD", 25, 33, "Zen 3"),  # Ryzen 5000
        ("AuthenticAMD", 25, 17, "Zen 4"),  # EPYC 9004
        ("AuthenticAMD", 25, 97, "Zen 4"),  # Ryzen 7000
        ("AuthenticAMD", 25, 160, "Zen 4"),  # EPYC 9704
        ("AuthenticAMD", 26, 2, "Zen 5"),  # EPYC 9005
        ("AuthenticAMD", 26, 68, "Zen 5"),  # Ryzen 9000
        ("GenuineIntel", 6, 106, "Ice Lake"),
        ("GenuineIntel", 6, 143, "Sapphire Rapids"),
        ("GenuineIntel", 6, 207, "Emerald Rapids"),
        ("GenuineIntel", 6, 85, "Skylake-X or Cascade Lake"),
        ("GenuineIntel", 99, 3, "GenuineIntel family 99 model 3"),
        ("HygonGenuine", 24, 1, "HygonGenuine family 24 model 1"),
    ],
)
def test_family_and_model_tell_the_generation(vendor: str, family: int, model: int, name: str, tmp_path: Path) -> None:
    lines = [f"vendor_id\t: {vendor}", f"cpu family\t: {family}", f"model\t\t: {model}", "model name\t: AMD EPYC"]
    found = identify(cpuinfo(tmp_path, *lines, "stepping\t: 3", "flags\t\t: fpu avx2 fma"))
    assert found == {
        "name": name,
        "vendor": vendor,
        "family": family,
        "model": model,
        "stepping": 3,
        "features": ["fma", "avx2"],
    }


def test_no_model_has_two_names() -> None:
    from benchmarks.processors import _NAMES

    for names in _NAMES.values():
        models = [model for _, given in names for one in given for model in ([one] if isinstance(one, int) else one)]
        assert len(models) == len(set(models))


def test_arm_states_other_numbers(tmp_path: Path) -> None:
    lines = ["CPU implementer\t: 0x41", "CPU part\t: 0xd40", "CPU variant\t: 0x1", "CPU revision\t: 1"]
    found = identify(cpuinfo(tmp_path, *lines, "Features\t: fp asimd i8mm"))
    assert found["name"] == "Neoverse V1" and (found["variant"], found["revision"]) == ("0x1", "1")
    unknown = identify(cpuinfo(tmp_path, lines[0], "CPU part\t: 0x1"))
    assert unknown["name"] == "Arm 0x41 0x1"


def test_a_system_that_states_nothing_has_a_name(tmp_path: Path) -> None:
    assert isinstance(identify(tmp_path)["name"], str)
