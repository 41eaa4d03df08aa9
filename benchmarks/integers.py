"""Linear layers on integers beside reading and other engines: python -m benchmarks.integers [--only PART …]

| part     | what                                                          | beside                            |
|----------|---------------------------------------------------------------|-----------------------------------|
| prefill  | 512 tokens; Q4_0, Q4_K_M                                      | llama.cpp                         |
| batch    | 16 sequences, a token each; Q4_0                              | llama.cpp                         |
| decode   | one token; Q4_0, Q8_0, Q4_K_M, Q6_K, IQ4_NL, Q5_0             | reading alone, llama.cpp          |
| long     | 8,192 tokens, and 512 of the same engine; Q4_0                | Karat of --before                 |
| openvino | 512 tokens; Q4_0                                              | OpenVINO GenAI by its defaults    |
| real     | 512 tokens, and one token; --model FILE                       | llama.cpp                         |

for int16 and int8, by each kernel build of --isa (by default AVX2 alone, and the fastest here); then the ratios beside
their goals (benchmarks.integer_goals). K formats on the shape of Qwen2.5-1.5B, whose rows are multiples of 256, the
others on that of Qwen2.5-0.5B; random weights, in files that are made once (benchmarks.formats). Every side has a
process of its own, which is stopped or sleeps while it is not its turn; turns alternate, with reading between them, and
take half a second or more: memory that was idle is slow for some tenths of one. A
ratio is one of medians over all turns of one run. `of reading` is the bytes of a token over its seconds, over the
median of reading.

--only and --formats choose, so that a part fits into a quiet minute and a half:

    python -m benchmarks.integers --only decode --formats Q4_0 --isa avx512-vnni
    python -m benchmarks.integers --only prefill --formats Q4_0 --peer-path llama.cpp=FOLDER

FOLDER has a build of llama-cpp-python; several may be given. One without AVX-512 has "avx2" in the folder's name: AVX2
alone is compared with it. --before PYTHON is the Python of an environment with Karat of an earlier commit, for instance
`.venv/bin/python` of a worktree in which `make native` ran.

The result goes to benchmarks/results/DATE-MACHINE-integers-PART.json; the table to stdout.
"""

import argparse
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import integer_goals
from benchmarks.earlier import Earlier
from benchmarks.formats import make_file
from benchmarks.record import RESULTS, ROOT, commit, keep, without_folders
from karat.bench.limits import LimitMeter, MachineLimits
from karat.bench.peers import PEERS
from karat.bench.peers.process import PeerProcess
from karat.bench.sides import Side, extra_tokens
from karat.bench.workloads import Series, Workload, measure
from karat.machine import cores, memory, processor
from karat.models.opening import open_model
from karat.ops.native import supported_isas

CHUNK = 512  # tokens of a step
SIDES = "benchmarks.integer_sides"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the measurement: workloads, formats, widths of activations, other engines."""

    workloads: tuple[Workload, ...]
    formats: tuple[str, ...]
    widths: tuple[str, ...]
    peers: tuple[str, ...] = ()
    has_before: bool = False  # beside Karat of --before


def parts(gen_tokens: int, prompt: int, long: int) -> dict[str, Part]:
    """The parts by name; sizes are tokens."""
    prefill = Workload("prefill", prompt)
    short = min(128, prompt)
    return {
        "prefill": Part((prefill,), ("Q4_0", "Q4_K_M"), ("int16", "int8"), ("llama.cpp",)),
        "batch": Part((Workload("decode", short, 16, gen_tokens),), ("Q4_0",), ("int16", "int8"), ("llama.cpp",)),
        "decode": Part(
            (Workload("decode", short, 1, gen_tokens),),
            ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_NL", "Q5_0"),
            ("int16",),
            ("llama.cpp",),
        ),
        "long": Part((prefill, Workload("prefill", long)), ("Q4_0",), ("int16",), has_before=True),
        "openvino": Part((prefill,), ("Q4_0",), ("int8",), ("openvino",)),
        "real": Part((prefill, Workload("decode", short, 1, gen_tokens)), (), ("int16", "int8"), ("llama.cpp",)),
    }


def shape_of(name: str) -> str:
    return "qwen2.5-1.5b" if "_K" in name else "qwen2.5-0.5b"


class Eta:
    """Progress on stderr: what is done now, and about how long the rest takes."""

    def __init__(self, num_stages: int) -> None:
        self._num_stages, self._done, self._begun = num_stages, 0, time.monotonic()

    def __call__(self, text: str) -> None:
        seconds = time.monotonic() - self._begun
        rest = f", {seconds / self._done * (self._num_stages - self._done):.0f} s left" if self._done > 2 else ""
        print(f"[{self._done + 1}/{self._num_stages}] {text}{rest}", file=sys.stderr, flush=True)
        self._done += 1


def measure_format(path: Path, part: Part, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one format: all sides of a part on one file, in turns."""
    longest = max(_longest(workload, options.repeat) for workload in part.workloads)
    batch = max(workload.batch for workload in part.workloads)
    makers = list(_makers(path, part, options, longest, batch))
    progress = Eta(len(makers) + len(part.workloads) * (len(makers) + options.repeat * (1 + len(makers))))
    sides: list[Side] = []
    rows = []
    try:
        for text, make in makers:
            progress(f"loading {path.name}: {text}")
            sides.append(make())
        vocab_size = int(open_model(path).config["vocab_size"])
        meter = LimitMeter(options.threads, buffer_bytes=options.buffer_bytes)
        for workload in part.workloads:
            series = measure(
                workload, sides, repeat=options.repeat, vocab_size=vocab_size, meter=meter, progress=progress
            )
            rows += [row(workload, side, found) for side, found in zip(sides, series, strict=True)]
        limits = meter.limits()
    finally:
        for side in sides:
            side.close()
    for found in rows:
        found |= ratios(found, rows, limits)
    return rows


