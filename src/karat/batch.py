"""ForwardBatch: one forward pass over many sequences, as one array of integers that every executor reads."""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, cycle, pairwise
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Length = Literal["tokens", "seqs", "bounds", "rows", "table"]  # bounds: seqs + 1; table: [seqs, max_blocks]

_INT32 = np.dtype(np.int32)
_NUM_COUNTS = 5  # numbers before the widths of the groups' block tables


class AnyColumn:
    """A column's name, its length, and the number that it is full of where whoever makes the batch leaves it out."""

    def __init__(self, length: Length, *, default: int | None = None) -> None:
        self.length: Length = length
        self.default = default

    def __set_name__(self, owner: object, name: str) -> None:
        self.name = name


class Column(AnyColumn):
    """A column of the batch, as a view [length]."""

    def __get__(self, batch: "ForwardBatch", kind: object = None) -> Int32:
        return batch.flat[batch.place(self.name)]


class GroupColumn(AnyColumn):
    """A column that each cache group has: a function from the group's number to the view."""

    def __get__(self, batch: "ForwardBatch", kind: object = None) -> Callable[[int], Int32]:
        def view(group: int) -> Int32:
            values = batch.flat[batch.place(self.name, group)]
            return values.reshape(batch.num_seqs, -1) if self.length == "table" else values

        return view


