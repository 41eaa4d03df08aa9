"""What receipts cost: python -m benchmarks.receipts [MODEL]

Prints one JSON object. verify: seconds of an answer and of its verification, for several lengths, and their ratio.
stream: gaps in milliseconds between two tokens of a stream (median, most), alone and while the longest receipt is
verified in the same engine. first_token: seconds from the start of an engine's process to its first token, with and
without the thread that hashes the weights, in turns; hash: seconds of hashing alone.

--processor-time: for a machine that has other work.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from karat import LLM, AsyncLLM, SamplingParams
from karat.receipts import Receipt
from karat.receipts.fingerprint import Fingerprinting

PROMPT = "Once upon a time, in a village by the sea,"


def verifying(llm: LLM, lengths: list[int], clock: Callable[[], float]) -> tuple[list[dict[str, Any]], Receipt]:
    """Each length's seconds of answer and verification, the better of two; and the last receipt."""
    found = []
    for length in lengths:
        params = SamplingParams(temperature=0.8, seed=length, max_tokens=length, ignore_eos=True)
        answers, verdicts, output = list[float](), list[float](), None
        for _ in range(2):
            before = clock()
            (output,) = llm.generate(PROMPT, params, receipt=True)
            answers.append(clock() - before)
            before = clock()
            verdict = llm.verify(output.outputs[0].receipt)
            verdicts.append(clock() - before)
            assert verdict.kind == "identical", verdict
        assert output is not None
        seconds = {"answer_s": round(min(answers), 3), "verify_s": round(min(verdicts), 3)}
        found.append({"tokens": length, **seconds, "ratio": round(min(answers) / min(verdicts), 1)})
    receipt: Receipt = output.outputs[0].receipt
    return found, receipt


async def gaps(llm: AsyncLLM, receipt: Receipt, *, beside: bool, num: int = 200) -> dict[str, float]:
    """The gaps of a stream of `num` tokens, after which the verification may still run."""
    params = SamplingParams(temperature=0, max_tokens=num, ignore_eos=True)
    times, verifying = list[float](), None
    async for _ in llm.stream("One day", params):
        times.append(time.perf_counter())
        if beside and verifying is None:
            verifying = asyncio.create_task(llm.verify(receipt))
    between = sorted(1000 * (b - a) for a, b in pairwise(times))
    if verifying is not None:
        assert (await verifying).kind == "identical"
    return {"median_ms": round(statistics.median(between), 1), "most_ms": round(between[-1], 1)}


async def first_token(model: str | None) -> float:
    before = time.perf_counter()
    async with await AsyncLLM.open(model) as llm:
        await llm.generate("One day", SamplingParams(temperature=0, max_tokens=1))
        return time.perf_counter() - before


def first_tokens(model: str | None, num_turns: int) -> dict[str, Any]:
    """Medians of `first_token`, and all of it, after one that is dropped. The two take turns at going first."""
    asyncio.run(first_token(model))
    found: dict[str, list[float]] = {"with": [], "without": []}
    for turn in range(num_turns):
        for name in sorted(found, reverse=turn % 2 == 1):
            with patch.object(Fingerprinting, "begin") if name == "without" else nullcontext():
                found[name].append(round(asyncio.run(first_token(model)), 3))
    return {"median_s": {name: round(statistics.median(values), 3) for name, values in found.items()}, "all_s": found}


async def streams(model: str | None, receipt: Receipt) -> dict[str, Any]:
    async with await AsyncLLM.open(model) as llm:
        await llm.fingerprint()
        return {name: await gaps(llm, receipt, beside=name == "beside") for name in ("alone", "beside")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", help="folder, GGUF file or name (default: the embedded model)")
    parser.add_argument("--lengths", default="50,214", help="of answers, in tokens")
    parser.add_argument("--turns", type=int, default=9, help="of the first token")
    parser.add_argument("--processor-time", action="store_true", help="verify and hash alone, in seconds of one thread")
    args = parser.parse_args()
    clock = time.process_time if args.processor_time else time.perf_counter
    with LLM(args.model, threads=1 if args.processor_time else None) as llm:
        before = clock()
        llm.fingerprint()
        hash_s = clock() - before
        verified, receipt = verifying(llm, [int(length) for length in args.lengths.split(",")], clock)
    if args.processor_time:
        print(json.dumps({"verify": verified, "hash_s": round(hash_s, 3)}))
        return
    result = {"verify": verified, "hash_s": round(hash_s, 3), "first_token": first_tokens(args.model, args.turns)}
    print(json.dumps(result | {"stream": asyncio.run(streams(args.model, receipt))}))


if __name__ == "__main__":
    main()
