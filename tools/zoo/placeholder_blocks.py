"""Valid blocks at random, for the formats that Karat reads and does not write: random bytes under a scale that fits."""

import numpy as np
from numpy.typing import NDArray

from karat.quant import Format

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]

# First byte of the float16 scale.
_HALVES = {"IQ1_S": 0, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0, "TQ1_0": 52, "TQ2_0": 64}


def placeholder(format_: Format, values: Floats) -> Blocks:
    """Blocks [n, block_bytes] about as large as values [n, block_size], which also seed them."""
    rng = np.random.default_rng(np.frombuffer(values.tobytes()[:64], np.uint32))
    blocks = rng.integers(0, 256, (len(values), format_.block_bytes), np.uint8)
    wanted = float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
    if format_.name == "NVFP4":  # an E4M3 number for each group, from 2**-6 to 2**-5
        blocks[:, :4] = rng.integers(0x08, 0x10, (len(blocks), 4))
        return blocks
    if format_.name == "MXFP4":
        blocks[:, 0] = 127
        blocks[:, 0] += np.rint(np.log2(wanted / _sizes(format_, blocks))).astype(np.int8).view(np.uint8)
        return blocks
    if format_.name == "E4M3":
        blocks[:, :4] = np.ones((len(blocks), 1), "<f4").view(np.uint8)
        blocks[:, :4] = (wanted / _sizes(format_, blocks)).astype("<f4")[:, None].view(np.uint8)
        return blocks
    _put(format_, blocks, np.ones(len(blocks)))
    _put(format_, blocks, wanted / _sizes(format_, blocks))
    return blocks


def _sizes(format_: Format, blocks: Blocks) -> NDArray[np.float64]:
    """Root mean square of each block."""
    return np.sqrt(np.square(format_.dequantize(blocks), dtype=np.float64).mean(axis=1))


def _put(format_: Format, blocks: Blocks, scales: NDArray[np.float64]) -> None:
    halves = scales.astype("<f2")
    if format_.name == "IQ1_M":  # four bits on top of each of four words, the lowest first
        words = np.ascontiguousarray(blocks[:, 48:]).view("<u2")
        fours = halves.view("<u2")[:, None] >> np.array([0, 4, 8, 12], np.uint16) & np.uint16(15)
        blocks[:, 48:] = (words & np.uint16(0x0FFF) | fours << np.uint16(12)).astype("<u2").view(np.uint8)
        return
    at = _HALVES[format_.name]
    blocks[:, at : at + 2] = halves[:, None].view(np.uint8)
