"""The strangers' engine computes right without a bug, and each of its bugs moves something."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="transformers needs torch")
import torch
import transformers

from tools.zoo.strangers.checkpoint import MODELS
from tools.zoo.strangers.engine import Setting
from tools.zoo.strangers.runs import BUGS, HEALTHY, VISIBLE, effect, models, run_bug, run_healthy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("strangers")
    models(made, 7)
    return made


@pytest.mark.drawn(1, each=("model", "ranks"))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("ranks", "chunk"), [(1, 100), (2, 4), (4, 3)])
def test_the_engine_equals_transformers(model: str, ranks: int, chunk: int, folder: Path) -> None:
    """Three sequences, two at a time, in float32; transformers computes each sequence whole in float64."""
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder / model, dtype=torch.float64)
    run = run_healthy(Setting(ranks, chunk, (11, 7, 5)), model, folder, 1)
    assert set(run.sequences) == {0, 1, 2}
    assert len(run.ids) == 11 + 7 + 5 + 3 * 4
    assert run.generated == run.greatest
    for rank in range(ranks):
        logits = run.arrays[f"lm_head@{rank}" if ranks > 1 else "lm_head"]
        for number in set(run.sequences):
            rows = np.flatnonzero(np.asarray(run.sequences) == number)
            with torch.no_grad():
                right = peer(torch.tensor([[run.ids[row] for row in rows]])).logits[0].numpy()
            # A dozen layers of some hundred roundings each, amplified by attention: 1e-5 of the deviation is usual.
            assert np.abs(logits[rows] - right).max() < 2e-4 * right.std()


def test_names_and_settings_are_many() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 45
    assert sum(bug.group == "part" for bug in BUGS) >= 16
    assert len(HEALTHY) >= 10


@pytest.mark.drawn(12)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_moves_something(bug, folder: Path) -> None:
    run = run_bug(bug, folder, 5)
    right = run_healthy(bug.setting, bug.model, folder, 5, forced=run)
    assert right.ids == run.ids
    assert effect(run, right) >= VISIBLE
