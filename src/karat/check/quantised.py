"""A file of rounded weights beside the model it was made of: how far each tensor is from the original."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from karat.check.model import CheckedModel
from karat.check.weights import CheckpointWeights
from karat.checkpoint.weights import Weight
from karat.quant import FORMATS

_PART = 1 << 22  # values that are compared at a time
# The relative distance (RMS of the difference over RMS of the original) that a type's rounding stays below on weights
# as they are trained (2 bits: 0.34); another tensor is about 1.4 away.
_FAR = 0.5
# A unit in the last place of plain types, relative, and their smallest step: what rounding or truncation may do.
_UNITS = {"F64": (2.0**-23, 2.0**-149), "F32": (2.0**-23, 2.0**-149), "F16": (2.0**-10, 2.0**-24),
          "BF16": (2.0**-7, 2.0**-133)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Distances:
    """Lines for people, what is no rounding, and figures by type and tensor."""

    lines: Sequence[str]
    faults: Sequence[str]
    facts: dict[str, Any]


def distances(model: CheckedModel, original: CheckedModel) -> Distances:
    """The relative distance of every tensor to the original's, the worst named.

    A tensor of another shape, or further away than any rounding takes it, is a fault; of a plain type, one element is.
    """
    ours, theirs = model.weights(), original.weights()
    by_type: dict[str, list[float]] = {}
    found: dict[str, float] = {}
    faults = []
    for name, weight in model.stored.items():
        right = original.stored.get(name)
        if right is None or right.shape != weight.shape:
            has = "has no such tensor" if right is None else f"has {list(right.shape)}"
            faults.append(f"{name}: {list(weight.shape)} here, and the original {has}")
            continue
        found[name], stranger = _relative(name, weight, ours, theirs)
        by_type.setdefault(weight.dtype, []).append(found[name])
        if not found[name] < _FAR:
            faults.append(f"{name} ({weight.dtype}): {found[name]:.3g} of its size away from the original's")
        elif stranger is not None:
            faults.append(f"{name} ({weight.dtype}): {stranger}, which no rounding to {weight.dtype} makes")
        weight.release()
        right.release()
    lines = []
    for dtype, values in by_type.items():
        format_ = FORMATS.get(dtype)
        kind = f"{8 * format_.block_bytes / format_.block_size:g} bits" if format_ else "plain"
        lines.append(
            f"{dtype} ({kind}): {len(values)} tensors, {np.mean(values):.2g} of their size away from the original"
        )
    if found:
        worst = max(found, key=found.__getitem__)
        lines.append(f"furthest from the original: {worst}, {found[worst]:.2g}")
    return Distances(lines, faults, {"original": str(original.path), "tensors": found})


def _relative(
    name: str, weight: Weight, ours: CheckpointWeights, theirs: CheckpointWeights
) -> tuple[float, str | None]:
    """RMS of the difference over RMS of the original, a part of the rows at a time; and an element that is not its own.

    The element is the one that is furthest beyond a unit in the last place; None for a block format, where each element
    depends on the rest of its block.
    """
    rows = weight.shape[0]
    step = max(1, _PART // max(1, int(np.prod(weight.shape[1:]))))
    unit, least = _UNITS.get(weight.dtype, (0.0, np.inf))
    off = size = furthest = 0.0
    stranger = None
    for start in range(0, rows, step):
        a, b = (w.rows(name, np.dtype(np.float64), start, min(start + step, rows)) for w in (ours, theirs))
        error = np.abs(a - b)
        off += float(np.vdot(error, error))
        size += float(np.vdot(b, b))
        error -= unit * np.abs(b) + least
        place = np.unravel_index(int(error.argmax()), error.shape)
        if error[place] > furthest:
            furthest = float(error[place])
            index = [start + int(place[0]), *map(int, place[1:])]
            stranger = f"element {index} is {a[place]:.6g}, and {b[place]:.6g} in the original"
    return float(np.sqrt(off / size)) if size > 0 else 0.0 if off == 0 else float("inf"), stranger
