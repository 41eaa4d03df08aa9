"""A file of rounded weights beside the model it was made of: how far each tensor is from the original."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from karat.check.files.block_errors import judges_values, strange_block
from karat.check.model.checked import CheckedModel
from karat.check.model.weights import CheckpointWeights
from karat.checkpoint.gguf import GgufCheckpoint
from karat.checkpoint.weights import Weight
from karat.models.families import FAMILIES
from karat.quant import FORMATS

_PART = 1 << 22  # values that are compared at a time
# The relative distance (RMS of the difference over RMS of the original) that rounding stays below, also to 1.6 bits
# (0.5 of trained weights): zeros are 1 away, another tensor about 1.4.
_FAR, _FAR_PLAIN = 1.0, 0.5
# A unit in the last place of plain types, relative, and their smallest step: what rounding or truncation may do.
_UNITS = {
    "F64": (2.0**-23, 2.0**-149),
    "F32": (2.0**-23, 2.0**-149),
    "F16": (2.0**-10, 2.0**-24),
    "BF16": (2.0**-7, 2.0**-133),
}


@dataclass(frozen=True, slots=True)
class Distances:
    """Lines for people, what is no rounding, and figures by type and tensor."""

    lines: Sequence[str]
    faults: Sequence[str]
    facts: dict[str, Any]


def distances(model: CheckedModel, original: CheckedModel) -> Distances:
    """The relative distance of every tensor to the original's, the worst named.

    A tensor of another shape, or with one element (of a plain type) or one block that no rounding makes, is a fault.
    """
    originals = _as_stored(model, original)
    ours, theirs = model.weights(), CheckpointWeights(originals)
    weighed = _states_importance(model)
    by_type: dict[str, list[float]] = {}
    found: dict[str, float] = {}
    faults = []
    for name, weight in model.stored.items():
        right = originals.get(name)
        if right is None or right.shape != weight.shape:
            has = "has no such tensor" if right is None else f"has {list(right.shape)}"
            faults.append(f"{name}: {list(weight.shape)} here, and the original {has}")
            continue
        found[name], stranger = _relative(name, weight, ours, theirs)
        by_type.setdefault(weight.dtype, []).append(found[name])
        if weight.is_quantised and (block := strange_block(weight, right, weighed=weighed)) is not None:
            faults.append(f"{name} ({weight.dtype}): {block}, which no rounding to {weight.dtype} makes")
        elif not found[name] < (_FAR if weight.is_quantised else _FAR_PLAIN):
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
        lines += _how_sharp(by_type)
        worst = max(found, key=found.__getitem__)
        lines.append(f"furthest from the original: {worst}, {found[worst]:.2g}")
    return Distances(lines, faults, {"original": str(original.path), "tensors": found})


def _as_stored(model: CheckedModel, original: CheckedModel) -> dict[str, Weight]:
    """The original's weights as a file of the model's kind has them: GGUF files have 1 + weight of some norms."""
    if not isinstance(model.checkpoint, GgufCheckpoint):
        return dict(original.stored)
    form = FAMILIES[original.config.model_type].gguf
    return {name: form.as_stored(original.config, weight).settled() for name, weight in original.stored.items()}


def _states_importance(model: CheckedModel) -> bool:
    """Whether a GGUF file states, as llama.cpp's quantiser does, that an importance matrix weighed its roundings."""
    checkpoint = model.checkpoint
    return isinstance(checkpoint, GgufCheckpoint) and any(
        key.startswith("quantize.imatrix.") for key in checkpoint.metadata.values
    )


def _how_sharp(types: Collection[str]) -> list[str]:
    """What was compared, by kind of type."""
    blocks = sorted(dtype for dtype in types if dtype in FORMATS)
    by_value = [dtype for dtype in blocks if judges_values(dtype)]
    whole = [dtype for dtype in blocks if not judges_values(dtype)]
    lines = [f"every value of {', '.join(by_value)} is where rounding puts it in its block"] if by_value else []
    if whole:
        lines.append(
            f"of {', '.join(whole)}, whose numbers stand for several values, no whole block is another's; "
            "one wrong number there cannot be told from rounding"
        )
    return lines


def _relative(
    name: str, weight: Weight, ours: CheckpointWeights, theirs: CheckpointWeights
) -> tuple[float, str | None]:
    """RMS of the difference over RMS of the original; and, in words, the element furthest beyond one unit in the last
    place (None: no element is, or the format has blocks, where an element depends on the rest of its block).

    Reads a part of the rows at a time.
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
