"""The strangers' engine computes right without a bug, and each of its bugs moves something."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="transformers needs torch")
import torch
import transformers

from tools.zoo.strangers.checkpoint import MODELS
from tools.zoo.strangers.count import diagnose
from tools.zoo.strangers.engine import Setting
from tools.zoo.strangers.expected import EXPECTED, Expect
from tools.zoo.strangers.judge import (
    CLASS,
    FALSE_ALARM,
    HEALTHY,
    NOWHERE,
    PLACE,
    REFUSED,
    RIGHT,
    WRONG,
    judge,
    judge_healthy,
)
from tools.zoo.strangers.runs import BUGS, VISIBLE, effect, models, run_bug, run_healthy
from tools.zoo.strangers.runs import HEALTHY as SETTINGS


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
    assert set(EXPECTED) == {bug.name for bug in BUGS}
    assert sum(bug.group == "part" for bug in BUGS) >= 16
    assert len(SETTINGS) >= 10


@pytest.mark.drawn(12)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_moves_something(bug, folder: Path) -> None:
    run = run_bug(bug, folder, 5)
    right = run_healthy(bug.setting, bug.model, folder, 5, forced=run)
    assert right.ids == run.ids
    assert effect(run, right) >= VISIBLE


@pytest.mark.parametrize(("name", "outcome"), [("v-bias+eps", RIGHT), ("gqa-tiled", RIGHT), ("residual-fp16", RIGHT)])
def test_a_bug_is_diagnosed(name: str, outcome: str, folder: Path, tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    run_bug(bug, folder, 5).write(tmp_path / "engine.trace")
    answer, error, _ = diagnose(tmp_path / "engine.trace", folder / bug.model, 60)
    assert judge(EXPECTED[name], answer, error).outcome == outcome


def _answer(*bugs: list[list[str]], unexplained: tuple[str, ...] = (), verdict: str = "bug") -> dict[str, Any]:
    place = "model.layers.0.self_attn.q_rope"
    results = [{"name": name, "segment": [name, "model.layers.1.mlp.act"]} for name in unexplained]
    said = [{"classes": classes, "places": [place]} for classes in bugs]
    return {"verdict": verdict, "bugs": said, "unexplained": list(unexplained), "results": results, "patterns": {}}


ROPE, BIAS = Expect(("rope-theta",), ("q_rope",), ("rope-*",)), Expect(("bias-missing",), ("k_proj",))


@pytest.mark.parametrize(
    ("wants", "answer", "outcome"),
    [
        ((ROPE,), _answer([["rope-theta"]]), RIGHT),
        ((ROPE,), _answer([["rope-sign"], ["rope-theta"]]), CLASS),
        ((ROPE,), _answer([["scale-twice"], ["rope-theta"]]), CLASS),
        ((ROPE,), _answer([["scale-twice"]]), WRONG),
        ((ROPE,), _answer([["rope-theta"]], [["scale-twice"]]), WRONG),
        ((ROPE, BIAS), _answer([["rope-theta"]], [["bias-missing"]]), RIGHT),
        ((ROPE, BIAS), _answer([["rope-sign"]], [["bias-missing"]]), CLASS),
        ((ROPE, BIAS), _answer([["bias-missing"]]), PLACE),
        ((BIAS,), _answer(unexplained=("model.layers.3.self_attn.k_proj@1", "lm_head")), PLACE),
        ((Expect((), ("act",)),), _answer(unexplained=("model.layers.1",)), PLACE),
        ((BIAS,), _answer(unexplained=("lm_head",)), NOWHERE),
        ((BIAS,), _answer(verdict="numerics"), NOWHERE),
        ((BIAS,), None, REFUSED),
    ],
)
def test_answers_are_judged(wants: tuple[Expect, ...], answer: dict[str, Any] | None, outcome: str) -> None:
    assert judge(wants, answer, "an error").outcome == outcome


def test_a_healthy_run_is_judged() -> None:
    assert judge_healthy(_answer(verdict="numerics"), "").outcome == HEALTHY
    assert judge_healthy(_answer(unexplained=("lm_head",)), "").outcome == FALSE_ALARM
    assert judge_healthy(None, "an error").outcome == REFUSED
