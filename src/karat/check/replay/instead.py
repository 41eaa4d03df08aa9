"""What a trace has where it is wrong, as far as it is something simple: zeros, a multiple, other rows or columns."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.rounding import rounded
from karat.check.replay.finding import Array
from karat.config import FloatName

Mask = NDArray[np.bool_]

_ALIKE = 1e-3  # of the largest value: what is called equal, of an engine whose type is as fine
_PARTS = (2, 4, 8)
_SHOWN = 8
_NARROW: tuple[tuple[FloatName, float], ...] = (("bfloat16", 2.0**-8), ("float16", 2.0**-11))


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """What the axes of a result are. tokens, positions [rows]; unit: half a unit in the last place of the engine's
    type; has_keys: the last axis is keys, not columns."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    unit: float
    has_keys: bool


def instead(got: Array, right: Array, wrong: Mask, places: Places) -> str:
    """Words for what stands in the place of the wrong values; "" if it is nothing that is known here.

    got, right, wrong [rows, heads, columns or keys].
    """
    with np.errstate(all="ignore"):
        values, meant = got[wrong], right[wrong]
        if not (np.isfinite(values).all() and np.isfinite(meant).all()):
            return _not_finite(values, meant)
        if not values.any():
            return "zeros"
        size, alike = float(np.abs(meant).max()), max(_ALIKE, 4 * places.unit)
        if np.abs(values - meant).max() < 10 * alike * size:
            return _narrow(values, places.unit)
        factor = float(values @ meant / (meant @ meant)) if size else 0.0
        if np.abs(values - factor * meant).max() < alike * size * abs(factor):
            return f"the right values × {factor:.4g}"
        if places.has_keys:
            return ""
        near = alike * size
        rows: Mask = np.logical_or.reduce(wrong, axis=(1, 2))
        heads: Mask = np.logical_or.reduce(wrong, axis=(0, 2))
        return _heads(got[rows], right[rows], heads, near) or _tokens(got, right, rows, places, near)


def _not_finite(values: Array, meant: Array) -> str:
    if np.isnan(values).all():
        return "NaN"
    if np.isneginf(values).all() and np.isfinite(meant).all():
        return "masked keys that should be visible"
    if np.isneginf(meant).all() and np.isfinite(values).all():
        return "visible keys that should be masked"
    if np.isinf(values).all():
        return "infinity"
    return "NaN or infinity among them" if np.isnan(values).any() or np.isposinf(values).any() else ""


def _narrow(values: Array, unit: float) -> str:
    """Whether the values are a narrower type's, bit by bit."""
    found = (dtype for dtype, of in _NARROW if of > unit and np.array_equal(rounded(values, dtype), values))
    return next((f"numbers of {dtype}" for dtype in found), "")


def _heads(got: Array, right: Array, heads: Mask, near: float) -> str:
    """Values of other heads, or of other equal parts of the columns."""
    if len(heads) > 1:
        every = [right[:, head] for head in range(len(heads))]
        found = [_first(got[:, head], every, near) for head in np.flatnonzero(heads)]
        if None not in found:
            return f"the right values of head{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
    for n in _PARTS:
        if got.shape[2] % n == 0 and got.shape[2] > n:
            parts = np.split(right[:, heads], n, axis=2)
            order = [_first(part, parts, near) for part in np.split(got[:, heads], n, axis=2)]
            if None not in order and order != list(range(n)):
                return f"of {n} equal parts of the columns, the right values of parts {', '.join(map(str, order))}"
    return ""


def _first(x: Array, among: list[Array], near: float) -> int | None:
    return next((number for number, other in enumerate(among) if np.abs(x - other).max() < near), None)


def _tokens(got: Array, right: Array, rows: Mask, places: Places, near: float) -> str:
    """Values of other tokens."""
    rng = np.random.default_rng(0)
    line = rng.standard_normal(right[0].size)
    along = right.reshape(len(right), -1) @ line
    wrong = np.flatnonzero(rows)
    found = [int(np.argmin(np.abs(along - got[row].reshape(-1) @ line))) for row in wrong]
    if any(np.abs(got[row] - right[other]).max() >= near for row, other in zip(wrong, found, strict=True)):
        return ""
    shifts = {int(places.positions[other] - places.positions[row]) for row, other in zip(wrong, found, strict=True)}
    if len(shifts) == 1 and (shift := shifts.pop()):
        far = f"{abs(shift)} position{'s' * (abs(shift) > 1)} {'before' if shift < 0 else 'after'}"
        return f"the right values of the token {far}"
    names = ", ".join(str(places.tokens[other]) for other in found[:_SHOWN])
    return f"the right values of token{'s' * (len(found) > 1)} {names}{' …' if len(found) > _SHOWN else ''}"
