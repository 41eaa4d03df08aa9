"""Functions of one row of logits that sampling uses, for vocabularies of any size.

Each function gives the same bits on every machine, with the native extension or without. Searches are exact. `exp` uses
only IEEE operations (additions, products, powers of two) and is within an ulp of the true value. With the extension a
row of 150,000 logits takes some tens of microseconds.
"""

import math

import numpy as np
from numpy.typing import NDArray

from karat.ops.logits import DeviceLogits

try:
    from karat import _native
except ImportError:
    _native = None  # type: ignore[assignment]

Float64 = NDArray[np.float64]
Ids = NDArray[np.int64]

_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_ROUND = 1.5 * 2**52  # adding it rounds to an integer
_LOWEST = -746.0  # exp of it is 0
_NUM_SUMS = 8


def argmax(row: NDArray[np.floating]) -> int:
    """The index of the largest value of a row [vocab] without NaN; of equal ones the first."""
    if (values := _plain(row)) is not None:
        return _native.argmax(values)
    return int(np.argmax(row))


def finite_argmax(row: NDArray[np.floating]) -> int | None:
    """As `argmax`, if all values of the row [vocab] are finite; else None. One pass over the row, if no device has made
    it.
    """
    if isinstance(row, DeviceLogits):
        return row.top
    if (values := _plain(row)) is not None:
        found = _native.finite_argmax(values)
        return None if found < 0 else found
    return int(np.argmax(row)) if np.isfinite(row).all() else None


def largest(row: NDArray[np.floating], num: int) -> Ids:
    """The indices [num] of the largest values of a row [vocab] without NaN, ascending; of equal ones the first."""
    assert 0 < num <= len(row), f"{num} of {len(row)} values"
    if _native is not None and row.dtype in (np.float32, np.float64):
        return _native.largest(np.ascontiguousarray(row), num)
    cut = np.partition(row, -num)[-num]
    above = np.flatnonzero(row > cut)
    return np.sort(np.concatenate((above, np.flatnonzero(row == cut)[: num - len(above)]))).astype(np.int64)


def largest_values(row: NDArray[np.floating], num: int) -> tuple[Ids, NDArray[np.floating]]:
    """As `largest`, with their values [num]. Of logits on a device no others are read."""
    if isinstance(row, DeviceLogits) and (found := row.largest(num)) is not None:
        return found
    kept = largest(row, num)
    return kept, row[kept]


def exp_weights(row: NDArray[np.floating], temperature: float) -> Float64:
    """exp((x - max) / temperature) of a row [values] without NaN, in float64."""
    top = float(row[argmax(row)])
    if _native is not None and row.dtype in (np.float32, np.float64):
        return _native.exp_weights(np.ascontiguousarray(row), top, temperature)
    with np.errstate(over="ignore"):  # with a tiny temperature all but the largest become 0, as they should
        return exp((row.astype(np.float64) - top) / temperature)


def log_sum_exp(row: NDArray[np.floating]) -> tuple[float, float]:
    """The largest value of a finite row [vocab], and log(sum(exp(x - largest))), both float64.

    A log-probability is x minus both, subtracted in turn, so that nothing cancels. The last bit comes from the system's
    logarithm.
    """
    top = float(row[argmax(row)])
    if (values := _plain(row)) is not None:
        return top, math.log(_native.exp_sum(values, top))
    terms = np.zeros(-(-len(row) // _NUM_SUMS) * _NUM_SUMS)
    terms[: len(row)] = exp(row.astype(np.float64) - top)
    sums = np.cumsum(terms.reshape(-1, _NUM_SUMS), axis=0)[-1]
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return top, math.log(sums[0])


def exp(x: Float64) -> Float64:
    """exp(x) of values up to 0: x = k ln 2 + r, and the Taylor series of exp(r) to the 13th power."""
    x = np.maximum(x, _LOWEST)
    count = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - count * _LN2_HIGH) - count * _LN2_LOW
    total = np.full_like(x, 1 / math.factorial(13))
    for power in range(12, -1, -1):
        total = total * r + 1 / math.factorial(power)
    k = count.astype(np.int32)
    result: Float64 = total * np.ldexp(1.0, k >> 1) * np.ldexp(1.0, k - (k >> 1))
    return result


def _plain(row: NDArray[np.floating]) -> NDArray[np.float32] | None:
    """The row as a contiguous float32 array for the extension; None where NumPy does the work."""
    return np.ascontiguousarray(row, np.float32) if _native is not None and row.dtype == np.float32 else None
