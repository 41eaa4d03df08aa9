"""`karat batch` beside LLM.generate on the same prompts: python -m benchmarks.batch_files [MODEL]

Each side has a model of its own, loaded before and warmed up, and as many sequences at a time; they take turns. A
turn's prompts are new, and those of both sides. Answers have --tokens tokens, whatever they say. Prints one JSON
object: tokens a second of each turn, and the ratios, batch to generate, of the turns.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from karat.batch_files.asking import AppHere, PatientPlace
from karat.batch_files.here import engine_here
from karat.batch_files.journal import Journal
from karat.batch_files.lines import LineReading
from karat.batch_files.running import Batch, BatchMeter, answer_pending, write_results
from karat.batch_files.sources import RequestLines
from karat.engine.async_llm import AsyncLLM
from karat.engine.llm import LLM
from karat.request import SamplingParams
from karat.server.settings import ServerSettings

WORDS = "a fox and the lantern went over old hills to see how far their river might go before winter came".split()


def prompts_of(number: int, length: int) -> list[str]:
    return [" ".join(random.choices(WORDS, k=length)) for _ in range(number)]


async def batch_turn(here: AppHere, num_each: int, prompts: list[str], tokens: int, folder: Path) -> float:
    """Tokens a second, from reading the input to the written output."""
    source, journal = folder / "in.jsonl", folder / "journal"
    journal.unlink(missing_ok=True)
    fields = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    source.write_text("".join(json.dumps({"prompt": prompt, **fields}) + "\n" for prompt in prompts))
    begun = time.perf_counter()
    batch = Batch(RequestLines(source), LineReading({}), 0, Journal(journal))
    meter = BatchMeter(len(prompts))
    await answer_pending(batch, [PatientPlace(here, 60)], num_each, meter, lambda text: None)
    num_good, num_bad = write_results(batch, folder / "out", folder / "errors", times=True)
    elapsed = time.perf_counter() - begun
    batch.journal.close()
    assert (num_good, num_bad, meter.num_tokens) == (len(prompts), 0, tokens * len(prompts))
    return meter.num_tokens / elapsed


def generate_turn(llm: LLM, prompts: list[str], tokens: int) -> float:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - begun
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return tokens * len(prompts) / elapsed


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    llm = LLM(options.model, max_num_seqs=options.max_num_seqs)
    settings = ServerSettings(model_names=("m",))

    async def opened() -> AsyncLLM:
        return await AsyncLLM.open(options.model, max_num_seqs=options.max_num_seqs)

    async with engine_here(opened, settings, receipts=False) as (here, engine):
        turns: dict[str, list[float]] = {"batch": [], "generate": []}
        for turn in range(options.repeat + 1):
            prompts = prompts_of(options.prompts if turn else options.max_num_seqs, options.words)
            for side in ("batch", "generate") if turn % 2 else ("generate", "batch"):
                if side == "batch":
                    rate = await batch_turn(here, 2 * engine.max_num_seqs, prompts, options.tokens, folder)
                else:
                    rate = await asyncio.to_thread(generate_turn, llm, prompts, options.tokens)
                if turn:
                    turns[side].append(rate)
                    print(f"turn {turn}: {side} {rate:.0f} tokens a second", file=sys.stderr)
    ratios = [ours / plain for ours, plain in zip(turns["batch"], turns["generate"], strict=True)]
    spread = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {"prompts": options.prompts, "tokens": options.tokens, "tokens_per_s": turns, "ratio": spread}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_files", description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", help="default: the embedded one")
    parser.add_argument("-n", "--prompts", type=int, default=256)
    parser.add_argument("--words", type=int, default=40, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5, help="turns")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(options, Path(folder))), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
