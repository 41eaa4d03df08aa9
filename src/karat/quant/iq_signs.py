"""Eight signs in seven bits: the eighth sign is chosen so that the number of minus signs is even."""

import numpy as np
from numpy.typing import NDArray

from karat.quant.bits import signs


def _even_signs() -> NDArray[np.float32]:
    seven = np.arange(128, dtype=np.uint8)
    table = signs(seven | np.bitwise_count(seven) << np.uint8(7))
    table.flags.writeable = False
    return table


EVEN_SIGNS = _even_signs()  # [128, 8], of 1 and -1
