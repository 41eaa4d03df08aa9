"""From the start of a process to its first token, and the memory it takes: python -m benchmarks.cold_start [MODEL]

With --open MODEL.gguf it is only how long reading the header of that file takes.

Runs `karat run MODEL` for one token after a prompt of 16, several times, with the file in the page cache. Without
MODEL a GGUF file of a shape with random weights is written first (--shape, --weights). What is timed is the whole
process, its end included. Prints one JSON object; the least, the median and the most of each figure.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PROMPT = "a" * 16  # of random vocabularies, whose tokens are bytes


def measure(arguments: list[str], *, runs: int) -> dict[str, Any]:
    """Seconds and peak resident bytes of `karat ARGUMENTS`, after one run that is not counted."""
    seconds, peaks = [], []
    for run in range(runs + 1):
        before = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "karat", *arguments], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        elapsed = time.perf_counter() - before
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"karat {' '.join(arguments)} ended with exit code {process.returncode}")
        if run:
            seconds.append(elapsed)
            peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    return {"runs": runs, "seconds": _spread(seconds), "peak_rss_bytes": _spread(peaks)}


def measure_open(path: Path, runs: int) -> dict[str, Any]:
    """Seconds to read the header of a GGUF file, in this process."""
    from karat.checkpoint.gguf.header import read_header

    seconds = []
    for _ in range(runs):
        before = time.perf_counter()
        read_header(path)
        seconds.append(time.perf_counter() - before)
    return _spread(seconds)


def _spread(values: list[Any]) -> dict[str, Any]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def write_shape(path: Path, shape: str, stored: str) -> int:
    """A GGUF file of random weights; returns the bytes of the weights."""
    from karat.bench.peers import PeerModel
    from karat.bench.peers.gguf_file import write_peer_file
    from karat.bench.shapes import random_model
    from karat.models.registry import find_weights, read_config

    checkpoint = random_model(shape, stored=stored).checkpoint
    config = read_config(checkpoint.config)
    weights = {weight.name: weight for weight in find_weights(config, checkpoint).values()}
    write_peer_file(
        path,
        PeerModel(raw_config=checkpoint.config, config=config, weights=weights, quantize=None, num_threads=1),
    )
    return sum(weight.num_bytes for weight in weights.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--weights", default="q4_0")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--open", action="store_true")
    options = parser.parse_args()
    if options.open:
        if options.model is None:
            parser.error("--open needs the path of a GGUF file")
        print(
            json.dumps({"model": options.model, "seconds": measure_open(Path(options.model), options.runs)}, indent=2)
        )
        return
    with TemporaryDirectory() as folder:
        model, facts = options.model, {}
        if model is None:
            model = str(Path(folder) / "model.gguf")
            facts = {"shape": options.shape, "stored_bytes": write_shape(Path(model), options.shape, options.weights)}
        arguments = ["run", "-m", model, "-p", PROMPT, "--max-tokens", "1", "--temperature", "0", "-q"]
        print(json.dumps({"model": options.model, **facts, **measure(arguments, runs=options.runs)}, indent=2))


if __name__ == "__main__":
    main()
