"""A model with one NaN among its weights is a bug in every stage that computes, however it is looked at."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint.safetensors import read_header
from karat.config import embedded_model_path
from karat.ops.native import unavailable_reason
from tests.cli.conftest import Karat

TENSOR = "model.layers.2.mlp.down_proj"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The embedded model with one NaN."""
    folder = tmp_path / "broken"
    shutil.copytree(embedded_model_path(), folder)
    path = folder / "model.safetensors"
    path.chmod(0o644)
    entry, data = read_header(path).entries[f"{TENSOR}.weight"], np.fromfile(path, np.uint8)
    data[entry.begin + 10 : entry.begin + 12] = [0xC0, 0x7F]
    data.tofile(path)
    return folder


EXECUTORS = ["reference", *(["native"] if unavailable_reason() is None else [])]


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_stage_that_computes_says_bug(broken: Path, karat_here: Karat, executor: str) -> None:
    stages = ("layers", "logits", "generation", "story", "health", "invariance")
    what = ["--tokens", "12", "--stories", "2", "--stages", ",".join(stages)]
    done = karat_here("check", str(broken), "--against", "reference", "--executor", executor, *what, "--json")
    facts = json.loads(done.stdout, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert (done.returncode, facts["verdict"]) == (1, "bug")
    assert {stage["name"]: stage["verdict"] for stage in facts["stages"]} == dict.fromkeys(stages, "bug")
    text = {stage["name"]: "\n".join(stage["lines"]) for stage in facts["stages"]}
    assert f"not finite: {TENSOR.removeprefix('model.layers.2.')} in layer 2, token 0" in text["layers"]
    assert "NaN or infinity in 12 of 12 rows of logits, first of token 0: " in text["logits"]
    assert "ended with an error after 0 of 24 tokens" in text["generation"]
    assert "position 11 are not finite" in text["generation"]
    assert "one pass over all: NaN or infinity in 12 of 12 rows" in text["generation"]


@pytest.mark.slow
def test_transformers_does_not_talk_it_away(broken: Path, karat_here: Karat) -> None:
    """Both sides have the same NaN."""
    pytest.importorskip("torch", reason="transformers needs torch")
    what = ["--tokens", "6", "--stages", "logits,generation", "--hybrid", "mlp"]
    done = karat_here("check", str(broken), "--against", "hf", *what, "--json")
    facts = json.loads(done.stdout, parse_constant=pytest.fail)
    assert {s["name"]: s["verdict"] for s in facts["stages"]} == dict.fromkeys(
        ("logits", "generation", "hybrid"), "bug"
    )


def test_a_trace_of_it_is_a_bug_too(broken: Path, tmp_path: Path, karat_here: Karat) -> None:
    """Every op does what the weights say: still nobody may take it for a working model."""
    path = tmp_path / "x.trace"
    karat_here("trace", str(broken), "-o", str(path), "--tokens", "6", "--executor", "reference")
    done = karat_here("diagnose", str(path), "-m", str(broken))
    assert done.returncode == 1 and "verdict: bug" in done.stdout
    assert "not finite: mlp.down_proj in layer 2, token 0" in done.stdout
    facts = json.loads(karat_here("diagnose", str(path), "-m", str(broken), "--json").stdout)
    assert (facts["verdict"], facts["not_finite"][0]) == ("bug", TENSOR) and not facts["bugs"]
