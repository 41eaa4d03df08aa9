"""The fixed tree of sums of row-parallel layers: no degree of parallelism changes a bit.

The input columns of such a layer are cut into 8 leaves. Each leaf is summed as one chain, and the leaves are added as a
binary tree. A rank owns a subtree: 8, 4, 2 or 1 neighbouring leaves.

    columns  | leaf 0 | leaf 1 | leaf 2 | leaf 3 | leaf 4 | leaf 5 | leaf 6 | leaf 7 |
             (( 0   +    1 )  +  ( 2   +    3 )) + (( 4   +    5 )  +  ( 6   +    7 ))
    2 ranks  | rank 0                            | rank 1                            |
"""

NUM_LEAVES = 8
ROWS_TOGETHER = 64  # rows of a matrix that the native executor packs together: ranks share out whole ones


def leaf_ends(columns: int, unit: int | None) -> tuple[int, ...]:
    """The column at which each leaf ends.

    `unit` columns are never cut (karat.models.cut_units); `columns` is a multiple of it. With fewer than 8 units some
    leaves are empty. A unit of None means a layer that is not row-parallel: it has one leaf.
    """
    if unit is None:
        return (columns,)
    assert columns % unit == 0, f"{columns} columns in units of {unit}"
    return tuple(leaf * (columns // unit) // NUM_LEAVES * unit for leaf in range(1, NUM_LEAVES + 1))
