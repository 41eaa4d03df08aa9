"""Counts the zoo: `python -m tools.zoo [all|full|layers|logits|pairs|healthy] --cases N [--seed S] [--only BUG]`.

Prints tables in Markdown, a row a bug, as docs/diagnosis.md has them: `all` prints every one of them, each with the
goals that it has to reach. Every run draws fresh models, prompts and faults unless a seed is given. A case counts if
the bug moves a recorded result at least ten times the noise floor, or changes a token. `python -m tools.zoo strangers`
counts the bugs of two other engines (tools/zoo/strangers/count.py), with options of its own.

Exit code 0: every goal is reached. 1: one is missed. 2: none is missed, and there are too few cases to judge them all.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from datetime import date

import torch
import transformers

from karat.ops.integers import WIDTHS
from tools.zoo.draws import ONE_OP, cases_of, pairs
from tools.zoo.faults import MIXTURES, OF_FAMILIES, RECURRENT, ROWS
from tools.zoo.faults_tokens import TOKEN_BUGS, token_case
from tools.zoo.goals import EXIT_CODES, Goal, goal_lines, goals_of_healthy, goals_of_pairs, goals_of_rows, worst
from tools.zoo.healthy import healthy
from tools.zoo.run import Case, run_case
from tools.zoo.strangers.count import main as strangers
from tools.zoo.tables import pairs_table, rows_table

PARTS = {
    "full": "On full traces",
    "layers": "On traces of layer outputs, embeddings and logits alone",
    "logits": "On traces of logits alone",
    "pairs": "Two bugs at once, on full traces, half of the pairs within one op",
    "healthy": "Healthy runs",
}


def rows_of(kind: str, args: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    """Cases row by row. Bugs of tokens are told from ids, of which every trace has all: they are in `full` only, as are
    those of experts, of recurrent layers and of single families."""
    is_full = kind == "full" and args.activations is None
    for row in (*ROWS, *MIXTURES, *RECURRENT, *OF_FAMILIES) if is_full else ROWS:
        if not args.only or row.bug in args.only:
            yield (
                row.title,
                cases_of(
                    args.cases,
                    lambda seed, row=row: run_case(
                        [row], seed, kind=kind, seconds=args.seconds, activations=args.activations
                    ),
                    f"{args.seed}-{kind}-{row.title}",
                ),
            )
    for bug in TOKEN_BUGS if is_full else ():
        if not args.only or bug in args.only:
            yield bug, cases_of(args.cases, lambda seed, bug=bug: token_case(bug, seed), f"{args.seed}-{bug}")


def show(kind: str, args: argparse.Namespace) -> list[Goal]:
    """Print one part, and its goals."""
    start = time.monotonic()
    width = f" --activations {args.activations}" if args.activations else ""
    command = f"python -m tools.zoo {kind}{width} --cases {args.cases} --seed {args.seed}"
    print(f"{PARTS[kind]} (`{command}`, {date.today()}):\n")
    if kind == "healthy":
        runs = max(100 * args.cases, 100)
        goals = goals_of_healthy(runs, healthy(runs, args.seed))
    elif kind == "pairs":
        cases = pairs(max(4 * args.cases, 4), args.seed, args.seconds)
        goals = goals_of_pairs(*pairs_table(cases, {" + ".join(two) for two in ONE_OP}))
    else:
        goals = goals_of_rows(kind, rows_table(rows_of(kind, args)))
    print("\n" + "\n".join(goal_lines(goals)))
    print(f"\n<!-- {kind}: {time.monotonic() - start:.0f} s -->\n", flush=True)
    return goals


def main() -> int:
    if sys.argv[1:2] == ["strangers"]:
        return strangers(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("kind", choices=("all", *PARTS), nargs="?", default="full")
    parser.add_argument(
        "--cases", type=int, default=10, help="a row; four times as many pairs, a hundred times healthy"
    )
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each search for two mistakes at one place")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[*dict.fromkeys(row.bug for row in (*ROWS, *MIXTURES, *RECURRENT, *OF_FAMILIES)), *TOKEN_BUGS],
        metavar="BUG",
    )
    parser.add_argument(
        "--activations", choices=WIDTHS, help="models with weights in blocks, which read integers of this width"
    )
    args = parser.parse_args()
    if args.cases < 1:
        parser.error(f"--cases {args.cases}: expected a number of at least 1")
    if args.activations and args.kind in ("all", "pairs", "healthy"):
        parser.error(f"--activations is of rows, and {args.kind} has others")
    if args.only and args.kind in ("pairs", "healthy"):
        parser.error(f"--only chooses rows, and {args.kind} has none")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    kinds = tuple(PARTS) if args.kind == "all" else (args.kind,)
    goals = [goal for kind in kinds for goal in show(kind, args)]
    for goal in goals:
        if goal.state != "reached":
            print(f"{goal.state}: {goal.what}: {goal.counted}")
    return EXIT_CODES[worst(goals)]


if __name__ == "__main__":
    raise SystemExit(main())
