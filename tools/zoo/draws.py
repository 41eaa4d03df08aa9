"""Draws of cases, of single bugs and of pairs, until enough of them can be observed."""

import random
from collections.abc import Callable

from tools.zoo.faults import ROWS
from tools.zoo.run import Case, run_case

TRIES = 20  # draws for each wanted case
_BY_BUG = {row.bug: row for row in ROWS if not row.part}
# Two faults of one op that do not undo each other and do not patch the same function.
ONE_OP = (
    ("rope-theta", "rope-pairing"),
    ("rope-position", "rope-pairing"),
    ("rope-theta", "rope-position"),
    ("scale-missing", "gqa-tile"),
    ("scale-twice", "gqa-tile"),
    ("scale-missing", "mask-off-by-one"),
    ("scale-twice", "mask-missing"),
    ("norm-offset", "norm-eps-outside"),
    ("norm-offset", "norm-eps"),
    ("activation", "gate-up-swapped"),
    ("embed-scale", "embed-row"),
    ("tie-wrong", "logit-scale"),
    ("bias-missing", "transposed"),
    ("bias-missing", "dtype-trunc"),
    ("tie-wrong", "softcap"),
)
_ALONE = {"kv-stale", "overflow-fp16", "byte-order", "dtype-misread", "mask-nan"}
# Faults that replace one and the same part of the model.
_ATTENTION = {
    "mask-off-by-one",
    "mask-missing",
    "mask-misaligned",
    "mask-window",
    "softmax-axis",
    "gqa-tile",
    "heads-order",
    "rope-on-v",
    "softcap",
}
_ROTARY = {"rope-pairing", "rope-missing-k", "rope-twice", "rope-partial", "qk-norm-missing"}
_SHARDS = {"shard-dim", "reduce-missing"}
_REPLACING = (_ATTENTION, _ROTARY, _SHARDS)
# Faults that replace a part of the model that other faults patch: these come second.
_LAST = _SHARDS | {"norm-missing", "rope-partial", "rope-on-v"}


def cases_of(count: int, run: Callable[[str], Case | None], seed: str) -> list[Case]:
    """Cases until `count` of them can be observed, with the cases that cannot; fewer after many draws.

    run(seed) gives None if the drawn model cannot have the bug.
    """
    found: list[Case] = []
    for index in range(TRIES * count):
        if sum(case.counts for case in found) == count:
            break
        case = run(f"{seed}-{index}")
        found += [] if case is None else [case]
    return found


def a_pair(rng: random.Random, *, within: bool) -> tuple[str, str]:
    """Two bugs of one op; or any two others that do not replace the same part of the model."""
    if within:
        return rng.choice(ONE_OP)
    plain = [row.bug for row in ROWS if not row.part and row.bug not in _ALONE and not row.bug.startswith("quant-")]
    while True:
        first, second = two = rng.sample(plain, 2)
        is_of_one_op = (first, second) in ONE_OP or (second, first) in ONE_OP
        if not is_of_one_op and all(sum(bug in same for bug in two) < 2 for same in _REPLACING):
            return (second, first) if first in _LAST else (first, second)


def pairs(count: int, seed: str, seconds: float) -> list[Case]:
    """Half of the pairs within one op, half from anywhere; `count` that can be observed, or fewer after many draws."""
    rng = random.Random(seed)
    found: list[Case] = []
    observed = 0
    for index in range(TRIES * count):
        if observed == count:
            break
        two = a_pair(rng, within=observed % 2 == 1)
        case = run_case([_BY_BUG[bug] for bug in two], f"{seed}-pair-{index + 1}", seconds=seconds)
        if case is not None:
            found.append(case)
            observed += case.counts
    return found