class ForwardBatch:
    """The tokens of one step. Sequence i owns rows query_starts[i] to query_starts[i + 1] of every column of tokens.

    token_ids     [tokens]
    positions     [tokens]       absolute; consecutive within a sequence, ending at context_lens[i] - 1
    query_starts  [seqs + 1]
    context_lens  [seqs]         keys visible to the last token of the sequence, this step's included
    logit_rows    [rows]         rows of the step whose logits are wanted, ascending; may be empty
    state_reads   [seqs]         slot of the state (karat.kv.states) that the sequence reads; -1: it has no token yet
    state_writes  [seqs]         slot of the state that it writes. A model without states has -1 in both
    slots         [tokens]             of a cache group: the slot of the token, block * block_size + offset
    block_tables  [seqs, max_blocks]   of a cache group: block of each block_size positions; unused entries are -1

    A cache group (karat.kv.groups) is the layers that keep alike; it has blocks of its own. If it has a window, entries
    before the first key that a token of the step sees are -1 or a block, and nothing reads them.

    A step of two sequences, one in decode with 5 cached tokens and one in prefill of 3 (block_size 4, one group):

        row            0        | 1     2     3
        positions      5        | 0     1     2
        slots(0)       4·b₁ + 1 | 4·c₀  +1    +2        of block_tables(0): [b₀ b₁], [c₀ -1]
        query_starts   0          1           (4)
        context_lens   6          3
        logit_rows     0                      3

    A column is one line below: a view here, a pointer in C++ (csrc/plan/columns.h is made of these lines), and a part
    of what ranks get. `flat` [numbers] int32 holds all of it, as csrc/plan/step_input.cpp and ranks read it:

        tokens | seqs | rows | block_size | groups | max_blocks of each group | columns | columns of group 0 | of 1 …

    `validate` checks the invariants of the columns and of the cache's length, in O(tokens).
    """

    __slots__ = ("block_size", "bounds", "flat", "num_groups", "num_seqs", "num_tokens")

    token_ids = Column("tokens")
    positions = Column("tokens")
    query_starts = Column("bounds")
    context_lens = Column("seqs")
    logit_rows = Column("rows")
    state_reads = Column("seqs", default=-1)
    state_writes = Column("seqs", default=-1)
    slots = GroupColumn("tokens")
    block_tables = GroupColumn("table")

    def __init__(self, flat: Int32) -> None:
        """`flat` is kept, and must not change. AssertionError unless it has the form above."""
        assert flat.dtype == _INT32 and flat.ndim == 1, "a batch is one array of int32"
        self.flat = flat
        self.num_tokens, self.num_seqs, num_rows, self.block_size, self.num_groups = flat[:_NUM_COUNTS].tolist()
        begin = _NUM_COUNTS + self.num_groups
        lengths = _lengths((self.num_tokens, self.num_seqs, num_rows), flat[_NUM_COUNTS:begin].tolist())
        self.bounds = list(accumulate(lengths, initial=begin))  # of all columns, those of one group after another
        assert self.bounds[-1] == len(flat), f"a batch of {len(flat)} numbers; its columns have {self.bounds[-1]}"

    @classmethod
    def of(cls, block_size: int, **columns: Any) -> "ForwardBatch":
        """The batch of all these columns, which are sequences of integers; those of groups are sequences by group.

        Those with a default may be left out. AssertionError for columns whose lengths do not fit together.
        """
        counts = [len(columns[name]) for name in ("token_ids", "context_lens", "logit_rows")]
        tables = columns["block_tables"]
        widths = [len(table[0]) if len(table) else 0 for table in tables]
        columns["block_tables"] = [list(chain.from_iterable(table)) for table in tables]
        for column in _OPTIONAL:
            if column.name not in columns:
                columns[column.name] = [column.default] * _sizes(counts)[column.length]
        assert columns.keys() == _NUMBERS.keys(), f"columns of a batch: {', '.join(sorted(_NUMBERS.keys() ^ columns))}"
        values = list(_OWN_VALUES(columns))
        for each in zip(*_GROUP_VALUES(columns), strict=True):
            values += each
        lengths = _lengths(counts, widths)
        assert list(map(len, values)) == lengths, _misfit(values, lengths)
        numbers = [*counts, block_size, len(widths), *widths, *chain.from_iterable(values)]
        return cls(np.array(numbers, np.int32))

    def place(self, name: str, group: int = 0) -> slice:
        """Where a column is in `flat`; `group` is that of a column of groups."""
        number = _NUMBERS[name] + group * len(GROUP_COLUMNS)
        return slice(self.bounds[number], self.bounds[number + 1])

    def validate(
        self,
        *,
        cached_lens: Sequence[int],
        caches: Sequence[tuple[int, int | None]],
        vocab_size: int,
        num_states: int = 0,
    ) -> None:
        """Raise AssertionError unless the batch continues sequences that hold `cached_lens` [seqs] tokens already.

        The cache's bookkeeping gives `cached_lens`, not the code that builds the batch: each step checks one against
        the other. `caches` are slots and window of each cache group, `num_states` the slots of states.
        """
        num_tokens, num_seqs, size = self.num_tokens, self.num_seqs, self.block_size
        assert num_tokens > 0 and num_seqs > 0, "an empty batch"
        # Lists are cheaper than a dozen NumPy calls in a small step, and a large step takes far longer than both.
        numbers: list[int] = self.flat.tolist()
        columns = [numbers[start:stop] for start, stop in pairwise(self.bounds)]
        token_ids, positions, starts, contexts, rows, reads, writes = _CHECKED(columns)
        assert starts[0] == 0 and starts[-1] == num_tokens and all(a < b for a, b in pairwise(starts)), (
            "query_starts do not cut the tokens into sequences"
        )
        assert len(cached_lens) == num_seqs, "context_lens ≠ cache length: of other sequences"
        for (start, stop), cached, context in zip(pairwise(starts), cached_lens, contexts, strict=True):
            assert cached + stop - start == context, "context_lens ≠ cache length + new tokens"
            assert positions[start:stop] == list(range(cached, context)), "positions do not continue the cache"
        _check_states(reads, writes, cached_lens, num_states)
        assert len(caches) == self.num_groups, "a batch for other cache groups"
        for group, cache in enumerate(caches):
            slots, tables = columns[len(COLUMNS) + group * len(GROUP_COLUMNS) :][: len(GROUP_COLUMNS)]
            _check_group(slots, tables, size, starts, contexts, *cache)
        assert min(token_ids) >= 0 and max(token_ids) < vocab_size, "a token id outside the vocabulary"
        assert all(a < b for a, b in pairwise(rows)) and (not rows or (rows[0] >= 0 and rows[-1] < num_tokens)), (
            "logit_rows are not ascending rows of the step"
        )


