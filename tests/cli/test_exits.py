"""Every way a command ends: its exit code, and one readable line on stderr.

Covers: karat.__main__, karat.cli.topics, karat.errors.
"""

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from karat import errors
from karat.cli import exits, topics
from karat.errors import KaratError
from tests.cli.conftest import COMMAND, Karat, environment

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def error_classes(base: type[KaratError] = KaratError) -> list[type[KaratError]]:
    return [base, *(found for child in base.__subclasses__() for found in error_classes(child))]


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes `karat help` raise `error`, far inside."""

    def raise_it(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(topics, "columns", raise_it)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_each_class_of_error_has_its_code_and_one_line(
    kind: type[KaratError], monkeypatch: pytest.MonkeyPatch, karat_here: Karat
) -> None:
    failing(monkeypatch, kind("what came,\n what was expected\x1b[2J, and what to do"))
    done = karat_here("help", "exit-codes")
    assert done.returncode == kind.exit_code
    assert done.stderr == "karat: error: what came, what was expected␛[2J, and what to do\n"
    assert done.stdout == ""


def test_the_table_has_every_code_and_the_documentation_has_the_table() -> None:
    codes = {kind.exit_code for kind in error_classes()}
    assert codes <= set(exits.EXIT_CODES)
    assert len(error_classes()) >= 11 and errors.CapacityError in error_classes()
    documented = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", DOCS.read_text(), re.MULTILINE))
    assert documented == {str(code): meaning for code, meaning in exits.EXIT_CODES.items()}


def test_notes_of_an_error_are_part_of_its_line(monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    error = KaratError("no such model")
    error.add_note("it was taken for a model")
    failing(monkeypatch, error)
    assert karat_here("help", "exit-codes").stderr == "karat: error: no such model (it was taken for a model)\n"


def test_the_lines_of_an_error_stay_apart_on_the_one(monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    failing(monkeypatch, KaratError("it does not fit: download it again\n  missing: a, b\n\n  unexpected:\n c"))
    line = "karat: error: it does not fit: download it again; missing: a, b; unexpected: c\n"
    assert karat_here("help", "exit-codes").stderr == line


def test_anything_else_is_a_bug_and_says_so(monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    failing(monkeypatch, ZeroDivisionError("division by zero"))
    done = karat_here("help", "exit-codes")
    assert done.returncode == 70
    assert done.stderr == (
        "karat: error: ZeroDivisionError: division by zero; this is a bug in Karat: run it again with --debug for "
        "the traceback, and report it\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (exits.Terminated(), 143, ""),
        (BrokenPipeError(), 141, ""),
        (typer.Exit(5), 5, ""),
        (MemoryError(), 8, "karat: error: out of memory"),
    ],
)
def test_other_ends(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, karat_here: Karat
) -> None:
    failing(monkeypatch, error)
    done = karat_here("help", "exit-codes")
    assert done.returncode == code
    assert done.stderr.startswith(line) and bool(line) == bool(done.stderr)


@pytest.mark.parametrize("args", [("--debug", "help", "exit-codes"), ("help", "--debug", "exit-codes")])
def test_debug_shows_the_traceback_wherever_it_stands(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, karat_here: Karat
) -> None:
    failing(monkeypatch, KaratError("what came"))
    done = karat_here(*args)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "in raise_it" in done.stderr
    assert done.stderr.endswith("\nkarat: error: what came\n")


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_karat_debug_does_the_same(value: str, shown: bool, monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    monkeypatch.setenv("KARAT_DEBUG", value)
    failing(monkeypatch, KaratError("what came"))
    assert ("Traceback" in karat_here("help", "exit-codes").stderr) == shown


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["frob"], "karat: error: No such command 'frob'; see `karat --help`\n"),
        (["rum"], "karat: error: No such command 'rum'. Did you mean 'run'? See `karat --help`\n"),
        (["inspect", "--nope"], "karat: error: No such option: --nope; see `karat inspect --help`\n"),
        (["inspect", "a", "b"], "see `karat inspect --help`\n"),
        (["pull"], "karat: error: Missing argument 'ORG/NAME[@REVISION][:TYPE]'; see `karat pull --help`\n"),
        (["run", "x", "--top-k", "many"], "see `karat run --help`\n"),
        (["run", "x", "--bad-words-ids", "5,a"], "--bad-words-ids '5,a': expected token ids"),
        (["run", "x", "--logit-bias", "many"], "--logit-bias 'many': expected a token id and a number"),
        (
            ["help", "nope"],
            "no help on 'nope'; there is help on run, chat, serve, batch, inspect, bench, bench serve, bench "
            "throughput, convert, pull, pack, check, trace, diagnose, verify, perplexity, env, help and exit-codes",
        ),
    ],
)
def test_a_command_line_that_cannot_be_understood(args: list[str], line: str, karat_here: Karat) -> None:
    done = karat_here(*args)
    assert done.returncode == 2
    assert line in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("karat: error: ")
    assert done.stdout == ""


def test_the_process_ends_with_the_code(karat: Karat) -> None:
    done = karat("inspect", "/no/such/folder")
    assert (done.returncode, done.stdout) == (errors.CheckpointError.exit_code, "")
    assert done.stderr.startswith("karat: error: '/no/such/folder'") and done.stderr.count("\n") == 1


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "args", [["help", "exit-codes"], ["--help"], ["run", "--help"], ["help", "run"], [], ["--version"]], ids=" ".join
)
def test_output_that_cannot_be_written(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *args], stdout=full, stderr=subprocess.PIPE, env=environment(), text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("karat: error: the output cannot be written (No space left on device)")
    assert done.stderr.count("\n") == 1


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("redirection", "command", "code"),
    [
        ("<&-", "help exit-codes", 0),
        (">&-", "help exit-codes", 1),
        ("2>&-", "help exit-codes", 0),
        ("<&- >&- 2>&-", "help exit-codes", 1),
        (">&-", "run --help", 1),
        (">&-", "--version", 1),
        (">&-", "frob", 2),
    ],
)
def test_streams_that_the_caller_closed(redirection: str, command: str, code: int) -> None:
    """What cannot be written is no success."""
    line = f'exec "$0" -m karat {command} {redirection}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode == code
    message = "karat: error: the output cannot be written (stdout is closed); leave stdout open, or "
    message += "redirect it to a file or a pipe\n"
    assert done.stderr == (message if code == 1 and "2>&-" not in redirection else done.stderr if code == 2 else "")
    assert bool(done.stdout) == (code == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="how many files a Python opens to start is known for Linux")
def test_too_few_descriptors_are_told_with_the_limit() -> None:
    """With every number with which Python itself starts and Karat does not."""

    def run(most: int, *command: str) -> "subprocess.CompletedProcess[str]":
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

        return subprocess.run(
            command,
            env=environment(),
            preexec_fn=limit,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    tried = 0
    for most in range(4, 20):
        alone = run(most, sys.executable, "-c", "")
        if alone.returncode or alone.stderr:
            continue
        done = run(most, *COMMAND, "run", "x", "--max-tokens", "1")
        if done.returncode == 0:
            break
        assert done.returncode < 70 and done.stderr.count("\n") == 1
        assert "oo many open files: " in done.stderr and f"is {most}); raise it with ulimit -n" in done.stderr
        tried += 1
    if not tried:
        pytest.skip("where Python starts, Karat does: an editable installation opens as many files")


def test_any_other_file_that_would_be_one_too_many(monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    failing(monkeypatch, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    done = karat_here("help", "exit-codes")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert done.returncode == 1
    assert done.stderr == f"karat: error: too many open files: this process may have {allowed}; raise it by ulimit -n\n"


@pytest.mark.parametrize("args", [["help", "exit-codes"], ["run", "--help"], ["--version"]])
def test_a_reader_that_goes_away_at_once(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *args], stdout=writer, stderr=subprocess.PIPE, env=environment(), text=True, timeout=300
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_is_utf8_whatever_the_locale(karat: Karat) -> None:
    done = karat("help", "exit-codes", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0 and "karat run … | head" in done.stdout


def test_a_reader_of_the_errors_that_goes_away() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "frob"], stdout=subprocess.DEVNULL, stderr=writer, env=environment(), timeout=300)
    os.close(writer)
    assert done.returncode == 141
