"""The fixed tree along which row-parallel layers add up, so that no degree of parallelism changes a bit.

The input columns of such a layer are cut into 8 leaves; each leaf is one chain, and the sum is the binary tree over
them, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A rank owns a subtree: 8, 4, 2 or 1 leaves next to each other.
"""

NUM_LEAVES = 8


def leaf_ends(columns: int, unit: int | None) -> tuple[int, ...]:
    """Where each leaf ends: `unit` columns, which divide them, are never cut (karat.models.cut_units says how many).

    A unit of None is a layer that is not row-parallel: one leaf. Some leaves are empty where there are few units.
    """
    if unit is None:
        return (columns,)
    assert columns % unit == 0, f"{columns} columns in units of {unit}"
    return tuple(leaf * (columns // unit) // NUM_LEAVES * unit for leaf in range(1, NUM_LEAVES + 1))
