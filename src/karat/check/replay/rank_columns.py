"""Rows that ranks share out in several pieces, of which some may have copies: those of recurrent layers.

A rank of a delta net has some value heads, and the key heads that these read, which others may have too. Its rows of
in_proj_qkv and of the convolution are those of q, of k and of v. A rank of a short convolution has its channels of each
third of in_proj.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from karat.check.model.graph import Graph, Node
from karat.check.trace.format import Array
from karat.errors import TraceError

Pieces = list[tuple[int, int]]  # of a rank: columns of the whole row, side by side in its own

_OF_KEYS = tuple(f"linear_attn.{part}" for part in ("q", "k", "q_normed", "k_normed"))
_OF_ALL = ("linear_attn.in_proj_qkv", "linear_attn.conv")
_BY_HEAD = tuple(f"linear_attn.{part}" for part in ("in_proj_a", "in_proj_b", "decay", "beta"))
_THIRDS = "conv.in_proj"
IN_PIECES = frozenset((*_OF_KEYS, *_OF_ALL, _THIRDS))


def pieces_of(graph: Graph, node: Node, arrays: Mapping[str, Sequence[tuple[int, ...]]]) -> list[Pieces]:
    """The columns of each rank, of a node whose role is one of IN_PIECES. arrays: shapes on ranks 0, 1, …."""
    if node.role == _THIRDS:
        own = _in_order([shape[1] // 3 for shape in arrays[node.name]])
        size = own[-1][1]
        return [[(third * size + start, third * size + stop) for third in range(3)] for start, stop in own]
    by_role = {role: graph.by_role[node.layer, role] for role in ("linear_attn.q", "linear_attn.delta", *_BY_HEAD)}
    (num_keys, key_dim), _, (num_heads, value_dim) = by_role["linear_attn.q"].params["shapes"]
    key_heads: tuple[int, ...] = by_role["linear_attn.delta"].params["key_heads"]
    ranks = len(arrays[node.name])
    stated = [[shape[1] for shape in arrays[by_role[role].name]] for role in _BY_HEAD if by_role[role].name in arrays]
    found: list[Pieces] = []
    for start, stop in _in_order(stated[0] if stated else [num_heads // ranks] * ranks):
        read = key_heads[start:stop]
        keys = (min(read, default=0) * key_dim, (max(read, default=-1) + 1) * key_dim)
        if node.role in _OF_KEYS:
            found.append([keys])
            continue
        size = num_keys * key_dim
        values = (2 * size + start * value_dim, 2 * size + stop * value_dim)
        found.append([keys, (size + keys[0], size + keys[1]), values])
    return found


def joined(node: Node, by_rank: Mapping[int, Array], pieces: Sequence[Pieces], size: int) -> Array:
    """The whole rows of `size` numbers; of copies that of the last rank in `by_rank`. TraceError for other widths."""
    flat = {rank: np.asarray(array).reshape(len(array), -1) for rank, array in by_rank.items()}
    one = next(iter(by_rank.values()))
    whole = np.zeros((len(one), size), one.dtype)
    for rank, array in flat.items():
        columns = _columns(pieces[rank])
        if len(columns) != array.shape[1]:
            raise TraceError(f"{node.name}: rank {rank} has {array.shape[1]} columns, expected {len(columns)}")
        whole[:, columns] = array
    return whole.reshape(len(whole), -1, *one.shape[2:])


def copies_agree(whole: Array, by_rank: Mapping[int, Array], pieces: Sequence[Pieces]) -> bool:
    """Whether ranks that hold the same columns have the same values of them."""
    flat = whole.reshape(len(whole), -1)
    return all(
        np.array_equal(flat[:, _columns(pieces[rank])], np.asarray(array).reshape(len(flat), -1), equal_nan=True)
        for rank, array in by_rank.items()
    )


def _in_order(counts: Sequence[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(counts))
    return [(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _columns(pieces: Pieces) -> list[int]:
    return [column for piece in pieces for column in range(*piece)]
