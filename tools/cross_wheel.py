"""Build a wheel for 64-bit Arm on a machine that is none, into dist/. Run by `make cross-wheels`.

    python tools/cross_wheel.py linux|macos [FOLDER]

For Linux by aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu); auditwheel gives it its tag. Where there are
qemu-aarch64 and a Python for such a processor in build/arm (tools/arm_python), the wheel is tried as `make wheel` tries
its own (tools/try_wheel.py). For macOS by zig (`pip install ziglang`): nothing here can run it, so what is looked at is
that the module is one of macOS on Arm that needs nothing but the system. What is not installed is said and skipped.

The Python that runs this program says which Python a wheel is for. Its headers are taken: where Linux' differ between
processors (assembly, and whether wchar_t has a sign) no extension looks.
"""

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import make_wheel, try_wheel  # noqa: E402 - tools is no installed package

ARM_PYTHON = ROOT / "build" / "arm"
PIP_PLATFORMS = (
    "linux_aarch64",
    *(f"manylinux_2_{minor}_aarch64" for minor in range(39, 16, -1)),
    "manylinux2014_aarch64",
)
MACH_O_ARM = bytes.fromhex("cffaedfe0c000001")  # the magic of 64 bits, and the processor


@dataclasses.dataclass(frozen=True)
class Target:
    system: str  # as CMake calls it
    platform: str  # as sysconfig does
    suffix: str  # of an extension module for one Python


TARGETS = {
    "linux": Target("Linux", "linux-aarch64", "aarch64-linux-gnu.so"),
    "macos": Target("Darwin", "macosx-11.0-arm64", "darwin.so"),
}


def main(arguments: list[str]) -> None:
    name = arguments[0]
    folder = Path(arguments[1]) if len(arguments) > 1 else ROOT / "dist"
    folder.mkdir(parents=True, exist_ok=True)
    tools = linux_tools() if name == "linux" else macos_tools(ROOT / "build" / "cross-wheel-macos" / "bin")
    if isinstance(tools, str):
        print(f"SKIPPED: {tools}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        built = build(TARGETS[name], tools, ROOT / "build" / f"cross-wheel-{name}", Path(temporary))
        wheel = make_wheel.repair(built, folder) if name == "linux" else Path(shutil.copy(built, folder))
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)", flush=True)
    try_on_linux(wheel) if name == "linux" else look_at_macos(wheel)


def linux_tools() -> dict[str, str] | str:
    """What CMake is told of the compiler, or why there is none."""
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        return "no aarch64-linux-gnu-g++ here (Debian: g++-aarch64-linux-gnu), so there is no wheel for Linux"
    return {"CMAKE_CXX_COMPILER": compiler}


def macos_tools(folder: Path) -> dict[str, str] | str:
    """The same of zig, whose programs are words of one command: a script for each in `folder`."""
    if find_spec("ziglang") is None:
        return "no zig here (pip install ziglang), so there is no wheel for macOS"
    zig = f"exec {sys.executable} -m ziglang"
    # It knows features of processors by another option, and no file of the symbols that the interpreter has.
    march, symbols = "-march=armv8.2-a+*) a=-mcpu=generic+${a#*+}", "-Wl,@*) a=-Wl,-undefined,dynamic_lookup"
    options = f"case $a in {march};; {symbols};; esac"
    words = f'for a; do shift; {options}; set -- "$@" "$a"; done'
    return {
        "CMAKE_CXX_COMPILER": script(folder / "c++", f'{words}\n{zig} c++ -target aarch64-macos.11.0 "$@"'),
        "CMAKE_AR": script(folder / "ar", f'{zig} ar "$@"'),
        "CMAKE_RANLIB": script(folder / "ranlib", f'{zig} ranlib "$@"'),
        "CMAKE_INSTALL_NAME_TOOL": script(folder / "install_name_tool", "exit 1"),  # asked for, and not called
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
        "CMAKE_CXX_SCAN_FOR_MODULES": "OFF",  # by a program of clang's that zig has not
    }


def script(path: Path, line: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def build(target: Target, tools: Mapping[str, str], build_folder: Path, folder: Path) -> Path:
    """The wheel in `folder`, whose tag is the system's own."""
    python = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    suffix = ".abi3.so" if sys.version_info >= (3, 12) else f".{python}-{target.suffix}"
    defined = {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        **tools,
    }
    settings = {f"cmake.define.{name}": value for name, value in defined.items()} | {"build-dir": str(build_folder)}
    code = f"from scikit_build_core.build import build_wheel; build_wheel({str(folder)!r}, {settings!r})"
    environment = {**os.environ, "_PYTHON_HOST_PLATFORM": target.platform, "SETUPTOOLS_EXT_SUFFIX": suffix}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    (wheel,) = folder.glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        sys.exit("The kernels were not compiled, so that only a pure Python wheel came out")
    return wheel


def try_on_linux(wheel: Path, arm: Path = ARM_PYTHON) -> None:
    """As tools/try_wheel.py does, by an emulator and the Python in `arm`; both must be there."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    python = next(iter(sorted(arm.glob("usr/bin/python3.*[0-9]"))), None)
    if emulator is None or python is None:
        print("SKIPPED: no qemu-aarch64, or no Python for Arm (tools/arm_python): the wheel was not tried")
        return
    with tempfile.TemporaryDirectory() as temporary:
        install = ["--quiet", "--target", temporary, "--only-binary", ":all:", "-c", str(ROOT / "constraints.txt")]
        install += [word for platform in PIP_PLATFORMS for word in ("--platform", platform)]
        install += ["--python-version", python.name.removeprefix("python"), "--implementation", "cp"]
        subprocess.run([sys.executable, "-m", "pip", "install", *install, str(wheel)], check=True)
        run = f'exec {emulator} -L {arm} -E PYTHONPATH={temporary} {python} -m karat "$@"'
        try_wheel.try_command(Path(script(Path(temporary) / "bin" / "karat", run)), builds=try_wheel.ARM)


def look_at_macos(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.startswith("karat/_native.") and name.endswith(".so")]
        module = archive.read(name)
    if not module.startswith(MACH_O_ARM):
        sys.exit(f"{name} is no module of macOS on Arm: it begins with {module[:8].hex()}")
    print(f"{name}: a module of macOS on Arm. It was not run: nothing here can.")


if __name__ == "__main__":
    main(sys.argv[1:])
