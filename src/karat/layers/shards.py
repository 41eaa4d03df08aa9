"""How layers are cut for tensor parallelism: the one description that every family, executor and format follows.

A row-parallel layer's sum is a tree over 8 leaves of its input columns (karat.ops.leaves), and a rank owns a subtree,
so what it holds is where its leaves lie: whole heads of o_proj, whole blocks of both (CutUnits). The layers that make
those columns are cut at the same places: q_proj at o_proj's heads, gate_proj and up_proj at down_proj's columns. k_proj
and v_proj follow the query heads; where a group of these is split, its KV head is held by several ranks. Rows of the
vocabulary are shared out evenly.
"""

from dataclasses import dataclass

from karat.ops.api import HeadGroups
from karat.ops.leaves import NUM_LEAVES, leaf_ends
from karat.ranks.group import Group

Piece = tuple[int, int]  # [start, stop) of an axis

_VOCAB_UNIT = 64  # rows that kernels take together


@dataclass(frozen=True, slots=True)
class CutUnits:
    """Query heads and inner features (columns of down_proj) that are never cut apart (karat.models.cut_units)."""

    heads: int
    inner: int


def tree_ends(columns: int, unit: int, group: Group) -> tuple[int, ...]:
    """Where each rank's columns of a row-parallel layer end; `unit` of them are never cut."""
    per_rank = NUM_LEAVES // group.size
    return leaf_ends(columns, unit)[per_rank - 1 :: per_rank]


def own_leaves(columns: int, unit: int, group: Group) -> tuple[int, ...]:
    """Where the leaves of this rank end, counted from its first column."""
    per_rank = NUM_LEAVES // group.size
    first = part(tree_ends(columns, unit, group), group)[0]
    return tuple(end - first for end in leaf_ends(columns, unit)[group.rank * per_rank :][:per_rank])


def part(ends: tuple[int, ...], group: Group) -> Piece:
    """This rank's part of an axis on which ranks' parts end at `ends`."""
    return (ends[group.rank - 1] if group.rank else 0, ends[group.rank])


def own_heads(num_heads: int, unit: int, group: Group) -> Piece:
    """The query heads of this rank; `unit` of them are never cut."""
    return part(tree_ends(num_heads, unit, group), group)


def own_kv_heads(num_heads: int, num_kv_heads: int, unit: int, group: Group) -> Piece:
    """The KV heads that this rank's query heads read, each held once."""
    per_kv = num_heads // num_kv_heads
    start, stop = own_heads(num_heads, unit, group)
    return start // per_kv, -(-stop // per_kv)


def own_groups(num_heads: int, num_kv_heads: int, unit: int, group: Group) -> HeadGroups:
    """Which of its KV heads each query head of this rank reads: the first and the last group may be cut."""
    per_kv = num_heads // num_kv_heads
    return HeadGroups(per_kv, own_heads(num_heads, unit, group)[0] % per_kv)


def vocab_ends(vocab_size: int, group: Group) -> tuple[int, ...]:
    """Where each rank's rows of the vocabulary end."""
    unit = _VOCAB_UNIT if vocab_size >= _VOCAB_UNIT * NUM_LEAVES else 1
    ends = [vocab_size // unit * (rank + 1) // group.size * unit for rank in range(group.size)]
    return (*ends[:-1], vocab_size)


def rows_of(heads: Piece, head_dim: int) -> Piece:
    """The rows of these heads."""
    return heads[0] * head_dim, heads[1] * head_dim
