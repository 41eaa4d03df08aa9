"""Counts the zoo: `python -m tools.zoo [all|full|layers|logits|pairs|healthy] --cases N [--seed S] [--only BUG]`.

Prints tables in Markdown, a row a bug, as docs/diagnosis.md has them: `all` prints every one of them. Every run draws
fresh models, prompts and faults unless a seed is given. A case counts if the bug moves a recorded result at least ten
times the noise floor, or changes a token.
"""

import argparse
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from itertools import islice

import torch
import transformers

from tools.zoo.faults import ROWS
from tools.zoo.faults_tokens import TOKEN_BUGS, token_case
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


def first(count: int, run: Callable[[str], Case | None], seed: str) -> list[Case]:
    """The first cases that there are: not every model that is drawn can have every bug."""
    tried = (run(f"{seed}-{index}") for index in range(8 * count))
    return list(islice((case for case in tried if case is not None), count))


def table(results: Iterator[list[Case]]) -> Counter[str]:
    print("| bug | cases | named | in a class | no observable difference | otherwise said | nothing said |")
    print("|---|---|---|---|---|---|---|", flush=True)
    total: Counter[str] = Counter()
    odd: list[Case] = []
    beside = 0
    for cases in results:
        beside += sum(bool(case.unexplained) and case.outcome in ("right", "class") for case in cases)
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
        odd += [case for case in cases if case.outcome in ("wrong", "silent", "missed") or case.unexplained]
    remark(odd)
    if beside:
        print(f"\n{beside} of those named have places beside the name that nothing explains.")
    return total


def remark(cases: Iterable[Case]) -> None:
    """What it takes to look at the cases that went wrong, in comments."""
    print()
    for case in cases:
        print(f"<!-- {case.outcome}: {case.bug}, {case.seed}, said {case.said} unexplained {case.unexplained[:3]} -->")


def pairs_table(results: Iterator[list[Case]]) -> Counter[str]:
    """Two rows: pairs within one op, and from anywhere."""
    print("| pairs | cases | both named | of these in a class | one, or neither, and nothing wrong | wrongly |")
    print("|---|---|---|---|---|---|", flush=True)
    cases = [case for found in results for case in found]
    total: Counter[str] = Counter()
    within = {" + ".join(two) for two in ONE_OP}
    for name, chosen in (("within one op", True), ("from anywhere", False)):
        counts = Counter(case.outcome for case in cases if (case.bug in within) is chosen)
        both, rest = counts["right"] + counts["class"], counts["unseen"] + counts["silent"] + counts["missed"]
        print(f"| {name} | {sum(counts.values())} | {both} | {counts['class']} | {rest} | {counts['wrong']} |")
        total += counts
    remark(case for case in cases if case.outcome in ("wrong", "silent", "missed"))
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


PARTS = {
    "full": "On full traces",
    "layers": "On traces of layer outputs, embeddings and logits alone",
    "logits": "On traces of logits alone",
    "pairs": "Two bugs at once, on full traces, half of the pairs within one op",
    "healthy": "Healthy runs",
}


def results_of(kind: str, args: argparse.Namespace) -> Iterator[list[Case]]:
    """Cases row by row. Bugs of tokens are told from ids, of which every trace has all: they are in `full` only."""
    if kind == "pairs":
        yield from pairs(max(4 * args.cases, 4), args.seed, args.seconds)
        return
    rows = [row for row in ROWS if not args.only or row.bug in args.only]
    for row in rows:
        yield first(args.cases, lambda seed, row=row: run_case([row], seed, kind=kind, seconds=args.seconds),
                    f"{args.seed}-{kind}-{row.bug}")  # fmt: skip
    if kind == "full":
        for bug in TOKEN_BUGS:
            if not args.only or bug in args.only:
                yield first(args.cases, lambda seed, bug=bug: token_case(bug, seed), f"{args.seed}-{bug}")


def show(kind: str, args: argparse.Namespace) -> bool:
    """Print one part; whether nothing was called wrong that is right."""
    start = time.monotonic()
    print(f"{PARTS[kind]} (`python -m tools.zoo {kind} --cases {args.cases} --seed {args.seed}`, {date.today()}):\n")
    if kind == "healthy":
        wrong = healthy(max(100 * args.cases, 100), args.seed)
    else:
        total = (pairs_table if kind == "pairs" else table)(results_of(kind, args))
        counted = sum(total.values()) - total["unseen"]
        good = total["right"] + total["class"]
        print(f"\n{good} of {counted} named ({good / max(1, counted):.1%}), {total['class']} of them in a class, "
              f"{total['wrong']} wrongly; {total['unseen']} more without an observable difference.")  # fmt: skip
        wrong = total["wrong"]
    print(f"\n<!-- {kind}: {time.monotonic() - start:.0f} s -->\n", flush=True)
    return wrong == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__)
    parser.add_argument("kind", choices=("all", *PARTS), nargs="?", default="full")
    parser.add_argument(
        "--cases", type=int, default=10, help="a row; four times as many pairs, a hundred times healthy"
    )
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each search for two mistakes at one place")
    parser.add_argument("--only", action="append", default=[])
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    kinds = tuple(PARTS) if args.kind == "all" else (args.kind,)
    good = [show(kind, args) for kind in kinds]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
