"""The workloads and the order of measurement. Limits, Karat and the peer take turns, so that all meet the same state
of the machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from karat.bench.sides import Prompt, Sample, Side, extra_tokens
from karat.errors import UsageError


class StepMeter(Protocol):
    """What measures the limits; `run` once more."""

    def run(self) -> None: ...


Kind = Literal["prefill", "decode"]

NUM_WARM_UP_STEPS = 3
WARM_UP_TOKENS = 512  # of a prefill


@dataclass(frozen=True, slots=True)
class Workload:
    """Prefill of one prompt, or decoding after `batch` prompts of `prompt_tokens` each, `gen_tokens` steps a turn."""

    kind: Kind
    prompt_tokens: int
    batch: int = 1
    gen_tokens: int = 1

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.prompt_tokens}"
        return f"decode after {self.prompt_tokens}" + (f", batch {self.batch}" if self.batch > 1 else "")

    def context_len(self, repeat: int, max_num_batched_tokens: int) -> int:
        """The length of the longest sequence."""
        if self.kind == "prefill":
            return self.prompt_tokens + 1
        extra = extra_tokens([self.prompt_tokens] * self.batch, max_num_batched_tokens)
        return self.prompt_tokens + extra + self.num_steps(repeat)

    def num_steps(self, repeat: int) -> int:
        """Steps of decode in all turns."""
        return NUM_WARM_UP_STEPS + repeat * self.gen_tokens


@dataclass(slots=True)
class Series:
    """One side's samples, a list for each turn; a prefill is one sample."""

    turns: list[list[Sample]] = field(default_factory=list)

    @property
    def turn_seconds(self) -> list[float]:
        """The median step of each turn."""
        return [float(np.median([sample.seconds for sample in turn])) for turn in self.turns]

    @property
    def samples(self) -> list[Sample]:
        return [sample for turn in self.turns for sample in turn]


def plan(
    *,
    longest: int,
    prompt_tokens: Sequence[int] = (),
    gen_tokens: int = 32,
    batch: int = 16,
    context: int | None = None,
    repeat: int = 3,
    max_num_batched_tokens: int = 512,
) -> list[Workload]:
    """The workloads for a model of at most `longest` tokens: prefills, decode, batched and long-context decode.

    Without prompt_tokens: 512, or as many as fit. context None: 4096, or no such row if the model's context is less
    than twice the short one. batch 1 and context 0 leave their rows out. UsageError for a workload that does not fit.
    """
    for name, value, least in (
        ("--gen-tokens", gen_tokens, 1),
        ("--batch", batch, 1),
        ("--repeat", repeat, 1),
        ("--prompt-tokens", min(prompt_tokens, default=1), 1),
        ("--context", context or 0, 0),
    ):
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}")

    if batch >= max_num_batched_tokens:
        raise UsageError(
            f"--max-num-batched-tokens {max_num_batched_tokens}: expected more than --batch {batch}, for "
            "prompts to get on while others decode; raise it, or lower --batch"
        )

    def room(workload: Workload) -> int:
        """Tokens of the context that are left; negative if the workload does not fit."""
        return longest - workload.context_len(repeat, max_num_batched_tokens)

    prefills = [Workload("prefill", n) for n in prompt_tokens or [min(512, longest - 1)]]
    short = min(128, max(1, room(Workload("decode", 0, batch, gen_tokens)) // 2))
    decodes = [Workload("decode", short, 1, gen_tokens)]
    if batch > 1:
        decodes.append(Workload("decode", short, batch, gen_tokens))
    if context is None:
        wanted = Workload("decode", 4096, 1, gen_tokens)
        context = 4096 if room(wanted) >= 0 else max(0, room(Workload("decode", 8, 1, gen_tokens)))
        context = context if context >= 2 * short else 0
    if context:
        decodes.append(Workload("decode", context, 1, gen_tokens))
    workloads = [*prefills, *decodes]
    for workload in workloads:
        if workload.prompt_tokens < 1 or room(workload) < 0:
            raise UsageError(
                f"{workload.name}: {repeat} × {workload.gen_tokens} tokens after it take a context of "
                f"{workload.context_len(repeat, max_num_batched_tokens)}, and a prompt has at least one token; the "
                f"model has {longest}; lower --prompt-tokens, --context, --gen-tokens or --repeat"
            )
    return workloads


def measure(
    workload: Workload,
    sides: Sequence[Side],
    *,
    repeat: int,
    vocab_size: int,
    meter: StepMeter | None,
    progress: Callable[[str], None],
) -> list[Series]:
    """`repeat` turns of each side after a warm-up, with limits between them. The side that begins changes with each
    round.
    """
    rng = np.random.default_rng(workload.prompt_tokens * 1000 + workload.batch)
    prompts: list[Prompt] = rng.integers(0, vocab_size, (workload.batch, workload.prompt_tokens)).tolist()
    series = [Series() for _ in sides]
    try:
        for side in sides:
            progress(f"{workload.name}: warming up {side.name}")
            if workload.kind == "prefill":
                side.prefill(prompts[0][:WARM_UP_TOKENS])
            else:
                side.start(prompts, workload.num_steps(repeat))
                side.steps(NUM_WARM_UP_STEPS)
        for turn in range(repeat):
            if meter:
                progress(f"{workload.name}: {turn + 1} of {repeat}: limits")
                meter.run()
            order = list(zip(sides, series, strict=True))
            for side, record in order if turn % 2 == 0 else reversed(order):
                progress(f"{workload.name}: {turn + 1} of {repeat}: {side.name}")
                if workload.kind == "prefill":
                    record.turns.append([side.prefill(prompts[0])])
                else:
                    record.turns.append(side.steps(workload.gen_tokens))
    finally:
        for side in sides:
            side.stop()
    return series
