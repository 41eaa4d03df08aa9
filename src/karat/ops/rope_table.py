"""Cosine and sine of rotary position embedding: one table, with the same bits on every machine, for all executors.

Models are trained with float32 frequencies, so the frequencies are part of the model. They are computed in float32, in
the same steps as in transformers, from IEEE operations and a power that is rounded once (from 40 decimal digits). An
angle is the float32 product of frequency and position. Its cosine and sine are computed in float64 from additions and
multiplications only, because the last bit of a library function changes with the CPU, and rounded once to the table's
dtype. Scaling: linear, llama3 (Llama 3.1), yarn (arXiv 2309.00071), longrope (arXiv 2402.13753), proportional (Gemma
4), given factors (GGUF).
"""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from karat.config import ProportionalRope, RopeConfig

# π/2 in three parts. The first two have 33 significant bits, so their products with a quadrant number of up to 20 bits
# are exact in float64.
_HALF_PI = (
    float.fromhex("0x1.921fb54400000p+0"),
    float.fromhex("0x1.0b4611a600000p-34"),
    float.fromhex("0x1.3198a2e037073p-69"),
)
_TERMS = 9  # of each Taylor series on ±π/4; the first one left out is below 2⁻⁵⁸
_DIGITS = 40
_CHUNK = 1024  # positions
_PI = Decimal("3.141592653589793238462643383279502884197")


@dataclass(frozen=True, slots=True)
class CosSin:
    """cos and sin [positions, head_dim / 2]; column i turns the pair (i, i + head_dim / 2)."""

    cos: NDArray[np.floating]
    sin: NDArray[np.floating]


