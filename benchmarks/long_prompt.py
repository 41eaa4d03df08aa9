"""How long streams wait while a long prompt is computed, and what that costs it: python -m benchmarks.long_prompt

Some streams decode; then a prompt comes in beside them. That is done in turns with steps bounded in time and with whole
chunks, on random weights of a shape. Prints one JSON object: for each the gaps between two tokens of a stream in
seconds (median, 99th percentile, most) and the prompt's tokens a second; and the cost of the bound, as a share of the
speed with whole chunks of the same turn. With --outside it is only what a step of decode spends outside the model.

--processor-time counts the seconds that this process computes, with one thread, in the engine too: for a machine that
has other work, whose kernels take as long and whose steps wait for a core.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from karat import LLM
from karat.bench.shapes import random_model
from karat.engine.engine import Engine
from karat.ops.executor import AtOnce
from karat.request import SamplingParams
from karat.request_record import Request

SEQ_TOKENS = 64  # of the prompt of each stream
_names = map(str, count())


def add(llm: LLM, num_tokens: int, max_tokens: int) -> str:
    """Queue a prompt of random tokens; its name."""
    name = next(_names)
    ids = np.random.default_rng(int(name)).integers(0, llm.config.vocab_size, num_tokens)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    llm.engine.add_request(Request(name, tuple(ids.tolist()), params, 0))
    return name


def start_streams(llm: LLM, num_streams: int) -> list[str]:
    """Streams that all have tokens."""
    streams = [add(llm, SEQ_TOKENS, llm.max_model_len - SEQ_TOKENS) for _ in range(num_streams)]
    for _ in range(num_streams + 8):
        llm.engine.step()
    return streams


def measure_gaps(
    llm: LLM, streams: list[str], prompt_tokens: int, clock: Callable[[], float], *, is_bounded: bool
) -> dict[str, Any]:
    """One prompt beside the streams, from when it comes in until its first token."""
    engine, gaps, sizes = llm.engine, [], []
    name = add(llm, prompt_tokens, 1)
    begun = last = clock()
    done = computed = 0
    while not done:
        engine.advance(is_watched=is_bounded)
        now = clock()
        assert all(engine.take(stream) for stream in streams), "a stream got no token"
        gaps.append(now - last)
        last = now
        progress = engine.prompt_progress(name)
        assert progress is not None
        sizes.append(progress.num_computed - computed)
        computed = progress.num_computed
        done = len(engine.take(name))
    return {
        "gap_s": {
            "median": statistics.median(gaps),
            "p99": float(np.quantile(gaps, 0.99, method="higher")),
            "max": max(gaps),
        },
        "prompt_tokens_per_s": prompt_tokens / (last - begun),
        "steps": len(gaps),
        "chunk": {"first": sizes[0], "median": statistics.median(sizes), "min": min(sizes), "max": max(sizes)},
    }


def measure_outside(llm: LLM, num_steps: int) -> dict[str, Any]:
    """Milliseconds of a step of decode outside the runner, and their share: the median of all steps."""
    engine, run, inside = llm.engine, llm.engine.run, 0.0
    outside, shares = [], []

    def timed(batch: Any) -> Any:
        nonlocal inside
        before = time.perf_counter()
        logits = run(batch)
        inside = time.perf_counter() - before
        return logits

    engine.run = AtOnce(timed)
    for _ in range(num_steps):
        before = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - before
        outside.append(whole - inside)
        shares.append((whole - inside) / whole)
    engine.run = run
    return {"outside_ms": 1000 * statistics.median(outside), "share": statistics.median(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--weights", default="q4_0")
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--max-step-ms", type=int, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--outside", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    clock = time.perf_counter
    if options.processor_time:
        options.threads, clock = 1, time.process_time
    model = random_model(options.shape, stored=options.weights)
    llm = LLM(
        model.checkpoint,
        tokenizer=model.tokenizer,
        max_model_len=options.prompt_tokens + 4096,
        max_step_ms=options.max_step_ms,
        threads=options.threads,
        enable_prefix_caching=False,
        generation_config="none",
    )
    llm.engine = Engine(llm.engine.run, llm.tokenizer, llm.engine.config, clock)
    facts: dict[str, Any] = vars(options) | {"executor": llm.executor}
    if options.outside:
        for num_streams in (1, 16):
            streams = start_streams(llm, num_streams)
            facts[f"batch_{num_streams}"] = measure_outside(llm, 50)
            for stream in streams:
                llm.engine.abort(stream)
    else:
        turns = []
        for _ in range(options.repeat):
            streams = start_streams(llm, options.streams)
            turn = {
                label: measure_gaps(llm, streams, options.prompt_tokens, clock, is_bounded=is_bounded)
                for label, is_bounded in (("bounded", True), ("whole_chunks", False))
            }
            turn["cost"] = 1 - turn["bounded"]["prompt_tokens_per_s"] / turn["whole_chunks"]["prompt_tokens_per_s"]
            turns.append(turn)
            for stream in streams:
                llm.engine.abort(stream)
        facts["turns"] = turns
        facts["cost"] = statistics.median(turn["cost"] for turn in turns)
        facts["p99_gap_over_bound"] = [turn["bounded"]["gap_s"]["p99"] * 1000 / options.max_step_ms for turn in turns]
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
