"""Exact numbers rounded to float32 as IEEE 754 says, for tests of what a contract rounds."""

import math
from fractions import Fraction

import numpy as np


def nearest_float32(value: Fraction) -> np.float32:
    """`value` rounded to float32 once, to nearest, ties to even; beyond the largest number infinity."""
    if value == 0:
        return np.float32(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(size / unit) * unit  # of Fraction: halves to even
    if rounded >= Fraction(2) ** 128:
        return np.float32(math.copysign(math.inf, value))
    return np.float32(math.copysign(float(rounded), value))
