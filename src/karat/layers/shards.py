"""How layers are cut for tensor parallelism: the one description that every family, executor and format follows.

The sum of a row-parallel layer is a tree over 8 leaves of its input columns (karat.ops.leaves), and a rank owns a
subtree. A rank holds the columns of its leaves: whole heads of o_proj, whole blocks of o_proj and down_proj (Cut).

    layer                 a rank holds                      cut at
    o_proj, down_proj     columns                           the ends of its leaves
    q_proj                output features                   the heads of its o_proj columns
    gate_proj, up_proj    output features                   its down_proj columns
    k_proj, v_proj        the KV heads of its query heads   if a group of query heads is split, several ranks
                                                            hold its KV head
    experts               as gate, up and down; or whole    the ends of its leaves of columns; or of ids, where columns
                          experts                           have fewer than 8 units
    embed_tokens, lm_head rows of the vocabulary            even parts
"""

from collections.abc import Mapping
from typing import NamedTuple

from karat.ops.api import HeadGroups
from karat.ops.leaves import NUM_LEAVES, ROWS_TOGETHER, leaf_ends
from karat.ranks.group import Group

Piece = tuple[int, int]  # [start, stop) of an axis


class Cut(NamedTuple):
    """The columns of a row-parallel weight, and how many neighbours belong together whatever they are stored in.

    `whole` is a head of o_proj, or 1. Weights of equal cuts are cut at the same columns, in all layers. Experts are cut
    by a rule of their own (`cut_by_columns`), whatever other weights are stored in.
    """

    columns: int
    whole: int
    of_experts: bool = False


CutUnits = Mapping[Cut, int]  # neighbouring columns that are never cut apart (karat.models.cut_units)


class Wholes(dict[Cut, int]):
    """The units of weights whose stored types do not matter: only what belongs together is never cut apart."""

    def __missing__(self, cut: Cut) -> int:
        return cut.whole


def tree_ends(columns: int, unit: int, group: Group) -> tuple[int, ...]:
    """The column at which each rank's part of a row-parallel layer ends; `unit` columns are never cut apart."""
    per_rank = NUM_LEAVES // group.size
    return leaf_ends(columns, unit)[per_rank - 1 :: per_rank]


def own_leaves(columns: int, unit: int, group: Group) -> tuple[int, ...]:
    """The ends of this rank's leaves, counted from its first column."""
    per_rank = NUM_LEAVES // group.size
    first = part(tree_ends(columns, unit, group), group)[0]
    return tuple(end - first for end in leaf_ends(columns, unit)[group.rank * per_rank :][:per_rank])


def cut_by_columns(columns: int, unit: int) -> bool:
    """Whether each leaf of experts gets some of the columns; else it gets some of the experts."""
    return columns // unit >= NUM_LEAVES


def part(ends: tuple[int, ...], group: Group) -> Piece:
    """This rank's part [start, stop) of an axis; `ends` are the ends of all ranks' parts."""
    return (ends[group.rank - 1] if group.rank else 0, ends[group.rank])


def own_heads(num_heads: int, unit: int, group: Group) -> Piece:
    """The query heads [start, stop) of this rank; `unit` heads are never cut apart."""
    return part(tree_ends(num_heads, unit, group), group)


def own_kv_heads(num_heads: int, num_kv_heads: int, unit: int, group: Group) -> Piece:
    """The KV heads [start, stop) that this rank's query heads read."""
    per_kv = num_heads // num_kv_heads
    start, stop = own_heads(num_heads, unit, group)
    return start // per_kv, -(-stop // per_kv)


def own_kv_leaves(num_heads: int, num_kv_heads: int, unit: int, group: Group) -> tuple[int, ...]:
    """Where this rank's leaves of KV heads begin, and the end of each, counted from its first KV head.

    A KV head is in the leaf of its first query head: another rank's, if that has the beginning of its group.
    """
    per_kv, (start, _) = num_heads // num_kv_heads, own_heads(num_heads, unit, group)
    ends = (start, *(start + end for end in own_leaves(num_heads, unit, group)))
    return tuple(-(-end // per_kv) - start // per_kv for end in ends)


def own_groups(num_heads: int, num_kv_heads: int, unit: int, group: Group) -> HeadGroups:
    """The map from this rank's query heads to its KV heads. The first and the last group may be cut."""
    per_kv = num_heads // num_kv_heads
    return HeadGroups(per_kv, own_heads(num_heads, unit, group)[0] % per_kv)


def vocab_ends(vocab_size: int, group: Group) -> tuple[int, ...]:
    """The row of the vocabulary at which each rank's part ends."""
    unit = ROWS_TOGETHER if vocab_size >= ROWS_TOGETHER * NUM_LEAVES else 1
    ends = [vocab_size // unit * (rank + 1) // group.size * unit for rank in range(group.size)]
    return (*ends[:-1], vocab_size)


def rows_of(heads: Piece, head_dim: int) -> Piece:
    """The rows [start, stop) of these heads."""
    return heads[0] * head_dim, heads[1] * head_dim
