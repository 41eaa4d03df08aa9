"""ForwardBatch: one forward pass over many sequences, as flat arrays that every executor reads."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """The tokens of one step. Sequence i owns rows query_starts[i] to query_starts[i + 1] of every per-token array.

    token_ids     [tokens] int32
    positions     [tokens] int32   absolute; consecutive within a sequence, ending at context_lens[i] - 1
    slots         [tokens] int32   KV cache slot of the token: block * block_size + offset
    query_starts  [seqs + 1] int32
    context_lens  [seqs] int32     keys visible to the last token of the sequence, this step's included
    block_tables  [seqs, max_blocks] int32   block of each block_size positions; unused entries are -1
    logit_rows    [rows] int32     rows of the step whose logits are wanted, ascending; may be empty
    block_size    tokens in a block

    A step of two sequences, one in decode with 5 cached tokens and one in prefill of 3 (block_size 4):

        row            0        | 1     2     3
        positions      5        | 0     1     2
        slots          4·b₁ + 1 | 4·c₀  +1    +2        of block tables [b₀ b₁], [c₀ -1]
        query_starts   0          1           (4)
        context_lens   6          3
        logit_rows     0                      3

    `validate` checks the invariants of these arrays and of the cache's length, in O(tokens).
    """

    token_ids: Int32
    positions: Int32
    slots: Int32
    query_starts: Int32
    context_lens: Int32
    block_tables: Int32
    logit_rows: Int32
    block_size: int

    @property
    def num_tokens(self) -> int:
        """New tokens of the step, of all sequences together."""
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        """Sequences of the step."""
        return len(self.context_lens)

    def validate(self, *, cached_lens: Int32, num_slots: int, vocab_size: int) -> None:
        """Raise AssertionError unless the batch continues sequences that hold `cached_lens` [seqs] tokens already.

        The cache's bookkeeping gives `cached_lens`, not the code that builds the batch: each step checks one against
        the other.
        """
        num_tokens, num_seqs, size = self.num_tokens, self.num_seqs, self.block_size
        assert num_tokens > 0 and num_seqs > 0, "an empty batch"
        for name in (
            "token_ids",
            "positions",
            "slots",
            "query_starts",
            "context_lens",
            "block_tables",
            "logit_rows",
        ):
            assert getattr(self, name).dtype == _INT32, f"{name} is not int32"
        assert self.positions.shape == self.slots.shape == (num_tokens,), "per-token arrays differ in length"
        assert self.query_starts.shape == (num_seqs + 1,) and len(self.block_tables) == num_seqs, (
            "per-sequence arrays differ in length"
        )
        # Lists are cheaper than a dozen NumPy calls in a small step, and a large step takes far longer than both.
        starts, positions, slots = self.query_starts.tolist(), self.positions.tolist(), self.slots.tolist()
        assert starts[0] == 0 and starts[-1] == num_tokens and all(a < b for a, b in pairwise(starts)), (
            "query_starts do not cut the tokens into sequences"
        )
        assert cached_lens.shape == (num_seqs,), "context_lens ≠ cache length: of other sequences"
        of_sequence = (cached_lens, self.context_lens, self.block_tables)
        for (start, stop), cached, context, table in zip(
            pairwise(starts), *(array.tolist() for array in of_sequence), strict=True
        ):
            assert cached + stop - start == context, "context_lens ≠ cache length + new tokens"
            assert positions[start:stop] == list(range(cached, context)), "positions do not continue the cache"
            num_used = -(-context // size)
            assert num_used <= len(table), "a block table ends before its sequence"
            used, unused = table[:num_used], table[num_used:]
            assert min(used) >= 0 and (max(used) + 1) * size <= num_slots, "a block outside the cache"
            assert unused.count(-1) == len(unused), "an unused entry of a block table is not -1"
            expected = [table[position // size] * size + position % size for position in range(cached, context)]
            assert slots[start:stop] == expected, "slots ≠ block table"
        assert len(set(slots)) == num_tokens, "two tokens go to one slot"
        token_ids = self.token_ids.tolist()
        assert min(token_ids) >= 0 and max(token_ids) < vocab_size, "a token id outside the vocabulary"
        rows = self.logit_rows.tolist()
        assert all(a < b for a, b in pairwise(rows)) and (not rows or (rows[0] >= 0 and rows[-1] < num_tokens)), (
            "logit_rows are not ascending rows of the step"
        )
