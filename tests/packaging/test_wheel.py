"""The wheel and its fallback: what `pip install .` gives with a C++ compiler and without one.

Built with the build tools of this environment (`make` installs them), so that nothing is downloaded.
"""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from karat.ops.native import supported_isas
from tools import make_wheel, try_wheel

ROOT = Path(__file__).resolve().parents[2]
DIST_INFO = "karat_llm-0.1.0.dist-info"
SOURCE = ROOT / "src" / "karat"
IS_LONG = "KARAT_LONG" in os.environ
COMPILERS = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]

pytestmark = pytest.mark.skipif(
    not (find_spec("scikit_build_core") and find_spec("nanobind")),
    reason="the build tools (requirements/build.txt) are not in this environment; `make test` installs them",
)


def build_wheel(folder: Path, *options: str, **environment: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", *options]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), "."],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def native_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what make compiles, in its folder: compiled anew only where a source has changed since, by one at a time."""
    if not COMPILERS:
        pytest.skip("no C++ compiler on the PATH")
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runnable = "OFF" if IS_LONG else "ON"
        settings = ("build-dir=build/{wheel_tag}", f"cmake.define.KARAT_ONLY_RUNNABLE={runnable}")
        options = [word for setting in settings for word in ("--config-settings", setting)]
        return build_wheel(tmp_path_factory.mktemp("native"), *options)


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("pure"), CXX="/nonexistent/c++")


def metadata(wheel: Path, file: str) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"{DIST_INFO}/{file}").decode())


def run_installed(wheel: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code with the wheel unpacked into an empty folder and this environment's dependencies."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    paths = [str(folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # -S leaves out the hook of an editable installation of the same package.
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package(native_wheel: Path) -> None:
    with zipfile.ZipFile(native_wheel) as archive:
        names = set(archive.namelist())
    kept = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert "karat/py.typed" in names
    assert {f"karat/{path.relative_to(SOURCE).as_posix()}" for path in kept} <= names
    assert len([name for name in names if re.fullmatch(r"karat/_native\..*so", name)]) == 1
    others = {name.split("/")[0] for name in names} - {"karat", DIST_INFO}
    assert not others, "nothing but the package is installed"


def test_one_wheel_serves_all_newer_pythons(native_wheel: Path) -> None:
    (tag,) = metadata(native_wheel, "WHEEL").get_all("Tag", [])
    assert tag.startswith("cp311-cp311-" if sys.version_info < (3, 12) else "cp312-abi3-")


def test_the_metadata_says_what_a_base_install_needs(native_wheel: Path) -> None:
    required = metadata(native_wheel, "METADATA").get_all("Requires-Dist", [])
    base = [line for line in required if "extra ==" not in line]
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert {Requirement(line) for line in base} == {Requirement(line) for line in stated}
    names = {Requirement(line).name for line in base}
    assert {"numpy", "tokenizers", "msgspec", "uvicorn"} <= names and not names & {"torch", "transformers", "pydantic"}
    with zipfile.ZipFile(native_wheel) as archive:
        assert b"karat = karat.cli:main" in archive.read(f"{DIST_INFO}/entry_points.txt")


def test_the_distribution_is_not_called_as_somebody_elses(native_wheel: Path) -> None:
    assert native_wheel.name.startswith("karat_llm-0.1.0-")
    assert metadata(native_wheel, "METADATA")["Name"] == "karat-llm"


def test_the_wheel_has_the_licences_of_all_that_is_in_it(native_wheel: Path) -> None:
    """nanobind is linked into the extension, and robin-map with it."""
    with zipfile.ZipFile(native_wheel) as archive:
        assert b"Apache License" in archive.read(f"{DIST_INFO}/licenses/LICENSE")
        assert b"MIT License" in archive.read(f"{DIST_INFO}/licenses/licenses/robin-map.txt")
        ours = archive.read(f"{DIST_INFO}/licenses/licenses/nanobind.txt").decode()
    (theirs,) = [file for file in files("nanobind") or () if file.name == "LICENSE"]
    assert ours == theirs.read_text()


def test_every_instruction_set_of_this_processor_is_in_the_wheel(native_wheel: Path, tmp_path: Path) -> None:
    """`make wheel` compiles all, and asks its wheel for them; tests/native/test_isa.py asks CMake what a wheel gets."""
    listed = run_installed(native_wheel, tmp_path, "from karat import _native; print(*_native.compiled_isas())")
    known = try_wheel.BUILDS[platform.machine()]
    assert listed.stdout.split() == [build for build in known if IS_LONG or build in supported_isas()] != []


def test_the_wheel_gets_the_tag_that_it_earns(native_wheel: Path, tmp_path: Path) -> None:
    patchelf = shutil.which("patchelf", path=make_wheel.search_path())
    if sys.platform == "linux" and not (find_spec("auditwheel") and patchelf):
        pytest.skip("auditwheel is not in this environment; `make wheel` installs it (requirements/wheel.txt)")
    wheel = make_wheel.repair(native_wheel, tmp_path)
    assert list(tmp_path.iterdir()) == [wheel]
    tag = r"manylinux_2_\d+_|musllinux_" if sys.platform == "linux" else "macosx_"
    assert re.search(rf"-({tag})[^-]*{platform.machine()}\.whl$", wheel.name)


TELL = "from karat.cli import main; sys.exit(main(['run', 'Once upon a time', '--max-tokens', '8']))"


def test_the_wheel_tells_a_story_on_its_kernels(native_wheel: Path, tmp_path: Path) -> None:
    executor = run_installed(native_wheel, tmp_path, "from karat.ops.registry import create; print(create().executor)")
    assert executor.stdout == "native\n"
    told = run_installed(native_wheel, tmp_path, TELL)
    assert len(told.stdout.split()) >= 4
    assert "without native kernels" not in told.stderr


@pytest.mark.slow
def test_without_a_compiler_the_package_is_pure_python_and_says_so(pure_wheel: Path, tmp_path: Path) -> None:
    assert pure_wheel.name == "karat_llm-0.1.0-py3-none-any.whl"
    told = run_installed(pure_wheel, tmp_path, TELL)
    assert len(told.stdout.split()) >= 4
    assert re.search(r"without native kernels: .* there is no working C\+\+ compiler", told.stderr)
    shown = run_installed(pure_wheel, tmp_path, "from karat.cli import main; sys.exit(main(['env']))")
    assert re.search(r"native extension +no: .* there is no working C\+\+ compiler", shown.stdout)


@pytest.mark.slow
def test_a_source_distribution_can_build_everything(tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(tmp_path / "karat_llm-0.1.0.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on; later ones warn without
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    unpacked = tmp_path / "karat_llm-0.1.0"
    assert (tmp_path / "karat_llm-0.1.0.tar.gz").stat().st_size < 20e6, "the embedded model has 10.6 MB"
    package = ("LICENSE", "licenses/nanobind.txt", "README.md", "pyproject.toml", "src/karat/py.typed")
    for needed in (*package, "CMakeLists.txt", "csrc/python/module.cpp"):
        assert (unpacked / needed).is_file(), needed
    compiled = (".so", ".dylib", ".o", ".whl", ".pyc")
    assert not [path for path in unpacked.rglob("*") if path.suffix in compiled]
    embedded = {path.name for path in (SOURCE / "embedded").glob("*") if path.is_file()}
    assert embedded <= {path.name for path in (unpacked / "src" / "karat" / "embedded").glob("*")}
