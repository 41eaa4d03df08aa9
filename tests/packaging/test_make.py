"""The scripts behind make, and the locked versions."""

import os
import pty
import re
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from karat.cli.app import command

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def write_program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_stage_is_one_line_with_its_seconds(tmp_path: Path) -> None:
    done = run("tools/stage", "[1/3] counting", str(tmp_path / "logs" / "count.log"), "echo", "one two")
    assert done.returncode == 0
    assert re.fullmatch(r"\[1/3\] counting … \d+ s\n", done.stdout)
    assert (tmp_path / "logs" / "count.log").read_text() == "one two\n"


def test_on_a_terminal_a_stage_says_which_file_is_compiled(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    script = "echo '  [3/40] Building CXX object x.o'; sleep 0.8"
    command = ["tools/stage", "compiling", str(tmp_path / "log"), "sh", "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=theirs) as stage:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # what Linux says at the end
            while more := os.read(ours, 1024):
                shown += more
    os.close(ours)
    assert stage.returncode == 0
    assert re.search(r"\rcompiling … \d+ s, step 3 of 40", shown.decode())
    assert re.search(r"\r\x1b\[Kcompiling … \d+ s\r\n$", shown.decode()), "the count of steps is gone in the end"


def test_a_failed_stage_shows_the_end_of_its_log_and_keeps_the_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run("tools/stage", "building", str(log), "sh", "-c", "seq 100; echo no such header >&2; exit 7")
    assert done.returncode == 7
    assert re.match(r"building … \d+ s, failed\n", done.stdout)
    assert done.stdout.endswith("    99\n    100\n    no such header\n")
    assert str(log) in done.stdout
    assert "\n    50\n" not in done.stdout


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            'case "$*" in *version_info*) exit 1;; -V) echo Python 3.9.18;; esac',
            "needs Python 3.11.*is Python 3.9.18",
        ),
        ('case "$*" in *ensurepip*) exit 1;; esac', "venv or ensurepip module is missing"),
    ],
)
def test_an_unfit_python_is_refused_in_a_sentence(tmp_path: Path, body: str, message: str) -> None:
    python = write_program(tmp_path / "python", body)
    done = run("tools/create_venv", str(python), str(tmp_path / "venv"))
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert not (tmp_path / "venv").exists()


def test_a_missing_python_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = run("tools/create_venv", "python9.99", str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "There is no 'python9.99' on the PATH" in done.stderr


def test_every_direct_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    for file in ("build.txt", "clients.txt", "deploy.txt", "lm-eval.txt", "peers.txt", "router.txt", "wheel.txt"):
        lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
        direct += [line for line in lines if not line.startswith("#")]
    locked = re.findall(r"^([a-z0-9.-]+)==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    names = {re.split(r"[<>=!~\[; ]", line)[0].lower().replace("_", "-") for line in direct}
    assert names - {"karat-llm-cuda"} <= set(locked), "that one is Karat's own"


def test_live_peers_are_pinned() -> None:
    """By the file itself: they are no part of what `make lock` resolves, since that would compile llama.cpp."""
    lines = (ROOT / "requirements" / "live-peers.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"#.*|[a-z0-9-]+==[0-9.]+", line) for line in lines)
    assert any(line.startswith("llama-cpp-python==") for line in lines)


def test_what_is_logged_is_shown_and_kept_with_its_status(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "long.log"
    done = run("tools/logged", str(log), "sh", "-c", "echo one; echo two >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout == f"one\ntwo\nKept in {log}\n"
    assert log.read_text() == "one\ntwo\n"
    assert list(log.parent.iterdir()) == [log]


def planned(*arguments: str) -> str:
    """The last command that make would run."""
    done = run("make", "--no-print-directory", "-n", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_make_test_leaves_to_make_test_long_what_is_long() -> None:
    assert planned("test", "PYTEST_ARGS=-k word").endswith(' -m "not long" -k word')
    everything = planned("test-long", "PYTEST_ARGS=-k word")
    assert re.search(r"KARAT_LONG=1 tools/logged \S+/logs/test-long-\S+", everything)
    assert everything.endswith(" -k word") and " -m " not in everything.partition(" -m pytest ")[2]


def test_make_goes_on_without_what_cannot_be_had_and_fetches_it_once(tmp_path: Path) -> None:
    """torch, the clients and the real model, where pip gives none, then where it gives all."""
    venv = f"VENV={tmp_path}"
    found = re.search(r"^STAMPS := (.+)$", run("make", "-pn", "help", venv).stdout, re.MULTILINE)
    assert found is not None
    stamps = Path(found[1])
    stamps.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    peers = ("make", "--no-print-directory", "peers", venv, "-o", str(stamps / "dev"))
    write_program(tmp_path / "bin" / "python", 'echo "$*"; exit 1')
    done = run(*peers)
    assert done.returncode == 0, done.stderr
    assert re.search("torch cannot be had here .* SKIPPED", done.stdout)
    assert re.search("openai client cannot be had here .* SKIPPED", done.stdout)
    assert re.search("vllm-router cannot be had here .* SKIPPED", done.stdout)
    assert re.search("SmolLM2 cannot be had here .* SKIPPED", done.stdout)
    assert (tmp_path / "logs" / "real-model.log").read_text() == "-m tools.real_model\n"
    write_program(tmp_path / "bin" / "python", "")
    for stages in (2, 0):
        done = run(*peers)
        assert done.returncode == 0 and done.stdout.count("[4/4]") == stages, done.stdout


def test_help_is_the_default_and_names_the_two_commands() -> None:
    done = run("make", "--no-print-directory")
    assert done.returncode == 0
    assert "make demo" in done.stdout
    assert "make test" in done.stdout


def test_what_the_demo_runs_and_recommends_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"\$\(BIN\)/karat ([a-z]+)", makefile)
    assert named
    assert set(named) <= set(command().commands)
