"""The engine: ranks as threads, a scheduler's loop, greedy sampling, and the trace of a run."""

from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tools.zoo.strangers.cache import BLOCK, Blocks, Cache
from tools.zoo.strangers.checkpoint import Config, read_weights
from tools.zoo.strangers.comm import Comm, Group
from tools.zoo.strangers.recorder import Recorder, write_trace
from tools.zoo.strangers.scheduler import Batch, Scheduler
from tools.zoo.strangers.shards import Shards
from tools.zoo.strangers.worker import Worker


class Sampler:
    """Greedy, or the tokens that `forced` says: sequence → its generated tokens."""

    def __init__(self, forced: dict[int, list[int]] | None) -> None:
        self.forced = forced

    def __call__(self, batch: Batch, logits: np.ndarray) -> dict[int, int]:
        if self.forced is None:
            return {sequence.number: int(logits[row].argmax()) for sequence, row in batch.sampled}
        return {s.number: self.forced[s.number][len(s.tokens) - s.prompt] for s, _ in batch.sampled}


@dataclass(frozen=True)
class Parts:
    """The classes that the engine is made of; a bug replaces some."""

    shards: type[Shards] = Shards
    worker: type[Worker] = Worker
    cache: type[Cache] = Cache
    blocks: type[Blocks] = Blocks
    scheduler: type[Scheduler] = Scheduler
    comm: type[Comm] = Comm
    sampler: type[Sampler] = Sampler


@dataclass(frozen=True)
class Setting:
    """How a run is made."""

    ranks: int = 1
    chunk: int = 4
    prompts: tuple[int, ...] = (11, 7)  # how long
    decode: int = 4  # generated tokens that are computed
    kv_dtype: str = "float32"
    all_logits: bool = True  # or those of sampled rows alone
    kind: str = "full"  # what is recorded
    states: tuple[str, ...] = ()  # keys that the trace states beside the needed ones
    fused_names: bool = False  # qkv_proj and gate_up_proj are recorded as the engine has them


@dataclass
class Run:
    """What a run computed. Rows of arrays are tokens, in the order of computing."""

    setting: Setting
    arrays: dict[str, np.ndarray]
    ids: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    generated: dict[int, list[int]] = field(default_factory=dict)  # sequence → its tokens
    greatest: dict[int, list[int]] = field(default_factory=dict)  # those of the greatest logits

    def write(self, path: Path) -> None:
        info: dict[str, Any] = {
            "token_ids": self.ids,
            "sequences": self.sequences,
            "steps": self.steps,
            "dtype": "float32",
            "kv_dtype": self.setting.kv_dtype,
            "executor": "strangers",
        }
        if self.setting.ranks > 1:
            info["ranks"] = self.setting.ranks
        if not self.setting.all_logits:
            info["rows"] = {name: self.logit_rows for name in self.arrays if name.startswith("lm_head")}
        if "positions" in self.setting.states:
            info["positions"] = self.positions
        if "generated" in self.setting.states:
            info |= {"generated": self.generated[0], "sampling": {"temperature": 0}}
        write_trace(path, self.arrays, **info)


class Engine:
    def __init__(self, folder: Path, setting: Setting, parts: Parts = Parts()) -> None:
        config, weights = Config.read(folder), read_weights(folder)
        self.setting, self.parts = setting, parts
        group, most = Group(setting.ranks), sum(setting.prompts) + len(setting.prompts) * (setting.decode + BLOCK)
        self.block_count = -(-most // BLOCK)
        self.workers = []
        for rank in range(setting.ranks):
            shards = parts.shards(weights, config, rank, setting.ranks)
            cache = parts.cache(config.layers, self.block_count, shards.kv_heads, config.head_dim, setting.kv_dtype)
            recorder = Recorder(setting.kind)
            self.workers.append(parts.worker(config, shards, cache, parts.comm(group, rank), recorder))

    def run(self, prompts: Ids[Ids[int]], forced: dict[int, list[int]] | None = None) -> Run:
        """Compute all prompts and what is generated."""
        setting, run, sample = self.setting, Run(self.setting, {}), self.parts.sampler(forced)
        blocks = self.parts.blocks(self.block_count)
        scheduler = self.parts.scheduler(prompts, setting.decode, setting.chunk, blocks, setting.all_logits)
        with ThreadPoolExecutor(setting.ranks) as ranks:
            while batch := scheduler.next():
                logits = list(ranks.map(lambda worker, batch=batch: forward(worker, batch), self.workers))
                new = sample(batch, logits[0])
                self.note(run, batch, new, logits[0])
                scheduler.done(batch, new)
        for worker in self.workers:
            at = f"@{worker.rank}" if setting.ranks > 1 else ""
            arrays = worker.recorder.arrays()
            run.arrays |= {name + at: x for name, x in (fused(arrays) if setting.fused_names else arrays).items()}
        return run

    def note(self, run: Run, batch: Batch, new: dict[int, int], logits: np.ndarray) -> None:
        first = len(run.ids)
        run.steps.append(first)
        run.ids += batch.ids.tolist()
        run.positions += batch.positions.tolist()
        run.logit_rows += (first + batch.logit_rows).tolist()
        for span in batch.spans:
            run.sequences += [span.sequence.number] * span.count
        for sequence, row in batch.sampled:
            run.generated.setdefault(sequence.number, []).append(new[sequence.number])
            run.greatest.setdefault(sequence.number, []).append(int(logits[row].argmax()))


def forward(worker: Worker, batch: Batch) -> np.ndarray:
    """One rank's step. A rank that fails frees those that wait for it."""
    try:
        with np.errstate(all="ignore"):
            return worker.forward(batch)
    except BaseException:
        worker.comm.group.barrier.abort()
        raise


def fused(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays as an engine with fused products has them."""
    found = {}
    for name, x in arrays.items():
        at, _, last = name.rpartition(".")
        if last == "q_proj":
            x = np.concatenate([arrays[f"{at}.{part}_proj"] for part in "qkv"], axis=1)
            found[f"{at}.qkv_proj"] = x.reshape(len(x), -1)
        elif last == "gate_proj":
            found[f"{at}.gate_up_proj"] = np.concatenate([x, arrays[f"{at}.up_proj"]], axis=1)
        elif last not in ("k_proj", "v_proj", "up_proj"):
            found[name] = x
    return found
