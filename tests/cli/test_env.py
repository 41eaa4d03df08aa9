"""`karat env`: what it says is so, and it keeps secrets.

Covers: karat.machine.processor.
"""

import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from karat.cli import env
from karat.machine import control_groups, memory, processor
from tests.cli.conftest import Karat


def test_the_facts_are_those_of_this_machine(karat_here: Karat) -> None:
    done = karat_here("env", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert facts["python"] == platform.python_version()
    assert facts["packages"]["numpy"] == version("numpy")
    assert facts["cpu"]["usable_cores"] == (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    native = facts["native"]
    assert native["available"] == bool(native["kernel_builds"]) == (native["reason"] is None)
    assert native["chosen"] == (native["kernel_builds"][-1] if native["available"] else None)
    assert set(native["kernel_builds"]) <= set(native["compiled_builds"])
    assert Path(facts["embedded_model"]["path"]).name == "embedded"


def test_secrets_are_hidden_and_settings_shown(karat_here: Karat) -> None:
    settings = {
        "HF_TOKEN": "hf_abc123",
        "HUGGING_FACE_HUB_TOKEN": "hf_def456",
        "HF_ENDPOINT": "http://me:pw789@mirror",
        "HF_HOME": "/big/disk",
        "KARAT_SEED": "5",
    }
    for args in (["env"], ["env", "--json"]):
        done = karat_here(*args, **settings)
        assert done.returncode == 0
        for shown in ("HF_TOKEN", "(set, hidden)", "/big/disk", "KARAT_SEED", "http://…@mirror"):
            assert shown in done.stdout
        for secret in ("abc123", "def456", "pw789"):
            assert secret not in done.stdout


def test_a_forced_kernel_build_that_cannot_run_is_named(karat_here: Karat) -> None:
    facts = json.loads(karat_here("env", "--json", KARAT_ISA="abacus").stdout)
    if not facts["native"]["available"]:
        pytest.skip("no native extension here")
    assert facts["native"]["chosen"] is None
    assert re.fullmatch(
        r"KARAT_ISA=abacus cannot run here: it is not installed; those that can: generic.*",
        facts["native"]["fault"],
    )


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ({"avx512-amx": "the system has no room for tiles"}, "the system has no room for tiles"),
        ({}, "this CPU cannot run it"),
    ],
)
def test_a_forced_build_of_another_processor_has_its_reason(
    refused: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a wheel, which has all builds."""
    monkeypatch.setenv("KARAT_ISA", "avx512-amx")
    monkeypatch.setattr("karat.ops.native.unavailable_reason", lambda: None)
    monkeypatch.setattr("karat.ops.native.compiled_isas", lambda: ("generic", "avx512-intel", "avx512-amx"))
    monkeypatch.setattr("karat.ops.native.supported_isas", lambda: ("generic", "avx512-intel"))
    monkeypatch.setattr("karat.ops.native.refused_isas", lambda: refused)
    line = rf"^kernel builds +KARAT_ISA=avx512-amx cannot run here: {reason}; those that can: generic, avx512-intel$"
    assert re.search(line, env.as_text(env.gather()), re.MULTILINE)


def test_kernels_for_other_processors_are_named_as_such() -> None:
    facts = env.gather()
    facts["native"] |= {
        "kernel_builds": ["generic"],
        "compiled_builds": ["generic", "abacus"],
        "refused_builds": {},
        "chosen": "generic",
        "fault": None,
    }
    assert re.search(
        r"^kernel builds +generic \(chosen\); not for this processor: abacus$", env.as_text(facts), re.MULTILINE
    )


def test_kernels_that_the_system_refuses_have_its_reason() -> None:
    facts = env.gather()
    facts["native"] |= {
        "kernel_builds": ["generic"],
        "compiled_builds": ["generic", "abacus"],
        "refused_builds": {"abacus": "the system has no beads"},
        "chosen": "generic",
        "fault": None,
    }
    line = r"^kernel builds +generic \(chosen\); abacus: no: the system has no beads$"
    assert re.search(line, env.as_text(facts), re.MULTILINE)


def linux(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_cpu_of_x86_and_arm(tmp_path: Path) -> None:
    x86 = linux(tmp_path / "x", {"proc/cpuinfo": "model name\t: Some CPU @ 2GHz\nflags\t\t: fpu avx2 fma sse4_2 xyz\n"})
    assert processor.cpu_model(x86) == "Some CPU @ 2GHz"
    assert processor.cpu_features(x86) == ["sse4_2", "fma", "avx2"]
    arm = linux(tmp_path / "a", {"proc/cpuinfo": "BogoMIPS : 50\nFeatures\t: fp asimd asimddp bf16\n"})
    assert processor.cpu_features(arm) == ["asimd", "asimddp", "bf16"]
    assert processor.cpu_features(tmp_path) == []


CGROUP_2 = {"proc/self/cgroup": "0::/a/b\n", "proc/meminfo": "MemTotal:       1000 kB\n"}


@pytest.mark.parametrize(
    ("files", "cores", "num_bytes"),
    [
        (CGROUP_2, None, 1_024_000),
        (
            CGROUP_2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"},
            1.5,
            1_024_000,
        ),
        (CGROUP_2 | {"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.max": "4096\n"}, None, 4096),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/c\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "512",
                "proc/meminfo": "MemTotal:       1000 kB\n",
            },
            0.5,
            512,
        ),
    ],
)
def test_limits_of_control_groups(files: dict[str, str], cores: float | None, num_bytes: int, tmp_path: Path) -> None:
    root = linux(tmp_path, files)
    assert control_groups.cpu_quota(root) == cores
    assert memory.memory_bytes(root) == num_bytes
