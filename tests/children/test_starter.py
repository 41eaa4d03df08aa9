"""A piece of work in a process of its own: it fails, takes too long or is done, and leaves nothing behind."""

import os
import time
from pathlib import Path

import pytest

from karat.check.record import llamacpp
from karat.check.record.executors import Steps
from karat.children import starter
from karat.children.starter import run_worker
from karat.errors import ExecutorError

WORK = """
import os, sys, time
def main(arguments):
    open(arguments[1], "w").write(str(os.getpid()))
    if arguments[0] == "hang":
        time.sleep(600)
    if arguments[0] == "threads":
        sys.exit("%s threads" % os.environ.get("OPENBLAS_NUM_THREADS"))
    sys.exit(arguments[0])
"""


@pytest.fixture
def pid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work_of_a_test.py").write_text(WORK)
    monkeypatch.setattr(starter, "ROOT", str(tmp_path))
    return tmp_path / "pid"


def test_its_code_and_its_words_come_back(pid_file: Path) -> None:
    assert run_worker("work_of_a_test", ["last words", str(pid_file)], 60.0) == (1, "last words")


@pytest.mark.parametrize(("asked", "threads"), [(None, "1"), ("3", "3")])
def test_numpy_computes_on_one_thread_there(
    pid_file: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, threads: str
) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if asked:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", asked)
    assert run_worker("work_of_a_test", ["threads", str(pid_file)], 60.0) == (1, f"{threads} threads")
    assert os.environ.get("OPENBLAS_NUM_THREADS") == asked


def test_its_time_runs_out_and_it_is_gone(pid_file: Path) -> None:
    before = time.monotonic()
    code, _ = run_worker("work_of_a_test", ["hang", str(pid_file)], 1.5)
    assert code is None and time.monotonic() - before < 60
    if pid_file.exists():  # else the machine was so busy that it had not begun
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


def test_llama_cpp_is_given_so_much_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(llamacpp, "is_installed", lambda: True)
    monkeypatch.setattr(llamacpp, "_MOST_SECONDS", 0.0)
    with pytest.raises(ExecutorError, match=r"llama\.cpp has not ended within 0 seconds and was stopped"):
        llamacpp.record_llamacpp(tmp_path / "x.gguf", {}, Steps((1, 2)))
