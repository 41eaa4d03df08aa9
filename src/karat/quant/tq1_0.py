"""TQ1_0: 256 values in 54 bytes. A value is scale * (digit - 1): -1, 0 or 1 times the scale.

    byte 0                    32                   48                  52       54
         | values 0 to 159    | values 160 to 239  | values 240 to 255 | scale |
           5 digits a byte      5 digits a byte      4 digits a byte     f16

A byte is a fraction of 256, rounded up, with the digits of base 3. Digit d of byte j in a part of n bytes is value
n * d + j of that part.
"""

import numpy as np

from karat.quant.format import Blocks, Format, Values, half

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def unpack(blocks: Blocks) -> Values:
    # The product is modulo 256: it drops the digits before the one that is read.
    runs = [
        (blocks[:, None, start:end] * _POWERS[:num_digits]).reshape(len(blocks), -1)
        for start, end, num_digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    digits = (np.concatenate(runs, axis=1).astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return half(blocks, 52) * (digits.astype(np.int8) - np.int8(1)).astype(np.float32)


FORMAT = Format("TQ1_0", ggml_type=34, block_size=256, block_bytes=54, unpack=unpack)
