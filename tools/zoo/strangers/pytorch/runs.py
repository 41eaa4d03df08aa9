"""Runs of the PyTorch engine: prompts, a run with a bug, and what the bug moves."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from tools.zoo.strangers.pytorch import bug as planted
from tools.zoo.strangers.pytorch.bug import Bug
from tools.zoo.strangers.pytorch.engine import Engine, Run, Setting
from tools.zoo.strangers.pytorch.models import HUGE, MODELS, make

for room in ("bugs_ranks", "bugs_steps", "bugs_types", "bugs_port"):
    importlib.import_module(f"tools.zoo.strangers.pytorch.{room}")
BUGS = tuple(planted.BUGS)
EXPECTED = {bug.name: bug.wants for bug in BUGS}

# Of the logits' root mean square: what float32 moves at most in these models, and the least effect of a bug.
NOISE = 5e-6
VISIBLE = 10 * NOISE

HEALTHY: dict[str, tuple[str, Setting]] = {
    "one rank": ("qwen2", Setting()),
    "one rank, whole prompts": ("llama", Setting(chunk=100)),
    "two ranks": ("qwen2", Setting(ranks=2, chunk=3)),
    "two ranks, biases": ("llama-bias", Setting(ranks=2, prompts=(6, 13))),
    "four ranks, two KV heads": ("qwen2", Setting(ranks=4)),
    "four ranks, four KV heads": ("llama", Setting(ranks=4, chunk=5)),
    "float16 cache, two ranks": ("llama", Setting(ranks=2, kv_dtype="float16")),
    "bfloat16 cache, last logits": ("qwen2", Setting(kv_dtype="bfloat16", all_logits=False)),
    "one sequence, positions and choices stated": (
        "llama",
        Setting(prompts=(12,), decode=6, states=("positions", "generated")),
    ),
    "one huge feature": ("llama-huge", Setting(ranks=2, chunk=7)),
}


def models(folder: Path, seed: int) -> None:
    for name in MODELS:
        make(folder / name, name, seed)


def prompts_of(setting: Setting, model: str, seed: int) -> list[list[int]]:
    """Random tokens; the last one of rank 0's half of the vocabulary is among them."""
    draw = np.random.default_rng(seed)
    vocabulary = MODELS[model]["vocab_size"]
    prompts = [draw.integers(HUGE + 1, vocabulary, length).tolist() for length in setting.prompts]
    prompts[0][2], prompts[-1][3] = vocabulary // 2 - 1, vocabulary - 1
    if model == "llama-huge":
        prompts[0][4] = HUGE
    return prompts


def run_bug(bug: Bug, folder: Path, seed: int, kind: str = "full") -> Run:
    setting = replace(bug.setting, kind=kind)
    return bug.planted(folder / bug.model, setting).run(prompts_of(setting, bug.model, seed))


def run_healthy(setting: Setting, model: str, folder: Path, seed: int, forced: Run | None = None) -> Run:
    """The engine as it should be; with the tokens that another run chose."""
    engine = Engine(folder / model, setting)
    return engine.run(prompts_of(setting, model, seed), forced.generated if forced else None)


def effect(run: Run, right: Run) -> float:
    """How far the bug moves the logits, of their root mean square. inf: NaN, or another token than the likeliest."""
    most = 0.0
    for name, x in right.arrays.items():
        if name.partition("@")[0] == "lm_head":
            moved = np.abs(x - run.arrays[name]).max() / np.sqrt(np.mean(np.square(x, dtype=np.float64)))
            most = max(most, float(moved) if np.isfinite(moved) else np.inf)
    return most if run.greatest == run.generated else np.inf
