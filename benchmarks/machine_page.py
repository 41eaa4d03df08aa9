"""A page with the last table of each machine that benchmarks.machine measured: benchmarks/machines.md, which every
measurement writes anew; python -m benchmarks.machine_page prints it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

KIND = "machine"
DECODE = "decode after 128"
HEAD = """# Machines

What `python -m benchmarks.machine` gave last on each machine, beside what it gave the time before, and how far its
decode ranged in all its results (`results/*-machine-*.json`). The goal of decode is 0.85 of reading. Memory of the same
virtual machine may give twice as much at one time as at another: shares fall where it gives more, as products take as
long as before. The page is made from the results: `python -m benchmarks.machine_page`.
"""


def page(results: Path) -> str:
    machines: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path in results.glob("*-machine-*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.get("kind") != KIND:
            continue
        key = json.dumps([kept[name] for name in ("processor", "threads", "build")])
        machines.setdefault(key, []).append((kept["date"], path.name, kept))
    sections = [section(sorted(found, key=lambda one: one[:2])) for found in machines.values()]
    return "\n".join([HEAD, *sorted(sections)])


def section(found: Sequence[tuple[str, str, Mapping[str, Any]]]) -> str:
    """Of one machine, by its results from the first to the last."""
    _, file, last = found[-1]
    processor = last["processor"]
    rates = [kept["reading_bytes_per_s"] / 1e9 for _, _, kept in found]
    shares: dict[str, list[float]] = {}
    for _, _, kept in found:
        for line in kept["lines"]:
            if line["workload"] == DECODE:
                shares.setdefault(line["format"], []).append(line["share"])
    ranges = ", ".join(f"{stored} {min(of):.2f} to {max(of):.2f}" for stored, of in shares.items())
    return (
        f"## {processor['name']}, {last['threads']} threads, {last['build']}\n\n"
        f"[{last['date'][:10]}](results/{file}), commit {last['commit'][:8]}: reading {rates[-1]:.1f} GB/s, float peak "
        f"{last['float_peak_flops_per_s'] / 1e9:.0f} GFLOP/s.\n\n{table(last['lines'])}\n\n"
        f"Decode in {len(found)} results, of reading: {ranges}. Reading gave {min(rates):.1f} to {max(rates):.1f} "
        "GB/s.\n"
    )


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    head = ("format", "workload", "tok/s", "share", "last", "× llama.cpp", "last")
    found = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        numbers = [line["share"], line["was_share"], line["times_peer"], line["was_times_peer"]]
        cells = ["–" if number is None else f"{number:.2f}" for number in numbers]
        cells[0] += f" of {line['of']}"
        found.append(f"| {line['format']} | {line['workload']} | {line['tokens_per_s']:.1f} | {' | '.join(cells)} |")
    return "\n".join(found)


if __name__ == "__main__":
    print(page(RESULTS), end="")
