"""Wheels for 64-bit Arm, made on a machine that is none (`make cross-wheels`)."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import cross_wheel, try_wheel

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What CMake would be told, of a zig that prints what it is asked."""
    python = cross_wheel.script(tmp_path / "python", 'echo "$@"')
    monkeypatch.setattr("sys.executable", python)
    monkeypatch.setattr(cross_wheel, "find_spec", lambda name: name == "ziglang" or None)
    tools = cross_wheel.macos_tools(tmp_path / "bin")
    assert isinstance(tools, dict)
    return tools


def asked(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_zig_is_told_features_of_processors_by_the_option_that_it_knows(zig: dict[str, str]) -> None:
    compiler = "-m ziglang c++ -target aarch64-macos.11.0"
    march = asked(zig["CMAKE_CXX_COMPILER"], "-O3", "-march=armv8.2-a+dotprod+i8mm", "-c", "a b.cpp")
    assert march == f"{compiler} -O3 -mcpu=generic+dotprod+i8mm -c a b.cpp"
    assert asked(zig["CMAKE_AR"], "qc", "x.a") == "-m ziglang ar qc x.a"


@pytest.mark.parametrize(("name", "what"), [("linux", "aarch64-linux-gnu-g++"), ("macos", "zig")])
def test_without_a_compiler_it_is_said_and_skipped(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(cross_wheel, "find_spec", lambda _: None)
    cross_wheel.main([name, str(tmp_path)])
    assert capsys.readouterr().out.startswith(f"SKIPPED: no {what} here")


@pytest.mark.parametrize("begin", [b"\x7fELF", bytes.fromhex("cffaedfe07000001")])  # of Linux; of macOS on x86-64
def test_a_module_of_another_system_is_no_wheel_for_macos(begin: bytes, tmp_path: Path) -> None:
    wheel = tmp_path / "karat_llm-0.1.0-cp311-cp311-macosx_11_0_arm64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("karat/_native.cpython-311-darwin.so", begin + bytes(64))
    with pytest.raises(SystemExit, match="is no module of macOS on Arm"):
        cross_wheel.look_at_macos(wheel)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="no aarch64-linux-gnu-g++ here")
def test_the_wheel_for_linux_runs_in_an_emulator(tmp_path: Path) -> None:
    """All builds are in it and tell one story; where there is no emulator or no Python for Arm, it is made alone."""
    command = [sys.executable, str(ROOT / "tools" / "cross_wheel.py"), "linux", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("_aarch64.whl") and "manylinux" in wheel.name
    if "SKIPPED" in done.stdout:
        pytest.skip(done.stdout.splitlines()[-1])
    assert f"the same story by {', '.join(try_wheel.ARM)}" in done.stdout
