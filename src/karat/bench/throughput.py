"""Throughput: many prompts at once through `LLM.generate`, beside llama.cpp's batched bench on the same file."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from karat.bench.load.prompts import PlannedConversation, Supply
from karat.engine.llm import LLM
from karat.errors import ExecutorError, UsageError
from karat.request import SamplingParams

SCHEMA = 1  # of the JSON; raised when a key changes its meaning or is removed
PEER = "llama-batched-bench"
_PEER_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputPlan:
    """`num_prompts` prompts in each of `repeat` turns, `batch` of them computed at a time."""

    num_prompts: int
    batch: int
    repeat: int
    threads: int


@dataclass(frozen=True, slots=True)
class BatchedBench:
    """llama-batched-bench at `program`: one batch of prompts of a fixed length, and as many steps of decode. It draws
    its tokens at random, samples nothing and makes no text.
    """

    program: str
    model: Path
    prompt_tokens: int
    answer_tokens: int

    def check(self) -> None:
        """UsageError for a program or a model that it cannot be."""
        if shutil.which(self.program) is None:
            raise UsageError(f"--peer {PEER} {self.program}: there is no such program; give its path")
        if not self.model.is_file():
            raise UsageError(f"--peer {PEER} {self.program}: it reads GGUF files only; give one instead of a folder")

    def command(self, plan: ThroughputPlan) -> list[str]:
        size = plan.batch * (self.prompt_tokens + self.answer_tokens)
        lengths = ["-npp", str(self.prompt_tokens), "-ntg", str(self.answer_tokens), "-npl", str(plan.batch)]
        threads = ["-t", str(plan.threads), "-tb", str(plan.threads)]
        return [self.program, "-m", str(self.model), "-c", str(size), *lengths, *threads, "--output-format", "jsonl"]

    def measure(self, plan: ThroughputPlan) -> dict[str, float]:
        """Its own figures of one batch. ExecutorError if it fails."""
        done = subprocess.run(
            self.command(plan), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PEER_S, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
        if done.returncode or len(lines) != 1:
            last = b" / ".join(done.stderr.strip().splitlines()[-2:]).decode(errors="replace")
            raise ExecutorError(f"{PEER} ended with code {done.returncode} and {len(lines)} results; it said: {last}")
        try:
            told = msgspec.json.decode(lines[0], type=_Told)
        except msgspec.DecodeError as fault:
            raise ExecutorError(f"{PEER}: its result cannot be read ({fault}); update llama.cpp") from None
        return rates(told.pl, told.pl * told.pp, told.pl * told.tg, told.t) | {
            "prompt_tokens_per_s": told.speed_pp,
            "decode_tokens_per_s": told.speed_tg,
        }


class _Told(msgspec.Struct):
    pp: int
    tg: int
    pl: int
    t: float
    speed_pp: float
    speed_tg: float


def measure(
    llm: LLM,
    plan: ThroughputPlan,
    supply: Supply,
    peer: BatchedBench | None,
    progress: Callable[[str], None],
    *,
    shows_bar: bool,
) -> dict[str, Any]:
    """The figures of both sides, and the ratios of the turns. The side that begins changes. `llm` is warmed up."""
    _turn(llm, supply.take(1), shows_bar=False)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []

    def measure_ours() -> None:
        progress("")
        ours.append(_turn(llm, supply.take(plan.num_prompts), shows_bar=shows_bar))

    def measure_theirs() -> None:
        if peer is not None:
            progress(f"{PEER}: turn {len(theirs) + 1} of {plan.repeat}")
            theirs.append(peer.measure(plan))

    for turn in range(plan.repeat):
        for measure_side in (measure_ours, measure_theirs)[:: 1 if turn % 2 == 0 else -1]:
            measure_side()
    found: dict[str, Any] = {"karat": _medians(ours), "turns": ours, "peer": None, "ratios": None}
    if theirs:
        pairs = list(zip(ours, theirs, strict=True))
        found["peer"] = {"name": PEER, "turns": theirs, **_medians(theirs)}
        names = ("total_tokens_per_s", "output_tokens_per_s")
        found["ratios"] = {name: _spread([a[name] / b[name] for a, b in pairs]) for name in names}
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "min": min(values), "max": max(values)}


def rates(num_requests: int, num_prompt: int, num_output: int, seconds: float) -> dict[str, float]:
    """Figures under vLLM's names."""
    return {
        "elapsed_s": seconds,
        "num_requests": num_requests,
        "total_prompt_tokens": num_prompt,
        "total_output_tokens": num_output,
        "requests_per_s": num_requests / seconds,
        "total_tokens_per_s": (num_prompt + num_output) / seconds,
        "output_tokens_per_s": num_output / seconds,
    }


def _turn(llm: LLM, asked: Sequence[PlannedConversation], *, shows_bar: bool) -> dict[str, float]:
    prompts: list[Sequence[int]] = []
    for conversation in asked:
        for turn in conversation.turns:
            assert not isinstance(turn.prompt, str), "a tokenizer makes prompts of ids"
            prompts.append(turn.prompt)
    lengths = [turn.max_tokens for conversation in asked for turn in conversation.turns]
    params = [SamplingParams(max_tokens=length, temperature=0, ignore_eos=True) for length in lengths]
    begun = perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=shows_bar)
    seconds = perf_counter() - begun
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return rates(len(outputs), num_prompt, num_output, seconds)


def _medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}
