"""What `make wheel` tries its wheel with: it lets no wheel pass that a stranger could not use."""

import json
import platform
import sysconfig
from pathlib import Path

import pytest

from karat.ops.native import compiled_isas, unavailable_reason
from tools import make_wheel, try_wheel

BUILDS = ["generic", "avx2"]
STORY = ", there was a little girl who had a red ball and a dog that ran and ran until the sun went down."


def fake(folder: Path, *, available: bool = True, builds: list[str] = BUILDS, tell: str = "", status: int = 0) -> Path:
    """A command karat that needs nothing on the PATH; `tell` is run by the shell for a story."""
    native = {
        "available": available,
        "reason": None if available else "no compiler",
        "kernel_builds": builds,
        "compiled_builds": builds,
    }
    facts = json.dumps({"karat": "0.1.0", "python": "3.11.7", "native": native})
    tell = tell or f"echo '{STORY}'"
    path = folder / "karat"
    path.write_text(
        f"#!/bin/sh\ncase $1 in\nenv) echo '{facts}';;\nrun) {tell};;\n"
        f'check) echo \'{{"verdict": "numerics"}}\'; exit {status};;\nesac\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def test_a_good_wheel_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try_wheel.try_command(fake(tmp_path), builds=BUILDS)
    shown = capsys.readouterr().out
    assert "the same story by generic, avx2" in shown
    assert "karat check: numerics" in shown


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"available": False}, "the wheel has no kernels: no compiler"),
        ({"builds": ["generic"]}, r"kernel builds in the wheel: \['generic'\]; expected \['generic', 'avx2'\]"),
        ({"tell": "echo and they"}, "a story of fewer than 20 words"),
        ({"tell": f"echo '{STORY}' $KARAT_ISA"}, "kernel builds that tell another story: generic, avx2"),
        ({"tell": "exit 3"}, "karat run .* ended with 3"),
        ({"tell": f"echo '{STORY}'; echo without native kernels >&2"}, "without native kernels"),
        ({"status": 1}, "karat check .* ended with 1"),
        ({"tell": "c++ --version; g++ --version; clang++ --version; cc"}, "ended with 127"),
    ],
)
def test_a_wheel_with_a_fault_is_refused(tmp_path: Path, faults: dict[str, object], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        try_wheel.try_command(fake(tmp_path, **faults), builds=BUILDS)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(unavailable_reason() is not None, reason="no native extension here")
@pytest.mark.skipif(platform.machine() not in try_wheel.BUILDS, reason="no such machine is known")
def test_what_is_installed_here_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever builds it has: `make test` leaves out those that this processor cannot run."""
    try_wheel.try_command(Path(sysconfig.get_path("scripts")) / "karat", builds=list(compiled_isas()))
    assert "karat check: " in capsys.readouterr().out


def test_macos_keeps_its_wheel_and_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "karat_llm-0.1.0-cp312-abi3-macosx_11_0_arm64.whl"
    wheel.write_bytes(b"wheel")
    monkeypatch.setattr("sys.platform", "darwin")
    kept = make_wheel.repair(wheel, tmp_path / "dist")
    assert kept == tmp_path / "dist" / wheel.name
    assert kept.read_bytes() == b"wheel"
    assert "auditwheel is for Linux only" in capsys.readouterr().out
