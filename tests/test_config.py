"""What the environment sets, and that nothing but karat.config reads it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from karat.config import Settings

SOURCE = Path(__file__).resolve().parent.parent / "src" / "karat"
READERS = {"environ", "environb", "getenv", "getenvb"}


@pytest.mark.parametrize(
    ("env", "isa", "debug"),
    [
        ({}, None, False),
        ({"KARAT_ISA": "", "KARAT_DEBUG": ""}, None, False),
        ({"KARAT_ISA": "avx2", "KARAT_DEBUG": "0"}, "avx2", False),
        ({"KARAT_ISA": "abacus", "KARAT_DEBUG": "1"}, "abacus", True),
    ],
)
def test_settings(env: dict[str, str], isa: str | None, debug: bool) -> None:
    settings = Settings.from_env(env)
    assert (settings.isa, settings.debug) == (isa, debug)


def test_variables_are_ours_and_those_of_the_hub_and_cannot_be_changed() -> None:
    ours = {"HF_HOME": "b", "HUGGINGFACE_CO_STAGING": "0", "HUGGING_FACE_HUB_TOKEN": "c", "KARAT_SEED": "a"}
    settings = Settings.from_env({"KARATS": "x", "PATH": "x", **dict(reversed(ours.items())), "MY_HF_HOME": "x"})
    assert list(settings.variables.items()) == list(ours.items())
    with pytest.raises(TypeError):
        settings.variables["KARAT_SEED"] = "b"  # type: ignore[index]


def test_settings_come_from_the_environment_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARAT_ISA", "generic")
    assert Settings.from_env().isa == "generic"
    monkeypatch.delenv("KARAT_ISA")
    assert Settings.from_env().isa is None


def reads_the_environment(source: str) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in READERS)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and any(a.name in READERS for a in node.names))
        for node in ast.walk(ast.parse(source))
    )


def test_nothing_else_reads_the_environment() -> None:
    readers = [path for path in SOURCE.rglob("*.py") if reads_the_environment(path.read_text(encoding="utf-8"))]
    assert readers == [SOURCE / "config.py"]
    for hidden in ("def f():\n    return os.getenv('A')", "from os import environ", "__import__('os').environ"):
        assert reads_the_environment(hidden)


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, "1"),
        ({"OPENBLAS_NUM_THREADS": "3"}, "3"),
        ({"OMP_NUM_THREADS": "2"}, None),
        ({"GOTO_NUM_THREADS": "2"}, None),
    ],
)
def test_the_command_line_keeps_numpy_to_one_thread_unless_told(given: dict[str, str], threads: str | None) -> None:
    program = (
        "import os, sys, karat.cli; assert 'numpy' not in sys.modules; karat.cli.main(['--version']); "
        "print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOTO_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(threads)
