"""The same table on every machine, in three minutes, beside what its processor gave last: python -m benchmarks.machine

| workload | what | share |
|---|---|---|
| prefill 512 | a prompt of 512 tokens | of the float peak |
| decode after 128 | one token of one sequence | of reading |
| decode after 16, batch 16 | one token of 16 sequences | of the float peak |

of Q4_0, Q8_0, Q4_K and bf16 (benchmarks.machine_files), by the kernel build that Karat takes here, int16 activations.
Reading alone and the peak of float32 multiply-adds are measured between the turns of the same run (karat.bench.limits);
a share is of their medians, so it says the same on a busy day and on a faster machine of the kind. Integers may pass
the float peak. llama.cpp stands beside where it is installed, or where --peer-path llama.cpp=FOLDER says; --no-peer
leaves it out. One that ends by itself is said and left out.

The result goes to benchmarks/results/DATE-MACHINE-machine-PROCESSOR.json, and beside the last ones of other machines
into benchmarks/machines.md. It is compared with the last one of the same processor (family, model, stepping, features:
benchmarks.processors), number of threads and build. A share, or a ratio to the same llama.cpp, that is less than nine
tenths of the last one is said in words; the exit code is then 3. Run it on a quiet machine, first of all on a new one,
and after every change of kernels:

    python -m benchmarks.machine --peer-path llama.cpp=FOLDER
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.integers import Eta, peer_paths, row
from benchmarks.machine_files import SHAPE, STORED, file_of
from benchmarks.machine_page import KIND, page, table
from benchmarks.processors import identify
from benchmarks.record import RESULTS, ROOT, commit, keep, without_folders
from karat.bench.limits import LimitMeter, MachineLimits
from karat.bench.peers.process import PeerProcess
from karat.bench.sides import Side, extra_tokens
from karat.bench.workloads import Workload, measure
from karat.errors import ExecutorError
from karat.machine import cores, memory, processor
from karat.models.opening import open_model
from karat.ops.native import supported_isas

FALLEN = 3  # the exit code
LEAST = 0.9  # of the last figure
CHUNK = 512  # tokens of a step
PEER = "llama.cpp"
SIDES = "benchmarks.integer_sides"


def workloads(prompt: int, steps: int) -> tuple[Workload, ...]:
    """`prompt` tokens of the prefill, `steps` of a turn of decode."""
    return (
        Workload("prefill", prompt),
        Workload("decode", min(128, prompt), 1, steps),
        Workload("decode", min(16, prompt), 16, max(1, steps // 4)),
    )


def measure_all(options: argparse.Namespace) -> tuple[dict[str, list[dict[str, Any]]], MachineLimits, list[str]]:
    """Rows by format; the limits; what was left out, in words."""
    planned = workloads(options.prompt_tokens, options.gen_tokens)
    num_sides = 1 + (options.path is not False)
    progress = Eta(len(STORED) * (1 + num_sides + len(planned) * (num_sides + options.repeat * (1 + num_sides))))
    meter = LimitMeter(options.threads, buffer_bytes=options.buffer_bytes)
    rows, left_out = {}, []
    for stored in STORED:
        progress(f"a file of {stored}")
        path = file_of(options.folder, stored, options.shape)
        vocab_size = int(open_model(path).config["vocab_size"])
        sides: list[Side] = []
        try:
            for make, name in _makers(path, planned, options):
                progress(f"{stored}: loading {name}")
                try:
                    sides.append(make())
                    sides[-1].prefill([1, 2, 3])
                except ExecutorError as fault:
                    if name != PEER:
                        raise
                    left_out.append(f"{stored} has no {PEER} beside it: {fault}")
                    sides[1:] = []
            rows[stored] = [
                row(workload, side, series)
                for workload in planned
                for side, series in zip(
                    sides,
                    measure(
                        workload, sides, repeat=options.repeat, vocab_size=vocab_size, meter=meter, progress=progress
                    ),
                    strict=True,
                )
            ]
        finally:
            for side in sides:
                side.close()
    return rows, meter.limits(), left_out


def _makers(path: Path, planned: Sequence[Workload], options: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    """What makes each side, and its name. `options.path`: a folder of llama.cpp, None (installed), or False (none)."""
    longest = max(
        workload.prompt_tokens
        + extra_tokens([workload.prompt_tokens] * workload.batch, CHUNK)
        + workload.num_steps(options.repeat)
        + 1
        for workload in planned
    )
    given = {"model": str(path), "num_threads": options.threads}
    karat = given | {"longest": longest, "batch": 16, "isa": supported_isas()[-1], "activations": "int16"}
    yield partial(PeerProcess, f"{SIDES}:load_karat", karat), "karat"
    if options.path is not False:
        yield partial(PeerProcess, f"{SIDES}:load_peer", given | {"peer": PEER, "path": options.path}), PEER


def figures(rows: Mapping[str, Sequence[Mapping[str, Any]]], limits: MachineLimits) -> list[dict[str, Any]]:
    """A line for each format and workload: Karat's tokens a second, its share of a limit, and how many times as fast as
    the peer it is.
    """
    lines = []
    for stored, found in rows.items():
        for own in found:
            if own["bytes"] is None:
                continue
            others = [other for other in found if other["workload"] == own["workload"] and other["bytes"] is None]
            reads = own["workload"].startswith("decode") and "batch" not in own["workload"]
            flops = own["linear_flops"] + own["attention_flops"]
            rate = (own["bytes"] if reads else flops) / own["seconds"]
            lines.append(
                {
                    "format": stored,
                    "workload": own["workload"],
                    "tokens_per_s": own["tokens_per_s"],
                    "of": "reading" if reads else "float peak",
                    "share": rate / (limits.bandwidth_median if reads else limits.fma_median),
                    "peer": others[0]["version"] if others else None,
                    "times_peer": others[0]["seconds"] / own["seconds"] if others else None,
                }
            )
    return lines


def last_of(result: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """The latest result in `folder` of the same processor, threads, build and workloads."""
    found = []
    for path in sorted(folder.glob("*-machine-*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.get("kind") == KIND and all(kept[key] == result[key] for key in ("processor", "threads", "build")):
            found.append((kept["date"], path.name, kept))
    return max(found)[2] if found else None


def compared(lines: Sequence[Mapping[str, Any]], last: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The lines, each with `was_share` and `was_times_peer` (null if there is none, or of another llama.cpp)."""
    before = {(line["format"], line["workload"]): line for line in (last["lines"] if last else ())}
    found = []
    for line in lines:
        was = before.get((line["format"], line["workload"]), {})
        same_peer = line["peer"] is not None and was.get("peer") == line["peer"]
        found.append(
            {**line, "was_share": was.get("share"), "was_times_peer": was.get("times_peer") if same_peer else None}
        )
    return found


