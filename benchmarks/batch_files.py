"""`karat batch` beside LLM.generate on the same prompts: python -m benchmarks.batch_files [MODEL]

Each side has a model of its own, loaded before and warmed up, and as many sequences at a time; they take turns. A
turn's prompts are new, those of both sides, and in the order in which the batch asks for them. Answers have --tokens
tokens, or from half of that to one and a half with --varied, whatever they say. Prints one JSON object: of each turn
the seconds, the seconds of processor time (of the batch also the part of its own process, the rest is the engine's)
and the engine's steps; and the ratios of the turns, generate to batch, of seconds and of processor time. With
--profile the functions of the batch's own process that took most are on stderr.

A busy machine changes seconds by more than a batch costs. Processor time it changes less.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from karat.batch_files.asking import AppHere, PatientPlace
from karat.batch_files.here import engine_here
from karat.batch_files.journal import Journal
from karat.batch_files.lines import LineReading
from karat.batch_files.running import Batch, BatchMeter, answer_pending, write_results
from karat.batch_files.sources import RequestLines
from karat.engine.async_llm import AsyncLLM
from karat.engine.llm import LLM
from karat.engine.stats import EngineStats
from karat.request import SamplingParams
from karat.server.settings import ServerSettings

WORDS = "a fox and the lantern went over old hills to see how far their river might go before winter came".split()


@dataclass(frozen=True, slots=True)
class Asked:
    """Prompts, and how many tokens each answer has."""

    prompts: list[str]
    tokens: list[int]

    def lines(self) -> str:
        asked = zip(self.prompts, self.tokens, strict=True)
        fields = {"ignore_eos": True, "temperature": 0}
        return "".join(json.dumps({"prompt": text, "max_tokens": most, **fields}) + "\n" for text, most in asked)


@dataclass(slots=True)
class Turn:
    """What one side took."""

    seconds: float = 0.0
    processor_s: float = 0.0
    own_s: float = 0.0  # of these, of this process
    steps: int = 0


def asked_for(number: int, options: argparse.Namespace) -> Asked:
    prompts = sorted(" ".join(random.choices(WORDS, k=options.words)) for _ in range(number))
    most, least = (3 * options.tokens // 2, options.tokens // 2) if options.varied else (options.tokens,) * 2
    return Asked(prompts, [random.randint(least, most) for _ in prompts])


def processor_s(process_id: int) -> float:
    """A process's processor time so far, ended threads included, as Linux' clock_getcpuclockid has it."""
    return time.clock_gettime((~process_id << 3) | 2)


@contextmanager
def timed(engine_process: int | None) -> Iterator[Turn]:
    """The seconds and processor time of the body, here and in the engine's process."""
    turn = Turn()
    engine_s = processor_s(engine_process) if engine_process else 0.0
    own_s, begun = time.process_time(), time.perf_counter()
    yield turn
    turn.seconds, turn.own_s = time.perf_counter() - begun, time.process_time() - own_s
    turn.processor_s = turn.own_s + (processor_s(engine_process) - engine_s if engine_process else 0.0)


async def batch_turn(here: AppHere, engine: AsyncLLM, asked: Asked, folder: Path) -> Turn:
    """From reading the input to the written output."""
    source, journal = folder / "in.jsonl", folder / "journal"
    journal.unlink(missing_ok=True)
    source.write_text(asked.lines())
    before = await engine.stats()
    with timed(engine.process_id) as turn:
        batch = Batch(RequestLines(source), LineReading({}), 0, Journal(journal))
        meter = BatchMeter(len(asked.prompts))
        await answer_pending(batch, [PatientPlace(here, 60)], 2 * engine.max_num_seqs, meter, lambda text: None)
        num_good, num_bad = write_results(batch, folder / "out", folder / "errors", times=True)
    batch.journal.close()
    turn.steps = steps_between(before, await engine.stats())
    assert (num_good, num_bad, meter.num_tokens) == (len(asked.prompts), 0, sum(asked.tokens))
    return turn


def generate_turn(llm: LLM, asked: Asked) -> Turn:
    params = [SamplingParams(max_tokens=most, ignore_eos=True, temperature=0) for most in asked.tokens]
    before = llm.engine.stats()
    with timed(None) as turn:
        outputs = llm.generate(asked.prompts, params, use_tqdm=False)
    turn.steps = steps_between(before, llm.engine.stats())
    assert [len(output.outputs[0].token_ids) for output in outputs] == asked.tokens
    return turn


def steps_between(before: EngineStats, after: EngineStats) -> int:
    return after.num_steps - before.num_steps


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    given: dict[str, Any] = {"max_num_seqs": options.max_num_seqs}
    given |= {} if options.threads is None else {"threads": options.threads}
    llm = LLM(options.model, **given)
    settings = ServerSettings(model_names=("m",))
    profile = cProfile.Profile(time.thread_time)

    async def opened() -> AsyncLLM:
        return await AsyncLLM.open(options.model, **given)

    async with engine_here(opened, settings, receipts=False) as (here, engine):
        await engine.fingerprint()  # as the command does
        turns: dict[str, list[Turn]] = {"batch": [], "generate": []}
        for number in range(options.repeat + 1):
            asked = asked_for(options.prompts if number else options.max_num_seqs, options)
            for side in ("batch", "generate") if number % 2 else ("generate", "batch"):
                if side == "batch":
                    if options.profile and number:
                        profile.enable()
                    turn = await batch_turn(here, engine, asked, folder)
                    profile.disable()
                else:
                    turn = await asyncio.to_thread(generate_turn, llm, asked)
                if number:
                    turns[side].append(turn)
                    rate = sum(asked.tokens) / turn.seconds
                    print(f"turn {number}: {side} {rate:.0f} tokens a second", file=sys.stderr)
    if options.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)
    return {
        "prompts": options.prompts,
        "tokens": options.tokens,
        **{side: [asdict(turn) for turn in each] for side, each in turns.items()},
        "ratio": {name: spread(turns, name) for name in ("seconds", "processor_s")},
    }


def spread(turns: dict[str, list[Turn]], name: str) -> dict[str, float]:
    """Of the ratios of what generate took to what the batch took."""
    pairs = zip(turns["generate"], turns["batch"], strict=True)
    ratios = [getattr(plain, name) / getattr(ours, name) for plain, ours in pairs]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_files", description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="default: the embedded one")
    parser.add_argument("-n", "--prompts", type=int, default=256)
    parser.add_argument("--words", type=int, default=40, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--varied", action="store_true", help="answers of different lengths")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--threads", type=int, help="of each engine (default: as always)")
    parser.add_argument("--repeat", type=int, default=5, help="turns")
    parser.add_argument("--profile", action="store_true", help="of the batch's own process, which makes it slower")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(options, Path(folder))), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
