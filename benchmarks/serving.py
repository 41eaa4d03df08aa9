"""Many clients of `karat serve` beside llama-server, on the same GGUF: python -m benchmarks.serving FILE LLAMA_SERVER

Both servers are started once and measured in turns, while the other sleeps: 16 clients, each with a prompt of 64 tokens
that no other request has, and 64 tokens of answer, greedy, without end tokens; streamed, over HTTP on loopback. Prints
one JSON object: of each server and turn tokens a second in all, seconds to the first token and between two (median,
99th percentile), and the ratios of the medians. llama-server gets --parallel 16, -np slots of one context that holds
all, and no flag that changes what it computes; its command line is in the output.

With --one it is one client after the other, beside `LLM` in a process of its own: what the server adds. With --again
it is the time to the first token of a prompt of 2,000 tokens, cold and again.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

START_S = 120


class Answer(asyncio.Protocol):
    """What comes, and when. It is read when all has come: the client has the cores of the server."""

    def __init__(self) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def complete(port: int, body: Mapping[str, Any]) -> list[float]:
    """Seconds from the request to each event that carries text. OSError for an answer that is not 200."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    begun = time.perf_counter()
    transport, answer = await asyncio.get_running_loop().create_connection(Answer, "127.0.0.1", port)
    transport.write(head.encode() + content)
    await answer.ended
    whole = b"".join(part for _, part in answer.parts)
    if b" 200 " not in whole.partition(b"\r\n")[0]:
        raise OSError(whole[:2000].decode(errors="replace"))
    times, rest = [], b""
    for moment, part in answer.parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                times.append(moment - begun)
    return times


class Server:
    """A server in a process of its own, listening on a port of loopback."""

    def __init__(self, command: list[str], port: int) -> None:
        self.command, self.port = command, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        end = time.monotonic() + START_S
        body = {"model": "any", "prompt": [1], "max_tokens": 1, "stream": True}
        while True:
            try:
                asyncio.run(complete(self.port, body))
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Meanwhile it may run; before and after it is stopped, so that it takes no time of the other."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(30)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def prompts(rng: np.random.Generator, number: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Token ids, so that both servers compute the same; ids below 1,000 may be special and are left out."""
    return [rng.integers(1000, vocab_size, num_tokens).tolist() for _ in range(number)]


async def load(port: int, asked: list[list[int]], num_tokens: int) -> dict[str, Any]:
    """All at once."""
    bodies = [
        {
            "model": "any",
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        for prompt in asked
    ]
    begun = time.perf_counter()
    times = await asyncio.gather(*(complete(port, body) for body in bodies))
    seconds = time.perf_counter() - begun
    first = [taken[0] for taken in times]
    between = [b - a for taken in times for a, b in pairwise(taken)]
    return {
        "tokens_per_s": len(asked) * num_tokens / seconds,
        "events": [len(taken) for taken in times],
        "ttft_s": _quantiles(first),
        "itl_s": _quantiles(between),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": statistics.median(values), "p99": float(np.quantile(values, 0.99, method="higher"))}


def measure(servers: Mapping[str, Server], options: argparse.Namespace) -> dict[str, Any]:
    """Turns of both, each with the same prompts, which differ from turn to turn."""
    rng = np.random.default_rng(options.seed)
    turns = []
    for _ in range(options.repeat):
        asked = prompts(rng, options.clients, options.prompt_tokens, options.vocab_size)
        turn = {}
        for name, server in servers.items():
            with server.awake():
                turn[name] = asyncio.run(load(server.port, asked, options.tokens))
        turns.append(turn)
    return {"turns": turns}


def ratios(turns: list[dict[str, Any]]) -> dict[str, float]:
    """Of Karat's medians over turns to the other's."""

    def of(*keys: str) -> float:
        def value(turn: dict[str, Any], name: str) -> float:
            found = turn[name]
            for key in keys:
                found = found[key]
            return float(found)

        karat, other = (statistics.median(value(turn, name) for turn in turns) for name in ("karat", "llama-server"))
        return karat / other

    return {
        "tokens_per_s": of("tokens_per_s"),
        "ttft_median": of("ttft_s", "median"),
        "ttft_p99": of("ttft_s", "p99"),
        "itl_median": of("itl_s", "median"),
        "itl_p99": of("itl_s", "p99"),
    }


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


def measure_one(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """One client's whole answers from the server and from LLM, in turns; the median of their ratios."""
    rng = np.random.default_rng(options.seed)
    alone = subprocess.Popen(
        [sys.executable, "-c", ALONE, options.model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert alone.stdin is not None and alone.stdout is not None
    turns = []
    for number in range(options.repeat + 1):
        (prompt,) = prompts(rng, 1, options.prompt_tokens, options.vocab_size)
        with server.awake():
            answered = asyncio.run(load(server.port, [prompt], options.tokens))
        alone.stdin.write(json.dumps([prompt, options.tokens]) + "\n")
        alone.stdin.flush()
        times = json.loads(alone.stdout.readline())
        if number:  # the first warms both
            turns.append({"server_s": options.tokens / answered["tokens_per_s"], "llm_s": times[-1]})
    alone.stdin.close()
    alone.wait()
    return {"turns": turns, "server_over_llm": statistics.median(turn["server_s"] / turn["llm_s"] for turn in turns)}


def measure_again(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds to the first token of a prompt that is new, and of the same again."""
    rng = np.random.default_rng(options.seed)
    turns = []
    with server.awake():
        for _ in range(options.repeat):
            asked = prompts(rng, 1, 2000, options.vocab_size)
            cold, warm = (asyncio.run(load(server.port, asked, 1))["ttft_s"]["median"] for _ in range(2))
            turns.append({"cold_s": cold, "again_s": warm})
    return {"turns": turns, "again_over_cold": statistics.median(turn["again_s"] / turn["cold_s"] for turn in turns)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("llama_server", nargs="?", help="the program; without it only Karat is measured")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=32000, help="prompts have ids below it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    threads = str(options.threads)
    context = options.clients * max(256, options.prompt_tokens + options.tokens)
    port = free_port()
    karat = str(Path(sys.executable).with_name("karat"))
    command = [
        karat,
        "serve",
        options.model,
        "--port",
        str(port),
        "--threads",
        threads,
        "--quiet",
        "--served-model-name",
        "any",
    ]
    servers = {"karat": Server(command, port)}
    if options.llama_server is not None:
        port = free_port()
        command = [options.llama_server, "-m", options.model, "--port", str(port), "-np", str(options.clients)]
        servers["llama-server"] = Server([*command, "-c", str(context), "-t", threads, "-tb", threads], port)
    facts: dict[str, Any] = vars(options) | {"commands": {name: server.command for name, server in servers.items()}}
    try:
        for server in servers.values():
            server.wait()
            server.process.send_signal(signal.SIGSTOP)
        if options.one:
            facts |= measure_one(servers["karat"], options)
        elif options.again:
            facts |= measure_again(servers["karat"], options)
        else:
            facts |= measure(servers, options)
            if len(servers) > 1:
                facts["ratios"] = ratios(facts["turns"])
    finally:
        for server in servers.values():
            server.end()
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