def _makers(
    path: Path, part: Part, options: argparse.Namespace, longest: int, batch: int
) -> Iterator[tuple[str, Callable[[], Side]]]:
    """The sides, each with its name and what makes it."""
    karat = {"model": str(path), "num_threads": options.threads, "longest": longest, "batch": batch}
    for isa in options.isa:
        for width in part.widths:
            given = {**karat, "isa": isa, "activations": width}
            yield f"{isa} {width}", partial(PeerProcess, f"{SIDES}:load_karat", given)
        if part.has_before and options.before:
            yield f"{isa} before", partial(Earlier, options.before, {**karat, "isa": isa})
    for peer in part.peers:
        for folder in options.peer_path.get(peer, [None]):
            asked = {"model": str(path), "peer": peer, "num_threads": options.threads, "path": folder}
            yield f"{peer} {folder or ''}", partial(PeerProcess, f"{SIDES}:load_peer", asked)


def _longest(workload: Workload, repeat: int) -> int:
    extra = extra_tokens([workload.prompt_tokens] * workload.batch, CHUNK)
    return workload.prompt_tokens + extra + workload.num_steps(repeat) + 1


def row(workload: Workload, side: Side, series: Series) -> dict[str, Any]:
    """The figures of one side: seconds of the median sample, and of each turn."""
    tokens = workload.prompt_tokens if workload.kind == "prefill" else workload.batch
    seconds = statistics.median(sample.seconds for sample in series.samples)
    work = series.samples[-1].work
    return {
        "workload": workload.name,
        "side": side.name,
        "version": side.version,
        "details": side.details,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "turn_seconds": series.turn_seconds,
        "bytes": work.bytes if work else None,
        "linear_flops": work.linear_flops if work else None,
        "attention_flops": work.attention_flops if work else None,
    }


def ratios(own: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], limits: MachineLimits) -> dict[str, Any]:
    """Of one row: how many times as fast as other engines and as an earlier Karat by the same build, and shares of
    the limits.

    `attention_of_peak` is of a long prompt: FLOPs of attention over the seconds beyond those of as many chunks of the
    short one, over the median FMA peak of the build.
    """
    if own["bytes"] is None:
        return {"beside": {}, "of_reading": None, "attention_of_peak": None}
    build = own["side"].split()[0]
    beside = {
        other["side"]: other["seconds"] / own["seconds"]
        for other in rows
        if other["workload"] == own["workload"]
        and other is not own
        and (_is_peer(other) or other["side"] == f"{build} before")
    }
    own_rows = [other for other in rows if other["side"] == own["side"] and other["workload"].startswith("prefill")]
    share = None
    if len(own_rows) > 1 and own is own_rows[-1]:
        short, chunks = own_rows[0], own["linear_flops"] / own_rows[0]["linear_flops"]
        seconds = own["seconds"] - chunks * short["seconds"]
        flops = own["attention_flops"] - chunks * short["attention_flops"]
        peak = limits.fma_median * limits.fma_by_isa[_float_build(build)] / limits.fma_peak
        share = flops / seconds / peak if seconds > 0 else None
    return {
        "beside": beside,
        "of_reading": own["bytes"] / own["seconds"] / limits.bandwidth_median if "decode" in own["workload"] else None,
        "attention_of_peak": share,
    }


