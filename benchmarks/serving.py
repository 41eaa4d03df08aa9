"""What the server adds to `LLM` for one client: python -m benchmarks.serving MODEL

The same answers from `karat serve` and from `LLM` in a process of its own, in turns; the server sleeps while it is not
its turn. Prints one JSON object: seconds of whole answers, the median of their ratios, and the processor time of the
client, which has the server's cores: it is in the server's seconds and not in LLM's. Many clients, llama-server
beside it, and prompts that come again are measured by `karat bench serve`.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from karat.bench.load.asking import Manner
from karat.bench.load.lengths import Lengths
from karat.bench.load.prompts import ConversationShape, PlannedConversation, RandomText, Supply
from karat.bench.load.servers import MeasuredServer, free_port, karat_command
from karat.bench.load.traffic import Run, Traffic, run
from karat.machine.cores import num_physical_cores
from karat.models.opening import open_model
from karat.text import Tokenizer

ALONE = """
import json, sys, time
from karat import LLM, SamplingParams
llm = LLM(sys.argv[1], enable_prefix_caching=False)
for line in sys.stdin:
    ids, tokens = json.loads(line)
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    begun, times = time.perf_counter(), []
    for chunk in llm.stream(ids, params):
        times.append(time.perf_counter() - begun)
    print(json.dumps(times), flush=True)
"""


def measure(server: MeasuredServer, manner: Manner, supply: Supply, options: argparse.Namespace) -> dict[str, Any]:
    """Whole answers from the server and from LLM, in turns; the median of their ratios."""
    alone = subprocess.Popen(
        [sys.executable, "-c", ALONE, options.model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert alone.stdin is not None and alone.stdout is not None
    turns = []
    for number in range(options.repeat + 1):
        (conversation,) = supply.take(1)
        client_s = time.process_time()
        with server.awake():
            (record,) = asyncio.run(asked(server, manner, conversation)).records
        client_s = time.process_time() - client_s
        assert record.error is None, record.error
        alone.stdin.write(json.dumps([conversation.turns[0].prompt, options.tokens]) + "\n")
        alone.stdin.flush()
        times = json.loads(alone.stdout.readline())
        if number:  # the first warms both
            turns.append({"server_s": record.ended - record.due, "llm_s": times[-1], "client_cpu_s": client_s})
    alone.stdin.close()
    alone.wait()
    return {"turns": turns, "server_over_llm": statistics.median(turn["server_s"] / turn["llm_s"] for turn in turns)}


async def asked(server: MeasuredServer, manner: Manner, conversation: PlannedConversation) -> Run:
    client = server.client(timeout_s=600)
    try:
        return await run(client, manner, [conversation], Traffic(concurrency=1), np.random.default_rng(0))
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder or a GGUF file")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=num_physical_cores())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lengths = [Lengths("fixed", number, number) for number in (options.prompt_tokens, options.tokens)]
    tokenizer = Tokenizer.of(open_model(Path(options.model)))
    supply = Supply(
        RandomText(np.random.default_rng(options.seed), tokenizer, as_ids=True),
        ConversationShape(prompt_tokens=lengths[0], answer_tokens=lengths[1]),
        None,
    )
    port = free_port()
    command = karat_command(options.model, port, num_seqs=16, threads=options.threads)
    server = MeasuredServer("karat", f"http://127.0.0.1:{port}", headers={}, command=command)
    try:
        fields = {"model": server.wait(None), "temperature": 0, "ignore_eos": True, "stream": True}
        usage = {"stream_options": {"include_usage": True}}
        facts = vars(options) | measure(server, Manner(chat=False, fields=fields | usage), supply, options)
    finally:
        server.close()
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
