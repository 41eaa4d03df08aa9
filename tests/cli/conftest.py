"""Runs the command line as its users do, in a process of its own, or in this one where that is all the same."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from karat.cli import main
from tests.cli import alphabet_model

Karat = Callable[..., subprocess.CompletedProcess[str]]


def environment(**changes: str) -> dict[str, str]:
    """This process's variables without what would change Karat or its output, plus `changes`."""
    foreign = ("KARAT_", "HF_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    source = str(Path(__file__).parents[2] / "src")
    return {**kept, "PYTHONPATH": source, "HF_HUB_OFFLINE": "1", **changes}


COMMAND = [sys.executable, "-m", "karat"]


@pytest.fixture(scope="session")
def karat() -> Karat:
    """karat(*args, stdin=text, env=changes): the finished process, its output as text. No terminal anywhere."""

    def run(*args: str, stdin: str | bytes = b"", **changes: str) -> subprocess.CompletedProcess[str]:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [*COMMAND, *args], input=content, capture_output=True, env=environment(**changes), check=False, timeout=300
        )
        return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def karat_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Karat:
    """The same in this process: quicker, for what does not touch signals, the terminal or the end of a process."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*args: str, stdin: str | bytes = b"", **changes: str) -> subprocess.CompletedProcess[str]:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
            for name, value in changes.items():
                patch.setenv(name, value)
            code = main(args)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(args, code, out, err)

    return run


@pytest.fixture(scope="session")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of tests/cli/alphabet_model.py."""
    return alphabet_model.write(tmp_path_factory.mktemp("models") / "alphabet")
