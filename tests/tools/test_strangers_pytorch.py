"""The strangers' PyTorch engine computes right without a bug, and each of its bugs moves the logits."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="transformers needs torch")
import torch
import transformers

from tools.zoo.strangers.count import diagnose
from tools.zoo.strangers.judge import RIGHT, judge
from tools.zoo.strangers.pytorch.engine import Setting
from tools.zoo.strangers.pytorch.models import MODELS
from tools.zoo.strangers.pytorch.runs import BUGS, EXPECTED, HEALTHY, VISIBLE, effect, models, run_bug, run_healthy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("strangers")
    models(made, 7)
    return made


@pytest.mark.drawn(1, each=("model", "ranks"))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("ranks", "chunk"), [(1, 100), (2, 4), (4, 3)])
def test_the_engine_equals_transformers(model: str, ranks: int, chunk: int, folder: Path) -> None:
    """A padded batch in float32; transformers computes each sequence alone, whole and in float64."""
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder / model, dtype=torch.float64)
    run = run_healthy(Setting(ranks, chunk, (7, 11)), model, folder, 1)
    assert len(run.ids) == 7 + 11 + 2 * 3
    assert run.generated == run.greatest
    for rank in range(ranks):
        logits = run.arrays[f"lm_head@{rank}" if ranks > 1 else "lm_head"]
        for number in (0, 1):
            rows = np.flatnonzero(np.asarray(run.sequences) == number)
            with torch.no_grad():
                right = peer(torch.tensor([[run.ids[row] for row in rows]])).logits[0].numpy()
            assert np.abs(logits[rows] - right).max() < VISIBLE * np.sqrt(np.mean(right**2))


def test_names_and_settings_are_many() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 100
    assert 3 * sum(bug.group == "part" for bug in BUGS) >= len(BUGS)
    assert all(bug.says for bug in BUGS)
    assert len(HEALTHY) == 10


@pytest.mark.drawn(8)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_moves_the_logits(bug, folder: Path) -> None:
    run = run_bug(bug, folder, 5)
    right = run_healthy(bug.setting, bug.model, folder, 5, forced=run)
    assert right.ids == run.ids
    assert effect(run, right) >= VISIBLE


# Those that had no name, or a wrong one, when they were counted first.
MENDED = (
    "cache-bf16",
    "decode-attention-bf16",
    "decode-skips-last-layer",
    "down-fp16",
    "down-not-reduced-decode",
    "norm-in-bf16",
    "rank1-v-zero",
    "rank3-scale-of-whole",
    "reduce-bf16",
)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", ["rank1-k-bias", "head-shards-swapped", *MENDED])
def test_a_bug_is_diagnosed(name: str, folder: Path, tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    run_bug(bug, folder, 5).write(tmp_path / "engine.trace")
    answer, error, _ = diagnose(tmp_path / "engine.trace", folder / bug.model, 60)
    assert judge(EXPECTED[name], answer, error).outcome == RIGHT


def test_zeros_of_v_on_a_rank_and_a_sum_without_it_are_one_in_layer_outputs(folder: Path, tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == "rank1-v-zero")
    run_bug(bug, folder, 5, "layers").write(tmp_path / "engine.trace")
    answer, _, _ = diagnose(tmp_path / "engine.trace", folder / bug.model, 60)
    assert answer is not None
    (named,) = answer["bugs"]
    assert {name for names in named["classes"] for name in names} == {"reduce-missing", "weight-missing"}
