"""Counts the zoo: `python -m tools.zoo [full|layers|logits|pairs|healthy] --cases N [--seed S] [--only BUG]`.

Prints a table in Markdown, a row a bug, as docs/diagnosis.md has it. Every run draws fresh models, prompts and faults
unless a seed is given. A case counts if the bug moves a recorded result at least ten times the noise floor.
"""

import argparse
import secrets
import time
from collections import Counter
from collections.abc import Iterator

import torch
import transformers

from tools.zoo.faults import ROWS, Row
from tools.zoo.healthy import healthy
from tools.zoo.run import Case, run_case

_BY_BUG = {row.bug: row for row in ROWS}
# Two faults of one op that do not undo each other and do not patch the same function.
ONE_OP = (
    ("rope-theta", "rope-pairing"), ("rope-position", "rope-pairing"), ("rope-theta", "rope-position"),
    ("scale-missing", "gqa-tile"), ("scale-twice", "gqa-tile"), ("scale-missing", "mask-off-by-one"),
    ("scale-twice", "mask-missing"), ("norm-offset", "norm-eps-outside"), ("norm-offset", "norm-eps"),
    ("activation", "gate-up-swapped"), ("embed-scale", "embed-row"), ("tie-wrong", "logit-scale"),
    ("bias-missing", "transposed"), ("bias-missing", "dtype-trunc"), ("tie-wrong", "softcap"),
)  # fmt: skip
_ALONE = {"kv-stale", "overflow-fp16", "byte-order", "dtype-misread", "mask-nan"}


def singles(rows: list[Row], kind: str, cases: int, seed: str, seconds: float) -> Iterator[list[Case]]:
    for row in rows:
        found: list[Case] = []
        for index in range(8 * cases):
            case = run_case([row], f"{seed}-{row.bug}-{index}", kind=kind, seconds=seconds)
            if case is not None:
                found.append(case)
            if len(found) == cases:
                break
        yield found


def table(results: Iterator[list[Case]]) -> Counter[str]:
    print("| bug | cases | named | in a class | no observable difference | otherwise said | nothing said |")
    print("|---|---|---|---|---|---|---|", flush=True)
    total: Counter[str] = Counter()
    for cases in results:
        counts = Counter(case.outcome for case in cases)
        total += counts
        wrong = Counter(
            " and ".join(case.said) or "unexplained" for case in cases if case.outcome in ("wrong", "silent")
        )
        classes = Counter(said for case in cases if case.outcome == "class" for said in case.said if " = " in said)
        said = ", ".join(f"{name} ({n})" for name, n in wrong.items())
        in_class = ", ".join(f"{name} ({n})" for name, n in classes.items())
        print(f"| {cases[0].bug} | {len(cases)} | {counts['right']} | {in_class} | {counts['unseen']} | {said} | "
              f"{counts['missed'] or ''} |", flush=True)  # fmt: skip
        for case in cases:
            if case.outcome in ("wrong", "silent", "missed"):
                print(f"<!-- {case.outcome}: {case.seed} said {case.said} unexplained {case.unexplained[:3]} -->")
    return total


def pairs(cases: int, seed: str, seconds: float) -> Iterator[list[Case]]:
    """Half of the pairs within one op, half from anywhere."""
    import random

    rng = random.Random(seed)
    plain = [row.bug for row in ROWS if row.bug not in _ALONE and not row.bug.startswith("quant-")]
    found: list[Case] = []
    index = 0
    while len(found) < cases:
        two = rng.choice(ONE_OP) if len(found) % 2 else tuple(rng.sample(plain, 2))
        index += 1
        if sum(bug in _ATTENTION for bug in two) > 1 or sum(bug in _ROTARY for bug in two) > 1:
            continue
        case = run_case([_BY_BUG[bug] for bug in two], f"{seed}-pair-{index}", seconds=seconds)
        if case is not None:
            found.append(case)
            yield [case]


# Faults that replace one and the same function of the model.
_ATTENTION = {"mask-off-by-one", "mask-missing", "mask-misaligned", "mask-window", "softmax-axis", "gqa-tile",
              "heads-order", "rope-on-v", "softcap"}  # fmt: skip
_ROTARY = {"rope-pairing", "rope-missing-k", "rope-twice", "rope-partial", "qk-norm-missing"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("kind", choices=("full", "layers", "logits", "pairs", "healthy"), nargs="?", default="full")
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each search for two mistakes at one place")
    parser.add_argument("--only", action="append", default=[])
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    start = time.monotonic()
    if args.kind == "healthy":
        return min(1, healthy(args.cases, args.seed))
    rows = [row for row in ROWS if not args.only or row.bug in args.only]
    if args.kind == "pairs":
        total = table(pairs(args.cases, args.seed, args.seconds))
    else:
        total = table(singles(rows, args.kind, args.cases, args.seed, args.seconds))
    counted = sum(total.values()) - total["unseen"]
    good = total["right"] + total["class"]
    print(f"\n{good} of {counted} named ({good / max(1, counted):.1%}), {total['class']} of them in a class; "
          f"{total['unseen']} more without an observable difference; seed {args.seed}, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