def falls(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each figure that is less than LEAST times the last one."""
    found = []
    for line in lines:
        for now, was, what in (
            (line["share"], line["was_share"], f"of the {line['of']}" if line["of"] != "reading" else "of reading"),
            (line["times_peer"], line["was_times_peer"], f"times as fast as {line['peer']}"),
        ):
            if now is not None and was is not None and now < LEAST * was:
                found.append(
                    f"{line['format']}, {line['workload']}: {now:.2f} {what}, where it had {was:.2f}: "
                    f"{now / was:.2f} times that."
                )
    return found


def words(result: Mapping[str, Any], last: Mapping[str, Any] | None) -> list[str]:
    """What the table says beside its figures."""
    name = result["processor"]["name"]
    if last is None:
        return [f"This is the first result of {name} with {result['threads']} threads by {result['build']}."]
    when = f"{last['date'][:10]} (commit {last['commit'][:7]})"
    fallen = falls(result["lines"])
    if fallen:
        return [f"Fallen by more than a tenth since {when}:", *fallen]
    return [f"Nothing has fallen by a tenth since {when}."]


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-path", nargs="+", metavar="NAME=FOLDER", default=[], help="a folder of packages")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp")
    parser.add_argument("--threads", type=int, default=cores.num_physical_cores())
    parser.add_argument("--repeat", type=int, default=3, help="turns")
    parser.add_argument("-n", "--gen-tokens", type=int, default=32, help="steps of decode in a turn")
    parser.add_argument("-p", "--prompt-tokens", type=int, default=512)
    parser.add_argument("--shape", default=SHAPE)
    parser.add_argument("--folder", type=Path, default=Path("build/machine"), help="for the files, which are kept")
    parser.add_argument("--buffer-bytes", type=int, help="of reading; default: many times the last cache")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    folders = peer_paths(options.peer_path, parser.error).get(PEER, [])
    if len(folders) > 1:
        parser.error(f"--peer-path: expected one folder of {PEER}")
    installed: str | bool | None = None if find_spec("llama_cpp") else False
    options.path = False if options.no_peer else folders[0] if folders else installed
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    begun = time.monotonic()
    rows, limits, left_out = measure_all(options)
    result: dict[str, Any] = {
        "kind": KIND,
        "command": shlex.join(["python", "-m", "benchmarks.machine", *without_folders(given)]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begun),
        "machine": {
            "cpu": processor.cpu_model(),
            "usable_cores": cores.num_usable_cores(),
            "memory_bytes": memory.memory_bytes(),
        },
        "processor": identify(),
        "threads": options.threads,
        "build": supported_isas()[-1],
        "reading_bytes_per_s": limits.bandwidth_median,
        "float_peak_flops_per_s": limits.fma_median,
        "formats": rows,
        "left_out": left_out,
    }
    last = last_of(result, results)
    result["lines"] = compared(figures(rows, limits), last)
    said = words(result, last)
    print(
        f"{result['processor']['name']}, {options.threads} threads, {result['build']}: reading "
        f"{limits.bandwidth_median / 1e9:.1f} GB/s, float peak {limits.fma_median / 1e9:.0f} GFLOP/s; "
        f"{result['seconds']} s\n\n{table(result['lines'])}\n"
    )
    print("\n".join([*left_out, *said]))
    name = "".join(letter if letter.isalnum() else "-" for letter in result["processor"]["name"].lower())
    print(keep(f"{KIND}-{name}", result, results))
    (results.parent / "machines.md").write_text(page(results), encoding="utf-8")
    return FALLEN if last and falls(result["lines"]) else 0


if __name__ == "__main__":
    sys.exit(main())
