"""The eight 6-bit scales and minimums that Q4_K and Q5_K pack into twelve bytes.

Bytes 0 to 3 hold scales 0 to 3 in six bits, bytes 4 to 7 minimums 0 to 3. Bytes 8 to 11 hold the four low bits of
scales (low half) and minimums (high half) 4 to 7, whose two high bits are those of the first eight bytes.
"""

import numpy as np

from karat.quant.format import Blocks, Values, half


def unpack_scales(blocks: Blocks) -> tuple[Values, Values]:
    """Scales and minimums [n, 8] of blocks that begin with two float16 factors and these twelve bytes."""
    first, second, third = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return half(blocks, 0) * scales.astype(np.float32), half(blocks, 2) * minimums.astype(np.float32)
