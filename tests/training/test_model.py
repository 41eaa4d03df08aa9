"""The training model computes what transformers' Qwen2 computes, and its folder loads there."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
transformers = pytest.importorskip("transformers")

# ruff: noqa: E402 (after the skip)
from training.evaluate import Sampling, as_transformers
from training.model import ModelConfig, StoryModel
from training.package import write_folder
from training.state import Progress, load_state, save_state
from training.train import Schedule, make_optimizers

SMALL = ModelConfig(64, 32, 48, 2, 4, 2)
EMBEDDED = Path(__file__).resolve().parents[2] / "src" / "karat" / "embedded"


def small_model(seed: int) -> StoryModel:
    torch.manual_seed(seed)
    model = StoryModel(SMALL)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_logits_are_those_of_transformers() -> None:
    model = small_model(0)
    ids = torch.randint(0, 64, (3, 50))
    with torch.no_grad():
        ours, theirs = model.logits(ids), as_transformers(model)(ids).logits
    assert (ours - theirs).abs().max() < 1e-4 * theirs.std()


def test_a_written_folder_reads_back(tmp_path: Path) -> None:
    model = small_model(1).bfloat16().float()
    write_folder(tmp_path, model, EMBEDDED, Sampling())
    again = StoryModel.from_folder(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, 64, (1, 20))
    with torch.no_grad():
        assert torch.equal(again.logits(ids), model.logits(ids))
        assert (theirs(ids).logits - model.logits(ids)).abs().max() < 1e-4


def test_a_resumed_run_takes_the_same_steps(tmp_path: Path) -> None:
    def steps(model: StoryModel, optimizers: list[torch.optim.Optimizer], seed: int) -> None:
        for i in range(3):
            torch.manual_seed(seed + i)
            ids = torch.randint(0, 64, (2, 16))
            model.loss(ids[:, :-1], ids[:, 1:], torch.ones(2, 15)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    model = small_model(2)
    optimizers = make_optimizers(model, 1e-2, 1e-2)
    steps(model, optimizers, 10)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    save_state(tmp_path / "s.safetensors", model, average, optimizers, Progress(3, 90, 1.5, 2))
    other = small_model(3)
    others = make_optimizers(other, 1e-2, 1e-2)
    assert load_state(
        tmp_path / "s.safetensors", other, {n: torch.zeros_like(p) for n, p in average.items()}, others
    ) == Progress(3, 90, 1.5, 2)
    steps(model, optimizers, 20)
    steps(other, others, 20)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_the_rate_warms_up_stays_and_decays_to_zero() -> None:
    schedule = Schedule(minutes=None, tokens=1000, decay_share=0.25)
    assert schedule.factor(0.0, 0) < 0.05
    assert schedule.factor(0.5, 500) == 1.0
    assert schedule.factor(0.875, 500) == pytest.approx(0.5)
    assert schedule.factor(1.0, 500) == 0.0
    assert schedule.used(Progress(tokens=700), Progress(tokens=200)) == 0.5