def _float_build(build: str) -> str:
    """Its floats are those of the build without VNNI."""
    return build.split("-")[0]


def _is_peer(row: Mapping[str, Any]) -> bool:
    return row["bytes"] is None and not row["side"].endswith(" before")


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Markdown: a line for each side that is Karat's, by format."""
    head = [
        "format",
        "workload",
        "build",
        "activations",
        "tok/s",
        "of reading",
        "attention of peak",
        "times as fast as",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, rows in results.items():
        for found in rows:
            if found["bytes"] is None:
                continue
            shares = ["" if found[key] is None else f"{found[key]:.2f}" for key in ("of_reading", "attention_of_peak")]
            beside = ", ".join(f"{other}: {ratio:.2f}" for other, ratio in found["beside"].items())
            cells = [name, found["workload"], *found["side"].split(), f"{found['tokens_per_s']:.1f}", *shares, beside]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def peer_paths(given: Sequence[str], fail: Callable[[str], Any]) -> dict[str, list[str]]:
    """NAME=FOLDER, repeated, by name."""
    found: dict[str, list[str]] = {}
    for text in given:
        name, _, folder = text.partition("=")
        if name not in PEERS or not Path(folder).is_dir():
            fail(f"--peer-path {text}: expected NAME=FOLDER, a name of {', '.join(PEERS)} and a folder of packages")
        found.setdefault(name, []).append(folder)
    return found


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="PART", help="default: all, real only with --model")
    parser.add_argument("--formats", nargs="+", metavar="TYPE", help="some of the part's")
    parser.add_argument("--widths", nargs="+", metavar="WIDTH", help="int8, int16, int24; else the part's")
    parser.add_argument("--isa", nargs="+", choices=supported_isas(), default=["avx2", supported_isas()[-1]])
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="else the part's; without a name: none")
    parser.add_argument(
        "--peer-path", nargs="+", metavar="NAME=FOLDER", default=[], help="folders of packages, a side each"
    )
    parser.add_argument("--before", metavar="PYTHON", help="with Karat of an earlier commit, beside the part long")
    parser.add_argument("--model", type=Path, metavar="FILE", help="of the part real")
    parser.add_argument("--shape", help="for all formats")
    parser.add_argument("--threads", type=int, default=cores.num_physical_cores())
    parser.add_argument("--repeat", type=int, default=5, help="turns")
    parser.add_argument("-n", "--gen-tokens", type=int, default=64, help="steps of decode in a turn")
    parser.add_argument("-p", "--prompt-tokens", type=int, default=512)
    parser.add_argument("--long", type=int, default=8192)
    parser.add_argument("--folder", type=Path, default=Path("build/formats"), help="for the files, which are kept")
    parser.add_argument("--buffer-bytes", type=int, help="of reading; default: many times the last cache")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    options.peer_path = peer_paths(options.peer_path, parser.error)
    known = parts(options.gen_tokens, options.prompt_tokens, options.long)
    names = options.only or [name for name in known if name != "real" or options.model]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{unknown[0]}: expected some of {', '.join(known)}")
    if "real" in names and not options.model:
        parser.error("--only real: give its --model FILE")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for name in names:
        part = known[name]
        chosen = replace(
            part,
            formats=tuple(options.formats or part.formats),
            widths=tuple(options.widths or part.widths),
            peers=part.peers if options.peers is None else tuple(options.peers),
        )
        if name == "real":
            files = {options.model.stem: options.model}
        else:
            files = {
                type_: make_file(options.folder, options.shape or shape_of(type_), type_, pure=False)
                for type_ in chosen.formats
            }
        found = {type_: measure_format(path, chosen, options) for type_, path in files.items()}
        goals = integer_goals.lines(name, found)
        facts = {
            "command": shlex.join(["python", "-m", "benchmarks.integers", *without_folders(given)]),
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {
                "cpu": processor.cpu_model(),
                "features": processor.cpu_features(),
                "usable_cores": cores.num_usable_cores(),
                "memory_bytes": memory.memory_bytes(),
            },
            "part": name,
            "formats": found,
            "goals": goals,
        }
        print(table(found))
        print(integer_goals.as_table(goals), end="\n\n")
        print(keep(f"integers-{name}", facts, results))


if __name__ == "__main__":
    main()
