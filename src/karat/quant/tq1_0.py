"""TQ1_0: 256 values of -1, 0 or 1 in 54 bytes: 48 bytes of five each, four bytes of four each, a float16 scale.

A byte is a fraction of 256, rounded up, whose digits to base 3 are the values plus 1. The first 32 bytes hold values 0
to 159, one run of 32 for each digit; the next 16 bytes the next 80 and the next four the last 16 likewise.
"""

import numpy as np

from karat.quant.format import Blocks, Format, Values, half

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def unpack(blocks: Blocks) -> Values:
    runs = [
        (blocks[:, None, start:end] * _POWERS[:num_digits]).reshape(
            len(blocks), -1
        )  # modulo 256: the digits that follow
        for start, end, num_digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    digits = (np.concatenate(runs, axis=1).astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return half(blocks, 52) * (digits.astype(np.int8) - np.int8(1)).astype(np.float32)


FORMAT = Format("TQ1_0", ggml_type=34, block_size=256, block_bytes=54, unpack=unpack)
