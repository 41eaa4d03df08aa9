"""Tests mirror rooms: src/karat/X/Y.py is tested by tests/X/test_Y.py, or by a sweep that names it.

A sweep is a test module whose docstring ends in a paragraph "Covers: karat.a.b, karat.a.c." A name may end in ".*"
where the sweep runs over a registry.
"""

import ast
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

# Folders of tests/ beside the rooms: what is tested there is no room, or all of them together.
BESIDE_ROOMS = {
    "conformance",  # every executor against the contract of ops
    "data",
    "embedded",  # the model that comes with Karat
    "gpu",  # the emulation of a GPU
    "native",  # programs in C++, and another build of the extension
    "benchmarks",
    "packaging",  # wheels, make, the compiler's objects
    "real_model",
    "support",
    "tools",
    "training",
}


def modules_of(package: Path) -> set[str]:
    """Full names of the modules below `package`; a package's own __init__ holds no code of its own to test."""
    paths = (path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py"))
    return {".".join(path.parts) for path in paths if path.name != "__init__"}


def own_test(module: str) -> Path:
    """Where the test of that name is, or would be."""
    *room, name = module.split(".")[1:]
    return TESTS.joinpath(*room, f"test_{name.strip('_')}.py")


def covers(source: str) -> list[str]:
    """The names in the last paragraph of a sweep's docstring."""
    last = (ast.get_docstring(ast.parse(source)) or "").rpartition("\n\n")[2]
    return re.findall(r"karat(?:\.\w+)+(?:\.\*)?", last) if last.startswith("Covers: ") else []


def sweeps_of(folder: Path) -> dict[str, list[str]]:
    """The name in a sweep to the sweeps that have it."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for name in covers(path.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(str(path.relative_to(folder)))
    return found


def uncovered(modules: Iterable[str], sweeps: Iterable[str]) -> list[str]:
    named = list(sweeps)
    return sorted(m for m in modules if not own_test(m).exists() and not any(fnmatchcase(m, name) for name in named))


def test_every_module_has_a_test_of_its_name_or_a_sweep_that_names_it() -> None:
    assert uncovered(modules_of(ROOT / "src" / "karat"), sweeps_of(TESTS)) == []


def test_sweeps_name_modules_that_exist() -> None:
    modules = modules_of(ROOT / "src" / "karat")
    missing = {
        name: paths
        for name, paths in sweeps_of(TESTS).items()
        if not any(fnmatchcase(module, name) for module in modules)
    }
    assert missing == {}


def test_every_folder_of_tests_is_that_of_a_room_or_a_known_other() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    strangers = [
        str(folder)
        for folder in sorted(folders)
        if folder.parts[0] not in BESIDE_ROOMS and not (ROOT / "src" / "karat" / folder).is_dir()
    ]
    assert strangers == []


def test_what_nobody_covers_is_found() -> None:
    text = '"""Sweep.\n\nCovers: karat.kv.nowhere, karat.quant.*.\n"""\n'
    assert covers(text) == ["karat.kv.nowhere", "karat.quant.*"]
    assert covers('"""Covers nothing: karat.kv.nowhere."""') == []
    modules = ["karat.kv.nowhere", "karat.kv.blocks", "karat.kv.elsewhere", "karat.quant.other"]
    assert uncovered(modules, covers(text)) == ["karat.kv.elsewhere"]
