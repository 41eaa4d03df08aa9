"""The fixed tree along which row-parallel layers add up, so that no degree of parallelism changes a bit.

The input columns of such a layer are cut into 8 leaves; each leaf is one chain, and the sum is the binary tree over
them, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A rank owns a subtree: 8, 4, 2 or 1 leaves next to each other.
"""

import math

NUM_LEAVES = 8


def leaf_ends(columns: int, unit: int | None) -> tuple[int, ...]:
    """Where each leaf ends. `unit` columns (a head) are never cut, nor are 256 or 32 (a block of any format).

    A unit of None is a layer that is not row-parallel: one leaf. Some leaves are empty where there are few units.
    """
    if unit is None:
        return (columns,)
    block = 256 if columns % 256 == 0 else 32 if columns % 32 == 0 else 1
    whole = math.lcm(block, unit)
    if columns % whole:
        whole = block
    return tuple(leaf * (columns // whole) // NUM_LEAVES * whole for leaf in range(1, NUM_LEAVES + 1))
