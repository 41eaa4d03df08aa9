"""Going on from an engine's results with the right rest tells the parts that are wrong, one or several."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.onward import onward, onward_lines, suspects  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from karat.cli import main  # noqa: E402
from karat.errors import TraceError  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402


@pytest.fixture
def subject() -> Subject:
    changes = {"num_hidden_layers": 4, "tie_word_embeddings": False}
    return draw(f"{SEED}-onward", family="llama", steps="chunks", changes=changes)


def _replay(subject: Subject, *, layers_only: bool = False) -> Replay:
    trace = record_hf(subject.hf, subject.steps)
    arrays = {n: x for n, x in trace.arrays.items() if not layers_only or n.count(".") == 2}
    return Replay(subject.graph, subject.weights, Trace(trace.info, arrays))


def test_a_right_run_has_no_suspect(subject: Subject) -> None:
    found, noise, num_rows = onward(_replay(subject), ["all"])
    assert [one.part for one in found[:3]] == ["embedding", "attention:0", "layer:0"] and len(found) == 11
    assert suspects(found, noise) == [] and num_rows == len(subject.steps.prompt)
    assert all(one.distance < 1e-3 for one in found)
    assert onward_lines(found, noise, num_rows)[-1] == "no part stands 10 times above the noise"


def test_wrong_parts_are_suspect_and_no_others(subject: Subject) -> None:
    layers, generator = subject.hf.model.layers, torch.Generator().manual_seed(2)
    for weight in (layers[1].self_attn.o_proj.weight, layers[3].mlp.down_proj.weight):
        weight.data += 0.3 * weight.std() * torch.randn(weight.shape, generator=generator)
    found, noise, num_rows = onward(_replay(subject), ["all"])
    assert suspects(found, noise) == ["attention:1", "layer:3"]
    assert "suspect: attention:1, layer:3" in onward_lines(found, noise, num_rows)
    outputs, noise, _ = onward(_replay(subject, layers_only=True), ["layer:0", "layer:2", "layer:3"])
    assert suspects(outputs, noise) == ["layer:2", "layer:3"]  # with no cut between layers 0 and 2
    assert outputs[-1].distance == pytest.approx(next(one.distance for one in found if one.part == "layer:3"))


def test_only_what_is_there_is_gone_on_from(subject: Subject) -> None:
    replay = _replay(subject, layers_only=True)
    with pytest.raises(TraceError, match=r"--from norm: the trace does not have model\.norm of all tokens"):
        onward(replay, ["norm"])
    with pytest.raises(TraceError, match="--from layer:9: no such part; there are all, embedding, attention:0"):
        onward(replay, ["layer:9"])
    assert np.isfinite([one.distance for one in onward(replay, ["all"])[0]]).all()


def test_the_command_says_it_and_its_json_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t")
    assert main(["trace", "-o", path, "--ids", "5,9,300", "--executor", "reference"]) == 0
    capsys.readouterr()
    assert main(["diagnose", path, "--from", "layer:2", "--from", "norm", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "standard deviations" in line] == ["layer:2", "norm"]
    assert main(["diagnose", path, "--from", "all", "--json", "-q"]) == 0
    facts = json.loads(capsys.readouterr().out)["from"]
    assert facts["suspects"] == [] and [one["part"] for one in facts["parts"]][:2] == ["embedding", "attention:0"]
