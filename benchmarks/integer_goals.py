"""The goals of linear layers on integers, beside what benchmarks.integers measured: one line each.

A goal is for processors with AVX2 only, or with VNNI. llama.cpp beside AVX2 is a build that has no more than that: the
side whose name has "avx2" in it (--peer-path llama.cpp=FOLDER names a side after its folder).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AVX2, VNNI = "AVX2 only", "VNNI"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Goal:
    """`figure` is "of_reading" or "attention_of_peak", or the side that it is beside: "llama.cpp", "openvino" or
    "before". `least`: by AVX2 only and by VNNI.
    """

    part: str
    workload: str  # its first words
    formats: tuple[str, ...]
    width: str
    figure: str
    least: tuple[float, float]


_DECODED = ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_NL", "Q5_0")
GOALS = (
    Goal("prefill", "prefill", ("Q4_0", "Q4_K_M"), "int16", "llama.cpp", (1.35, 1.25)),
    Goal("prefill", "prefill", ("Q4_0", "Q4_K_M"), "int8", "llama.cpp", (2.0, 2.0)),
    Goal("batch", "decode", ("Q4_0",), "int16", "llama.cpp", (1.4, 1.4)),
    Goal("batch", "decode", ("Q4_0",), "int8", "llama.cpp", (2.0, 2.0)),
    Goal("decode", "decode", _DECODED, "int16", "of_reading", (0.92, 0.92)),
    Goal("decode", "decode", ("Q4_0",), "int16", "llama.cpp", (1.4, 1.15)),
    Goal("decode", "decode", ("Q4_K_M",), "int16", "llama.cpp", (1.5, 1.3)),
    Goal("long", "prefill 8192", ("Q4_0",), "int16", "before", (1.2, 1.25)),
    Goal("long", "prefill 8192", ("Q4_0",), "int16", "attention_of_peak", (0.75, 0.75)),
    Goal("long", "prefill 512", ("Q4_0",), "int16", "before", (1.4, 1.6)),
    Goal("openvino", "prefill", ("Q4_0",), "int8", "openvino", (1.2, 1.0)),
    Goal("real", "prefill", (), "int16", "llama.cpp", (3.0, 3.0)),
    Goal("real", "decode", (), "int16", "llama.cpp", (2.0, 2.0)),
)


def lines(part: str, results: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """The goals of a part, each with its ratio by format and build: `reached` says whether it is at least the goal.
    Rows that were not measured have none.
    """
    found = []
    for goal in GOALS:
        for name in goal.formats or tuple(results):
            if goal.part == part:
                found += [
                    {
                        "what": f"{row['workload']}, {name}, {goal.width}",
                        "build": row["side"].split()[0],
                        "beside": goal.figure if beside is None else beside,
                        "ratio": ratio,
                        "goal": least,
                        "reached": ratio >= least,
                    }
                    for row, least in _rows(goal, results.get(name, ()))
                    for beside, ratio in _figures(goal, row)
                ]
    return found


def as_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, a line each."""
    head = ("what", "build", "beside", "ratio", "goal", "")
    rows = [
        (line["what"], line["build"], line["beside"].replace("_", " "), f"{line['ratio']:.2f}", f"≥ {line['goal']:g}")
        for line in found
    ]
    marks = ["reached" if line["reached"] else "missed" for line in found]
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*table, *(f"| {' | '.join([*row, mark])} |" for row, mark in zip(rows, marks, strict=True))])


def _rows(goal: Goal, rows: Rows) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Karat's rows that the goal is for, each with the least that its build should reach."""
    for row in rows:
        build, _, width = row["side"].partition(" ")
        kind = _kind(build)
        if row["bytes"] is not None and width == goal.width and row["workload"].startswith(goal.workload) and kind:
            yield row, goal.least[kind == VNNI]


def _kind(build: str) -> str | None:
    """Goals are for AVX2 alone, and for builds with VNNI; not for the others."""
    if build == "avx2":
        return AVX2
    return VNNI if build.endswith("vnni") or build in ("avx512-intel", "avx512-amx") else None


def _figures(goal: Goal, row: Mapping[str, Any]) -> Iterator[tuple[str | None, float]]:
    if goal.figure in ("of_reading", "attention_of_peak"):
        if row[goal.figure] is not None:
            yield None, row[goal.figure]
        return
    build = row["side"].split()[0]
    for side, ratio in row["beside"].items():
        if goal.figure == "before":
            is_it = side == f"{build} before"
        else:
            is_it = side.split()[0] == goal.figure
        if goal.figure == "llama.cpp":
            is_it = is_it and ("avx2" in side) == (_kind(build) == AVX2)
        if is_it:
            yield side, ratio
