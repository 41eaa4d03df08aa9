"""The exit code of `check` and `diagnose` is a verdict, and 2 where there is none, whatever is in the way."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from karat.check.model import checked
from karat.check.record import llamacpp
from karat.check.trace.format import Trace, make_info
from karat.check.trace.writing import write_trace
from karat.cli import exits
from karat.config import embedded_model_path
from karat.errors import KaratError
from tests.check.diagnosis.test_assumed import CONFIG, IDS, ggml_run, layer_outputs
from tests.cli.conftest import COMMAND, Karat, environment
from tests.cli.test_exits import error_classes
from tests.support.parallel import config_of, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model, to be broken."""
    copy = tmp_path / "model"
    shutil.copytree(embedded_model_path(), copy)
    for path in copy.iterdir():
        path.chmod(0o644)
    return copy


BREAKS: dict[str, Callable[[Path], object]] = {
    "no folder": shutil.rmtree,
    "no config": lambda folder: (folder / "config.json").unlink(),
    "an unknown family": lambda folder: (folder / "config.json").write_text('{"model_type": "mamba"}'),
    "truncated weights": lambda folder: (folder / "model.safetensors").write_bytes(bytes(100)),
    "a corrupt tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_model_that_cannot_be_checked(what: str, folder: Path, karat_here: Karat) -> None:
    """The line is that of any other command, whose code is its own."""
    BREAKS[what](folder)
    done = karat_here("check", str(folder), "--stages", "weights")
    other = karat_here("run", str(folder), "x")
    assert done.returncode == 2 and 3 <= other.returncode <= 6
    assert done.stderr == other.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("content", [b"", b"no trace", bytes(40)])
def test_a_trace_that_cannot_be_read(content: bytes, tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(content)
    for args in (
        ("check", "--stages", "weights", "--against", str(path)),
        ("diagnose", str(path)),
        ("diagnose", str(path), "--reference", str(path)),
    ):
        done = karat_here(*args)
        assert done.returncode == 2 and str(path) in done.stderr and done.stderr.count("\n") == 1, args
    assert karat_here("trace", "--validate", str(path)).returncode in (4, 11), "it judges nothing"


def test_a_trace_with_nothing_to_judge_is_not_exact(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    misnamed = {"model.layer.0": np.zeros((3, 256), np.float32)}
    write_trace(path, Trace(make_info((5, 6, 7)), misnamed))
    for as_json in ((), ("--json",)):
        done = karat_here("diagnose", str(path), *as_json)
        assert (done.returncode, done.stdout) == (2, "")
        assert "none of its 1 arrays has the name of a result" in done.stderr


def test_peers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    monkeypatch.setattr(llamacpp, "is_installed", lambda: False)
    monkeypatch.setattr("karat.check.session.agreement.has_transformers", lambda: False)
    for peer in ("hf", "llama.cpp"):
        done = karat_here("check", "--against", peer)
        assert done.returncode == 2 and f"--against {peer} needs" in done.stderr


def test_where_no_stage_can_be_run_nothing_is_said_to_be_right(
    alphabet: Path, tmp_path: Path, karat_here: Karat
) -> None:
    for file in alphabet.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    done = karat_here("check", str(tmp_path), "--stages", "story", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (2, "skipped")
    assert "nothing was checked: story skipped" in done.stderr


@pytest.mark.slow
def test_output_that_cannot_be_written_is_no_bug_of_the_model(tmp_path: Path, karat_here: Karat) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "check", "--stages", "weights", "--against", "reference"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
    assert done.returncode == 2 and "cannot be written (No space left on device)" in done.stderr
    nowhere = karat_here("check", "--stages", "weights", "--report", str(tmp_path / "none" / "x.html"))
    assert nowhere.returncode == 2 and "there is no folder" in nowhere.stderr and nowhere.stdout == ""
    denied = karat_here("check", "--stages", "weights", "--report", str(tmp_path))
    assert denied.returncode == 2 and "cannot be written" in denied.stderr


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("command", [("check",), ("diagnose", "x.trace")], ids=lambda command: command[0])
def test_every_class_of_error(
    command: tuple[str, ...], kind: type[KaratError], monkeypatch: pytest.MonkeyPatch, karat_here: Karat
) -> None:
    raising(monkeypatch, kind("what came"))
    done = karat_here(*command)
    assert (done.returncode, done.stderr) == (2, "karat: error: what came\n")
    assert karat_here("inspect", "x").returncode == kind.exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), 2),
        (KeyboardInterrupt(), 130),
        (exits.Terminated(), 143),
        (BrokenPipeError(), 141),
        (ZeroDivisionError(), 70),
    ],
)
def test_other_ends(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    raising(monkeypatch, error)
    assert karat_here("check").returncode == code


def test_debug_shows_where_it_came_from(monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    raising(monkeypatch, KaratError("what came"))
    done = karat_here("check", "--debug")
    assert done.returncode == 2 and "in raise_it" in done.stderr and done.stderr.endswith("karat: error: what came\n")
    assert done.stderr.count("Traceback") == 1


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Opening a model, a trace or a folder raises `error`."""

    def raise_it(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(checked, "open_model", raise_it)
    monkeypatch.setattr("karat.check.trace.reading.read_trace", raise_it)
    monkeypatch.setattr("karat.checkpoint.resolve", raise_it)


@pytest.mark.slow
def test_a_question_that_decides_is_no_verdict(tmp_path: Path, karat_here: Karat) -> None:
    """It ended with 0 while it asked; the trace answers it, and then there is a verdict."""
    gguf = write(tmp_path / "m", config_of("llama") | CONFIG, "Q8_0")
    path = tmp_path / "engine.trace"
    arrays = layer_outputs(ggml_run(checked.open_model(str(gguf))))
    for activations, code, verdict in ((None, 2, "undecided"), ("ggml", 0, "numerics"), ("none", 1, "bug")):
        info = make_info(IDS, **({} if activations is None else {"activations": activations}))
        write_trace(path, Trace(info, arrays))
        done = karat_here("diagnose", str(path), "-m", str(gguf), "--json", "--seconds", "1")
        assert done.returncode == code and json.loads(done.stdout)["verdict"] == verdict, done.stderr
        question = f"{path}: no verdict: it does not say whether its engine rounds activations"
        assert (question in done.stderr) == (code == 2)
        if code == 2:
            stages = karat_here("check", str(gguf), "--against", str(path), "--stages", "weights")
            assert stages.returncode == 0 and stages.stdout.endswith("verdict: exact; flagged: trace\n"), stages.stdout