COLUMNS = tuple(column for column in vars(ForwardBatch).values() if isinstance(column, Column))
GROUP_COLUMNS = tuple(column for column in vars(ForwardBatch).values() if isinstance(column, GroupColumn))
_OWN_VALUES, _GROUP_VALUES = (itemgetter(*(c.name for c in columns)) for columns in (COLUMNS, GROUP_COLUMNS))
_OWN_LENGTHS, _GROUP_LENGTHS = (itemgetter(*(c.length for c in columns)) for columns in (COLUMNS, GROUP_COLUMNS))
_NUMBERS = {column.name: number for number, column in enumerate((*COLUMNS, *GROUP_COLUMNS))}
_OPTIONAL = tuple(column for column in COLUMNS if column.default is not None)
_CHECKED = itemgetter(
    *(
        _NUMBERS[name]
        for name in "token_ids positions query_starts context_lens logit_rows state_reads state_writes".split()
    )
)


def plain_batch(token_ids: Sequence[int]) -> ForwardBatch:
    """One sequence of these tokens alone, in a block of its own; no logits are wanted."""
    num_tokens = len(token_ids)
    return ForwardBatch.of(
        max(num_tokens, 1),
        token_ids=token_ids,
        positions=range(num_tokens),
        query_starts=[0, num_tokens],
        context_lens=[max(num_tokens, 1)],
        logit_rows=[],
        slots=[range(num_tokens)],
        block_tables=[[[0]]],
    )


def _lengths(counts: Sequence[int], widths: Sequence[int]) -> list[int]:
    """The lengths of all columns in order. `counts` are of tokens, sequences and rows, `widths` of the block tables."""
    sizes = _sizes(counts)
    lengths = list(_OWN_LENGTHS(sizes))
    for width in widths:
        sizes["table"] = sizes["seqs"] * width
        lengths += _GROUP_LENGTHS(sizes)
    return lengths


def _sizes(counts: Sequence[int]) -> dict[Length, int]:
    num_tokens, num_seqs, num_rows = counts
    return {"tokens": num_tokens, "seqs": num_seqs, "bounds": num_seqs + 1, "rows": num_rows}


def _misfit(values: Sequence[Sequence[int]], lengths: Sequence[int]) -> str:
    """The first column whose length is not the expected one, in words."""
    columns = chain(COLUMNS, cycle(GROUP_COLUMNS))
    found = next(each for each in zip(columns, values, lengths, strict=False) if len(each[1]) != each[2])
    return f"{found[0].name}: {len(found[1])} numbers for {found[2]} ({found[0].length})"


def _check_states(reads: list[int], writes: list[int], cached_lens: Sequence[int], num_states: int) -> None:
    """Raise AssertionError unless each sequence that holds tokens reads a state, and writes one that nobody reads."""
    if not num_states:
        assert max(reads) == max(writes) == -1, "a state of a model without states"
        return
    assert [read >= 0 for read in reads] == [cached > 0 for cached in cached_lens], "state_reads ≠ cache length"
    assert min(writes) >= 0 and max(*reads, *writes) < num_states, "a state outside the slots"
    assert len(set(writes)) == len(writes), "two sequences write one state"
    assert not set(writes) & set(reads), "a state is read and written"


def _check_group(
    slots: list[int],
    tables: list[int],
    size: int,
    starts: list[int],
    contexts: list[int],
    num_slots: int,
    window: int | None,
) -> None:
    """Raise AssertionError unless slots and block tables of a cache group are those of the step's tokens."""
    width = len(tables) // len(contexts)
    for seq, ((start, stop), context) in enumerate(zip(pairwise(starts), contexts, strict=True)):
        table, cached = tables[seq * width : (seq + 1) * width], context - (stop - start)
        num_used = -(-context // size)
        assert num_used <= width, "a block table ends before its sequence"
        used, unused = table[:num_used], table[num_used:]
        first = 0 if window is None else max(0, cached + 1 - window) // size  # of the blocks that are seen
        seen = used[first:] if first else used
        assert min(seen) >= 0 and min(used) >= -1, "a block outside the cache"
        assert (max(used) + 1) * size <= num_slots, "a block outside the cache"
        assert unused.count(-1) == len(unused), "an unused entry of a block table is not -1"
        expected = [table[position // size] * size + position % size for position in range(cached, context)]
        assert slots[start:stop] == expected, "slots ≠ block table"
    assert len(set(slots)) == len(slots), "two tokens go to one slot"
