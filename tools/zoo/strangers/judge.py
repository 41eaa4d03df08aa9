"""What an answer of `karat diagnose --json` is worth, held against the expected one."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tools.zoo.strangers.expected import Expect

RIGHT, CLASS, PLACE, NOWHERE = "right name", "right class", "no name, right place", "no name, wrong place"
WRONG, REFUSED, UNSEEN = "WRONG NAME", "refused", "UNSEEN"  # UNSEEN: the bug moves nothing
FALSE_ALARM, HEALTHY = "FALSE ALARM", "no alarm"


@dataclass(frozen=True)
class Judged:
    outcome: str
    said: str  # the names, or where something is wrong
    bare: bool = False  # a result is wrong that has neither a name nor a pattern


def judge_healthy(answer: dict[str, Any] | None, error: str) -> Judged:
    if answer is None:
        return Judged(REFUSED, error)
    alarm = answer["verdict"] not in ("exact", "numerics")
    return Judged(FALSE_ALARM if alarm else HEALTHY, said(answer) if alarm else answer["verdict"])


def judge(wants: tuple[Expect, ...], answer: dict[str, Any] | None, error: str) -> Judged:
    """`answer`: None if the trace could not be judged; `error` says why then."""
    if answer is None:
        return Judged(REFUSED, error)
    bare = any(name not in answer["patterns"] for name in answer["unexplained"])
    found: dict[int, bool] = {}  # number of the expected mistake → named rightly, not only by its class
    for bug in bugs_of(answer):
        fits = [(i, rank_of(want, bug["classes"])) for i, want in enumerate(wants)]
        fits = [(i, fit) for i, fit in fits if fit is not None]
        if not fits:
            return Judged(WRONG, said(answer), bare)
        for i, fit in fits:
            found[i] = found.get(i, False) or fit
    if len(found) == len(wants):
        return Judged(RIGHT if all(found.values()) else CLASS, said(answer), bare)
    return Judged(PLACE if found or at_place(wants, answer) else NOWHERE, said(answer), bare)


def bugs_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What is named: mistakes of results, then those about tokens."""
    tokens = [{"classes": [finding["bugs"]], "places": ["tokens"]} for finding in answer.get("tokens", [])]
    return answer["bugs"] + [finding for finding in tokens if finding["classes"][0]]


def rank_of(want: Expect, alternatives: list[list[str]]) -> bool | None:
    """True: the first alternative is the name. False: one of the others is, or one of its class. None: nothing is."""

    def fits(names: list[str], patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    if fits(alternatives[0], want.names):
        return True
    return False if any(fits(names, (*want.names, *want.near)) for names in alternatives) else None


def at_place(wants: tuple[Expect, ...], answer: dict[str, Any]) -> bool:
    """Whether the first result that is wrong is of an op where a mistake was planted, or of a part that has it."""
    wrong = answer["unexplained"]
    if not wrong:
        return False
    segments = {result["name"]: result["segment"] for result in answer["results"]}
    ops = {op_of(name) for name in segments.get(wrong[0], wrong[:1])} | {op_of(wrong[0])}
    return any(place in ops for want in wants for place in want.places)


def op_of(name: str) -> str:
    """The last word of a result's name; "layer" for a layer's output."""
    last = name.partition("@")[0].rpartition(".")[2]
    return "layer" if last.isdigit() else last


def said(answer: dict[str, Any]) -> str:
    """The answer in one line: names with their places, then places without a name."""
    parts = [
        f"{' or '.join('+'.join(names) for names in bug['classes'])} ({places(bug['places'])})"
        for bug in bugs_of(answer)
    ]
    if answer["unexplained"]:
        parts.append(f"unexplained: {places(answer['unexplained'])}")
    return "; ".join(parts) or answer["verdict"]


def places(names: list[str]) -> str:
    """Ops, each once, and the layers: `q_rope, k_rope in 0-3`."""
    ops = list(dict.fromkeys(op_of(name) for name in names))
    layers = sorted({int(word) for name in names for word in name.partition("@")[0].split(".") if word.isdigit()})
    at = f" in {layers[0]}-{layers[-1]}" if len(layers) > 1 else f" in {layers[0]}" if layers else ""
    return ", ".join(ops[:4]) + (" …" if len(ops) > 4 else "") + at
