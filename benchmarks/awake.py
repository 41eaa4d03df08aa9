"""Whether `karat serve` is awake while it computes a long prompt: python -m benchmarks.awake FILE

A server with streams that decode gets a prompt of 8,000 tokens. Until its first token, one client asks /health again
and again, the prompt's own client gets pings, and a client after another begins a stream and leaves. Prints one JSON
object, in seconds (median, 99th percentile, most): of /health, of pings beyond --ping-s, from leaving until the server
has dropped the request, and between two tokens of a stream; and the prompt's tokens a second.
"""

import argparse
import asyncio
import json
import re
import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np

from karat.bench.load.servers import MeasuredServer, free_port, karat_command
from karat.machine.cores import num_physical_cores

PING_S = 0.1
STREAM_TOKENS = 64  # of the prompt of each stream


def quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {"number": 0}
    return {
        "number": len(values),
        "median": statistics.median(values),
        "p99": float(np.quantile(values, 0.99, method="higher")),
        "max": max(values),
    }


class Asked:
    """One request under way: when each of its events and pings came."""

    def __init__(self, port: int, method: str, path: str, body: Any = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self._port = port
        self._request = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        ).encode() + content
        self.events: list[float] = []
        self.pings: list[float] = []
        self.first = asyncio.get_running_loop().create_future()
        self.text = b""

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        writer.write(self._request)
        try:
            async for line in reader:
                now = time.perf_counter()
                self.text += line
                if line.startswith(b"data: {") and b'"text":' in line:
                    self.events.append(now)
                    if not self.first.done():
                        self.first.set_result(now)
                elif line.startswith(b": ping"):
                    self.pings.append(now)
        finally:
            writer.close()


async def taken(port: int, path: str) -> tuple[float, str]:
    """Seconds that a GET took, and what it said."""
    asked, begun = Asked(port, "GET", path), time.perf_counter()
    await asked.run()
    return time.perf_counter() - begun, asked.text.decode()


async def num_busy(port: int) -> float:
    found = re.search(r"^karat_http_requests_busy (\S+)$", (await taken(port, "/metrics"))[1], re.MULTILINE)
    assert found is not None, "no gauge of requests"
    return float(found[1])


def body(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}


async def measure(port: int, options: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(options.seed)

    def drawn(num_tokens: int) -> list[int]:
        return [int(number) for number in rng.integers(options.vocab_size // 10, options.vocab_size, num_tokens)]

    streams = []
    for _ in range(options.streams):
        streams.append(Asked(port, "POST", "/v1/completions", body(drawn(STREAM_TOKENS), options.stream_tokens)))
    running = [asyncio.create_task(stream.run()) for stream in streams]
    await asyncio.gather(*(stream.first for stream in streams))
    asking, begun = body(drawn(options.prompt_tokens), 1), time.perf_counter()
    long = Asked(port, "POST", "/v1/completions", asking)
    computing = asyncio.create_task(long.run())
    healths: list[float] = []
    drops: list[float] = []

    async def ask_health() -> None:
        while True:
            healths.append((await taken(port, "/health"))[0])
            await asyncio.sleep(0.02)

    async def leave() -> None:
        while True:
            busy = await num_busy(port)
            stream = Asked(port, "POST", "/v1/completions", body(drawn(STREAM_TOKENS), options.stream_tokens))
            coming = asyncio.create_task(stream.run())
            await asyncio.sleep(0.5)  # queued or computed
            coming.cancel()
            left = time.perf_counter()
            while await num_busy(port) > busy:
                pass
            drops.append(time.perf_counter() - left)

    others = [asyncio.create_task(ask_health()), asyncio.create_task(leave())]
    first = await long.first
    for task in (*others, *running):
        task.cancel()
    await asyncio.wait([*others, *running])
    await computing
    gaps = [b - a for stream in streams for a, b in pairwise(stream.events) if begun <= b <= first]
    pings = [time_ for time_ in long.pings if time_ < first]
    return {
        "health_s": quantiles(healths),
        "pings_late_s": quantiles([b - a - PING_S for a, b in pairwise(pings)]),
        "dropped_after_s": quantiles(drops),
        "gap_s": quantiles(gaps),
        "prompt_tokens_per_s": options.prompt_tokens / (first - begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder or a GGUF file")
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--stream-tokens", type=int, default=4000, help="of each stream's answer at the most")
    parser.add_argument("--vocab-size", type=int, default=32000, help="prompts have ids below it")
    parser.add_argument("--threads", type=int, default=num_physical_cores())
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    port = free_port()
    command = karat_command(options.model, port, num_seqs=16, threads=options.threads)
    server = MeasuredServer(
        "karat", f"http://127.0.0.1:{port}", headers={}, command=[*command, "--ping-s", str(PING_S)]
    )
    try:
        server.wait(None)
        with server.awake():
            facts = vars(options) | asyncio.run(measure(port, options))
    finally:
        server.close()
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
