"""`karat check` and `karat diagnose` on a model of 30 layers: rounding is no bug, and a planted bug has its name."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from karat.check.model.checked import open_model
from karat.check.record.executors import Steps, record
from karat.check.trace.format import Trace
from karat.check.trace.writing import write_trace
from karat.ops.native import NativeOps
from karat.text import Tokenizer
from tests.cli.conftest import COMMAND, Karat, environment

TEXT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends."
NUM_TOKENS = 20
# NumPy's products wait for each other's threads on a machine that is busy with other tests, twenty times as long.
ALONE = {"OMP_NUM_THREADS": "1"}
QUICK = "tokens,weights,layers,logits,health"


@pytest.mark.slow
def test_check_says_quantisation(smollm2: Path, karat: Karat) -> None:
    done = karat("check", str(smollm2), "--against", "reference", "--stages", QUICK, "--tokens", "8", **ALONE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "verdict: quantisation"
    stages = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(tuple(QUICK.split(",")))]
    assert dict(stages) == {
        "tokens": "exact",
        "weights": "exact",
        "layers": "quantisation",
        "logits": "quantisation",
        "health": "exact",
    }
    assert "514 results, each re-run in float64" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_whole_check_says_quantisation(smollm2: Path) -> None:
    """Every stage: haiku about words drawn now, and the same bits under every setting, too; minutes of computing."""
    command = [*COMMAND, "check", str(smollm2), "--against", "reference"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**ALONE), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "verdict: quantisation", done.stdout
    stages = ("story       exact", "invariance  exact")
    assert all(stage in done.stdout for stage in stages), done.stdout


@pytest.fixture(scope="module", params=[10_000.0, None], ids=["theta 10000", "right"])
def layer_outputs(request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 20 tokens with the outputs of the layers and nothing between, of another RoPE theta or the model's."""
    model = open_model(str(smollm2))
    theta = request.param or model.config.rope.theta
    config = replace(model.config, rope=replace(model.config.rope, theta=theta))
    ids = tuple(Tokenizer.of(model.checkpoint).encode(TEXT))[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    trace = record(config, model.checkpoint, NativeOps(), Steps(ids), with_digest=False)
    outputs = ["model.embed_tokens", *(f"model.layers.{index}" for index in range(model.config.num_layers))]
    path = tmp_path_factory.mktemp("traces") / f"{request.param}.trace"
    write_trace(path, Trace(trace.info, {name: trace.arrays[name] for name in outputs}))
    return path


@pytest.mark.drawn(1)
def test_diagnose_names_a_planted_bug_and_finds_none_in_a_right_run(
    layer_outputs: Path, smollm2: Path, karat: Karat
) -> None:
    """--seconds: a busy machine may take longer than the minute that the search is given."""
    done = karat("diagnose", str(layer_outputs), "--model", str(smollm2), "--seconds", "280", **ALONE)
    if layer_outputs.name.startswith("None"):
        assert done.returncode == 0, done.stdout
        assert "verdict: numerics" in done.stdout
        return
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("located: model.layers.0, layer 0 of 30 is the first result")
    assert "verdict: bug\n\nrope-theta: RoPE's frequencies are not the model's\n" in done.stdout
    assert "layer in layers 0-29\n" in done.stdout
    assert "theta 10000 instead of 100000" in done.stdout
    assert "unexplained" not in done.stdout