def table_bytes(head_dim: int, num_positions: int, itemsize: int) -> int:
    """The most bytes of memory that a table takes: cosine and sine, and an executor's copy of both."""
    return 2 * 2 * num_positions * (head_dim // 2) * itemsize


def cos_sin_table(
    rope: RopeConfig, *, head_dim: int, num_positions: int, dtype: np.dtype[np.floating], growth: float = 0.0
) -> CosSin:
    """The table for positions 0 … num_positions - 1."""
    frequencies = inverse_frequencies(rope, head_dim)
    table = CosSin(*(np.empty((num_positions, head_dim // 2), dtype) for _ in range(2)))
    for start in range(0, num_positions, _CHUNK):  # float64 intermediates of all positions: 20 times the result's bytes
        stop = min(start + _CHUNK, num_positions)
        positions = np.arange(start, stop, dtype=np.float32)
        angles = positions[:, None] * frequencies[None, :]  # [positions, head_dim / 2] float32
        factors = (rope.attention_factor * growths(rope, growth, np.arange(start, stop)))[:, None]
        cos, sin = cos_sin(angles.astype(np.float64))
        table.cos[start:stop] = cos * factors
        table.sin[start:stop] = sin * factors
    return table


def growths(rope: RopeConfig, growth: float, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 + growth · ln(1 + ⌊position / original length⌋) for each position, in the float32 steps of transformers."""
    if not growth:
        return np.ones(len(positions))
    lengths, index = np.unique(positions // rope.original_max_position_embeddings, return_inverse=True)
    with localcontext() as context:
        context.prec = _DIGITS
        logarithms = np.array([float(Decimal(1 + length).ln()) for length in lengths.tolist()])
    factors = np.float32(1) + np.float32(growth) * logarithms.astype(np.float32)
    return factors.astype(np.float64)[index]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """[head_dim / 2] float32: radians per position, scaling applied."""
    with localcontext() as context:
        context.prec = _DIGITS
        powers = [float(Decimal(rope.theta) ** Decimal(float(e))) for e in exponents(head_dim)]
    return scaled_frequencies(rope, np.array(powers).astype(np.float32))


def exponents(head_dim: int) -> NDArray[np.float32]:
    """[head_dim / 2]: the power of theta that each pair's wavelength is."""
    return np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)


def scaled_frequencies(rope: RopeConfig, wavelengths: NDArray[np.float32]) -> NDArray[np.float32]:
    """[head_dim / 2]: radians per position, scaling applied, of wavelengths in positions per radian."""
    one = np.float32(1)
    match rope.rope_type:
        case "default":
            return one / wavelengths
        case "linear":
            return one / wavelengths / np.float32(rope.factor)
        case "proportional":
            assert isinstance(rope, ProportionalRope)
            turned = np.arange(len(wavelengths)) < rope.turned_pairs(2 * len(wavelengths))
            return np.where(turned, one / wavelengths / np.float32(rope.factor), np.float32(0))
        case "factors":
            # `karat check` also computes tables of a wrong head_dim: columns beyond the factors use the last one.
            columns = np.minimum(np.arange(len(wavelengths)), len(rope.factors) - 1)
            return one / wavelengths / np.array(rope.factors, np.float32)[columns]
        case "longrope":
            columns = np.minimum(np.arange(len(wavelengths)), len(rope.factors) - 1)
            return one / (np.array(rope.factors, np.float32)[columns] * wavelengths)
        case "llama3":
            return _llama3(one / wavelengths, rope)
        case "yarn":
            kept = one / wavelengths
            slowed = one / (np.float32(rope.factor) * wavelengths)
            share = one - _yarn_ramp(rope, 2 * len(wavelengths))
            return slowed * (one - share) + kept * share


def _llama3(frequencies: NDArray[np.float32], rope: RopeConfig) -> NDArray[np.float32]:
    """Frequencies of long waves divided by `factor`, those of short waves unchanged, those between blended."""
    one, length = np.float32(1), np.float32(rope.original_max_position_embeddings)
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    wavelengths = one / frequencies * np.float32(2 * math.pi)
    is_long = wavelengths > np.float32(rope.original_max_position_embeddings / rope.low_freq_factor)
    is_short = wavelengths < np.float32(rope.original_max_position_embeddings / rope.high_freq_factor)
    slowed = frequencies / np.float32(rope.factor)
    blend = (one / wavelengths * length - low) / np.float32(high - low)
    blended = (one - blend) * frequencies / np.float32(rope.factor) + blend * frequencies
    return np.where(is_long, slowed, np.where(is_short, frequencies, blended))


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """[head_dim / 2] from 0 (the frequency is kept) to 1 (it is divided by the factor).

    A column gets 0 if it turns more than beta_fast times in the original context, 1 if fewer than beta_slow times.
    """

    def column(num_turns: float) -> Decimal:
        turns = Decimal(rope.original_max_position_embeddings) / (Decimal(num_turns) * 2 * _PI)
        return head_dim * turns.ln() / (2 * Decimal(rope.theta).ln())

    with localcontext() as context:
        context.prec = _DIGITS
        low, high = float(column(rope.beta_fast)), float(column(rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    columns = np.arange(head_dim // 2, dtype=np.float32)
    ramp: NDArray[np.float32] = (columns - np.float32(low)) / np.float32(high - low)
    return np.clip(ramp, np.float32(0), np.float32(1))


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """The factor on cosine and sine for a yarn configuration that states none (arXiv 2309.00071, section 3.4)."""

    def scale(weight: float) -> Decimal:
        return Decimal(1) if factor <= 1 else Decimal("0.1") * Decimal(weight) * Decimal(factor).ln() + 1

    with localcontext() as context:
        context.prec = _DIGITS
        if mscale and mscale_all_dim:
            return float(scale(mscale) / scale(mscale_all_dim))
        return float(scale(1.0))


def cos_sin(angles: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosine and sine of |angle| < 2²⁰ radians to about 2e-16, by exact range reduction and Taylor series."""
    quadrant = np.rint(angles * (2 / math.pi))
    r = angles - quadrant * _HALF_PI[0]
    r = r - quadrant * _HALF_PI[1]
    r = r - quadrant * _HALF_PI[2]
    square = r * r
    sin, cos = np.zeros_like(r), np.zeros_like(r)
    for k in reversed(range(_TERMS)):
        sign = -1.0 if k % 2 else 1.0
        sin = sin * square + sign / math.factorial(2 * k + 1)
        cos = cos * square + sign / math.factorial(2 * k)
    sin = sin * r
    turn = quadrant.astype(np.int64) & 3
    swapped = (turn & 1).astype(bool)
    cos_sign = np.where((turn == 1) | (turn == 2), -1.0, 1.0)
    sin_sign = np.where(turn >= 2, -1.0, 1.0)
    return cos_sign * np.where(swapped, sin, cos), sin_sign * np.where(swapped, cos, sin)
