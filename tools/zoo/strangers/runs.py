"""Runs of the engine: prompts, a run with a bug, and what the bug moves."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from tools.zoo.strangers import bugs_attention, bugs_parts, bugs_weights
from tools.zoo.strangers.bug import Bug
from tools.zoo.strangers.checkpoint import MASSIVE, MODELS, make
from tools.zoo.strangers.engine import Engine, Parts, Run, Setting
from tools.zoo.strangers.expected import EXPECTED

__all__ = ["BUGS", "EXPECTED", "HEALTHY", "VISIBLE", "effect", "models", "run_bug", "run_healthy"]

BUGS = (*bugs_parts.BUGS, *bugs_weights.BUGS, *bugs_attention.BUGS)
VISIBLE = 1e-3  # the least effect of a bug: the greatest difference, of the array's root mean square

# Healthy settings: no verdict of a bug is right in any of them.
HEALTHY: dict[str, tuple[str, Setting]] = {
    "one rank": ("qwen2", Setting()),
    "one rank, whole prompts": ("llama", Setting(chunk=100)),
    "two ranks": ("qwen2-untied", Setting(ranks=2)),
    "two ranks, chunks of 3, three sequences": ("llama", Setting(ranks=2, chunk=3, prompts=(9, 6, 5))),
    "four ranks, two KV heads": ("qwen2", Setting(ranks=4)),
    "four ranks, four KV heads, one sequence": ("llama", Setting(ranks=4, chunk=5, prompts=(13,))),
    "float16 cache": ("llama-tied", Setting(kv_dtype="float16")),
    "float16 cache, two ranks, logits of last rows": (
        "qwen2",
        Setting(ranks=2, kv_dtype="float16", all_logits=False),
    ),
    "fused names": ("qwen2", Setting(fused_names=True)),
    "fused names, two ranks, positions stated": (
        "llama",
        Setting(ranks=2, fused_names=True, states=("positions",)),
    ),
    "one huge feature": ("llama-massive", Setting(chunk=7)),
    "twelve layers": ("llama-deep", Setting(ranks=2, chunk=2)),
}


def models(folder: Path, seed: int) -> None:
    """Make all models below `folder`."""
    for name in MODELS:
        make(folder / name, name, seed)


def prompts_of(setting: Setting, model: str, seed: int) -> list[list[int]]:
    """Random tokens, the first of two ranks' and four ranks' second shards among them."""
    rng = np.random.default_rng(seed)
    vocabulary = MODELS[model]["vocab_size"]
    prompts = [rng.integers(8, vocabulary, length).tolist() for length in setting.prompts]
    prompts[0][2], prompts[-1][3] = vocabulary // 2, -(-vocabulary // 4)
    if model == "llama-massive":
        prompts[0][0] = MASSIVE
    return prompts


def run_bug(bug: Bug, folder: Path, seed: int, kind: str = "full") -> Run:
    """The engine with the bug in it."""
    setting = replace(bug.setting, kind=kind)
    return Engine(folder / bug.model, setting, bug.parts).run(prompts_of(setting, bug.model, seed))


def run_healthy(setting: Setting, model: str, folder: Path, seed: int, forced: Run | None = None) -> Run:
    """The engine as it should be; with the tokens that another run chose."""
    engine = Engine(folder / model, setting, Parts())
    return engine.run(prompts_of(setting, model, seed), forced.generated if forced else None)


def effect(run: Run, right: Run) -> float:
    """How far the bug moves the array that it moves most. inf: NaN, not there, or another token is chosen."""
    most = 0.0
    for name, x in right.arrays.items():
        y = run.arrays.get(name)
        if y is None or y.shape != x.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return np.inf
        finite = np.isfinite(x)
        size = np.sqrt(np.mean(np.square(x[finite], dtype=np.float64)))
        most = max(most, float(np.abs(x[finite] - y[finite]).max() / size))
    if run.greatest != run.generated:
        return np.inf
    return most
