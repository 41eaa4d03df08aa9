"""Runs a strangers' engine with each of its bugs, has each trace diagnosed as a user does, and counts.

    python -m tools.zoo strangers [--engine numpy|pytorch] [--traces full|layers|logits] [--seconds N] [--only NAME]
                                  [--every N] [--seed S] [--keep FOLDER]

A bug that moves nothing, or not enough, is an error. Exit code 0: every goal is reached; 1: one is missed, or a bug
moves nothing; 2: with --only, where counts say nothing.
"""

import argparse
import importlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.zoo.strangers.expected import Expect
from tools.zoo.strangers.judge import CLASS, HEALTHY, PLACE, RIGHT, UNSEEN, WRONG, Judged, judge, judge_healthy
from tools.zoo.strangers.recorder import KINDS

# Each module has BUGS, EXPECTED, HEALTHY (settings), VISIBLE, models, run_bug, run_healthy and effect.
ENGINES = {"numpy": "tools.zoo.strangers.runs", "pytorch": "tools.zoo.strangers.pytorch.runs"}
KARAT = Path(sys.executable).with_name("karat")
NAMED = {"full": 0.9, "layers": 0.7, "logits": 0.3}  # the share of bugs that get the right name or class, at least


def diagnose(trace: Path, model: Path, seconds: float) -> tuple[dict[str, Any] | None, str, float]:
    """The answer, what else was said, and how long it took."""
    start = time.monotonic()
    command = [KARAT, "diagnose", trace, "--model", model, "--json", "--quiet", "--seconds", str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(ended.stdout) if ended.returncode in (0, 1) and ended.stdout.strip() else None
    return answer, ended.stderr.strip().rpartition("\n")[2], time.monotonic() - start


def judged(
    run: Any, model: Path, wants: tuple[Expect, ...] | None, args: argparse.Namespace, name: str
) -> tuple[Judged, float]:
    trace = args.folder / f"{name}.trace"
    run.write(trace)
    answer, error, took = diagnose(trace, model, args.seconds)
    if args.keep:
        trace.with_suffix(".json").write_text(json.dumps(answer, indent=1), encoding="utf-8")
    else:
        trace.unlink()
    return (judge(wants, answer, error) if wants else judge_healthy(answer, error)), took


def case(bug: Any, args: argparse.Namespace) -> tuple[Judged, float]:
    """One bug. Whether it moves anything is seen in everything that the engine computes."""
    runs = args.runs
    whole = runs.run_bug(bug, args.folder, args.draw)
    right = runs.run_healthy(bug.setting, bug.model, args.folder, args.draw, forced=whole)
    if (moved := runs.effect(whole, right)) < runs.VISIBLE:
        return Judged(UNSEEN, f"the bug moves nothing ({moved:.1e})"), 0.0
    recorded = runs.run_bug(bug, args.folder, args.draw, args.traces)
    return judged(recorded, args.folder / bug.model, runs.EXPECTED[bug.name], args, bug.name)


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.zoo strangers", description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=list(ENGINES), default="numpy", help="whose bugs")
    parser.add_argument("--traces", choices=list(KINDS), default="full", help="what is recorded")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each diagnosis")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the bugs, every Nth only")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="of models and prompts")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep models, traces and answers there")
    args = parser.parse_args(argv)
    args.runs = importlib.import_module(ENGINES[args.engine])
    if unknown := set(args.only) - {bug.name for bug in args.runs.BUGS}:
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")
    args.draw = int.from_bytes(args.seed.encode(), "big") % 2**31
    with tempfile.TemporaryDirectory() as temporary:
        args.folder = args.keep or Path(temporary)
        args.runs.models(args.folder, args.draw)
        return count(args)


def count(args: argparse.Namespace) -> int:
    shown = f"--engine {args.engine} --traces {args.traces} --seconds {args.seconds:g} --every {args.every}"
    print(f"`python -m tools.zoo strangers {shown} --seed {args.seed}`\n")
    row("bug", "kind", "expected", "said", "s", "")
    row(*["---"] * 6)
    outcomes: Counter[str] = Counter()
    of_parts: Counter[bool] = Counter()
    bare: list[str] = []
    for bug in args.runs.BUGS[:: args.every]:
        if not args.only or bug.name in args.only:
            found, took = case(bug, args)
            row(f"`{bug.name}`", bug.group, bug.expected, found.said, f"{took:.1f}", found.outcome)
            outcomes[found.outcome] += 1
            bare += [bug.name] if found.bare else []
            of_parts[found.outcome in (RIGHT, CLASS)] += bug.group == "part"
    healthy: Counter[str] = Counter()
    for name, (model, setting) in () if args.only else args.runs.HEALTHY.items():
        right = args.runs.run_healthy(replace(setting, kind=args.traces), model, args.folder, args.draw)
        found, took = judged(right, args.folder / model, None, args, name.replace(" ", "-"))
        row(name, "healthy", "no bug", found.said, f"{took:.1f}", found.outcome)
        healthy[found.outcome] += 1
    print("\n" + ", ".join(f"{outcome}: {number}" for outcome, number in outcomes.most_common()) + "\n")
    if bare:
        print(f"Without a pattern: {', '.join(bare)}\n")
    return goals(outcomes, of_parts, healthy, bare, args)


def goals(
    outcomes: Counter[str], of_parts: Counter[bool], healthy: Counter[str], bare: list[str], args: argparse.Namespace
) -> int:
    """Print each goal beside what was reached."""
    all_of_them = sum(outcomes.values())
    named = outcomes[RIGHT] + outcomes[CLASS]
    share = NAMED[args.traces]
    table = [
        (f"right name or class ≥ {share:.0%}", f"{named} of {all_of_them}", named >= share * all_of_them),
        ("wrong names 0", str(outcomes[WRONG]), not outcomes[WRONG]),
        (
            "healthy runs without an alarm: all",
            f"{healthy[HEALTHY]} of {healthy.total()}",
            healthy.total() == healthy[HEALTHY],
        ),
        ("answers without name and pattern 0", str(len(bare)), not bare),
        ("bugs that move something: all", f"{all_of_them - outcomes[UNSEEN]} of {all_of_them}", not outcomes[UNSEEN]),
    ]
    row("goal", "counted", "")
    row(*["---"] * 3)
    for goal, counted, reached in table:
        row(goal, counted, "reached" if reached else "missed")
    placed = named + outcomes[PLACE]
    print(
        f"\nThe place is right in {placed} of {all_of_them}. In a part: {of_parts[True]} of {of_parts.total()} named."
    )
    return 2 if args.only else int(not all(reached for *_, reached in table))
