"""The zoo's counts as tables in Markdown, a row a bug, as docs/diagnosis.md has them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from tools.zoo.goals import counted, named
from tools.zoo.run import Case

_ODD = ("wrong", "silent", "missed")


def rows_table(results: Iterable[tuple[str, list[Case]]]) -> dict[str, Counter[str]]:
    """Print a row for each bug as soon as it is counted; return the outcomes of each."""
    print("| bug | cases | named | in a class | no observable difference | otherwise said | nothing said |")
    print("|---|---|---|---|---|---|---|", flush=True)
    rows: dict[str, Counter[str]] = {}
    odd: list[Case] = []
    beside = 0
    for bug, cases in results:
        beside += sum(bool(case.unexplained) and case.outcome in ("right", "class") for case in cases)
        counts = rows[bug] = Counter(case.outcome for case in cases)
        wrong = Counter(
            " and ".join(case.said) or "unexplained" for case in cases if case.outcome in ("wrong", "silent")
        )
        classes = Counter(said for case in cases if case.outcome == "class" for said in case.said if " = " in said)
        said = ", ".join(f"{name} ({n})" for name, n in wrong.items())
        in_class = ", ".join(f"{name} ({n})" for name, n in classes.items())
        print(
            f"| {bug} | {counted(counts)} | {counts['right']} | {in_class} | {counts['unseen']} | {said} | "
            f"{counts['missed'] or ''} |",
            flush=True,
        )
        odd += [case for case in cases if case.outcome in _ODD or (case.counts and case.unexplained)]
    _remark(odd)
    if beside:
        print(f"\n{beside} of those named have places beside the name that nothing explains.")
    _summary(rows)
    return rows


def pairs_table(cases: list[Case], within: Collection[str]) -> tuple[Counter[str], Counter[str]]:
    """Print two rows: pairs within one op (called as in `within`), and from anywhere; return the outcomes of both."""
    print("| pairs | cases | both named | of these in a class | one, or neither, and nothing wrong | wrongly |")
    print("|---|---|---|---|---|---|", flush=True)
    found = []
    for name, chosen in (("within one op", True), ("from anywhere", False)):
        counts = Counter(case.outcome for case in cases if (case.bug in within) is chosen)
        rest = counts["silent"] + counts["missed"]
        print(f"| {name} | {counted(counts)} | {named(counts)} | {counts['class']} | {rest} | {counts['wrong']} |")
        found.append(counts)
    _remark(case for case in cases if case.outcome in _ODD)
    _summary(dict(enumerate(found)))
    return found[0], found[1]


def _remark(cases: Iterable[Case]) -> None:
    """The data to repeat the cases that went wrong, as comments."""
    print()
    for case in cases:
        print(f"<!-- {case.outcome}: {case.bug}, {case.seed}, said {case.said} unexplained {case.unexplained[:3]} -->")


def _summary(rows: Mapping[object, Counter[str]]) -> None:
    total = sum(rows.values(), Counter[str]())
    good, size = named(total), counted(total)
    print(
        f"\n{good} of {size} named ({good / max(1, size):.1%}), {total['class']} of them in a class, {total['wrong']} "
        f"wrongly; {total['unseen']} more without an observable difference."
    )
