"""GroupSize: the size of a cache group in blocks, and how many of them sequences need. check_fits.

In a group with a window a token sees the last `window` tokens, itself included. A sequence gives back the blocks that
no later token sees, so it holds about `window` tokens, however long it is:

    block_size 4, window 6     positions   0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12
    the token at position 12 sees 7 … 12             -1          7    5      0     block table [-1, 7, 5, 0]
"""

from collections.abc import Iterable
from dataclasses import dataclass

from karat.errors import CapacityError


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The number of blocks of a cache group, and how many tokens a token sees, itself included (None: all)."""

    num_blocks: int
    window: int | None = None

    def first_seen(self, position: int, block_size: int) -> int:
        """The place in a block table of the first block that the token at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1) // block_size

    def most_held(self, start: int, stop: int, step_tokens: int, block_size: int) -> int:
        """The most blocks that a sequence holds at once while positions start … stop - 1 are computed.

        A step computes at most `step_tokens` of them.
        """
        num_blocks = -(-stop // block_size)
        if self.window is None:
            return num_blocks
        num_seen = (
            self.window - 1 + min(step_tokens, stop - start)
        )  # by a step: positions in a row, that begin anywhere
        return min(num_blocks - self.first_seen(start, block_size), (num_seen + block_size - 2) // block_size + 1)


def windowed_blocks(
    window: int,
    num_blocks: int,
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    step_tokens: int,
    keeps_prefixes: bool,
) -> int:
    """Blocks of a group with a window beside groups without one, which have `num_blocks`.

    Where those have room for max_num_seqs full contexts, it has room for as many windows, for the tokens of a step, and
    for one more of both if prefixes are kept. Where they have less, it has less in proportion, but room for one
    sequence. It never has more than they.
    """
    blocks_per_seq = -(-max_model_len // block_size)
    least = min(blocks_per_seq, _spanned(window - 1 + step_tokens, block_size))
    running = min(blocks_per_seq, _spanned(window + block_size, block_size))
    wanted = max_num_seqs * running + _spanned(step_tokens, block_size) + (least if keeps_prefixes else 0)
    return min(num_blocks, max(least, -(-wanted * num_blocks // (max_num_seqs * blocks_per_seq))))


def check_fits(num_tokens: int, sizes: Iterable[GroupSize], block_size: int) -> None:
    """Raise CapacityError for a sequence of `num_tokens` tokens that does not fit into a cache of these groups."""
    for size in sizes:
        num_blocks = size.most_held(0, num_tokens, 1, block_size)
        if num_blocks > size.num_blocks:
            once = "" if size.window is None else f", {num_blocks * block_size} at once in layers with a window"
            raise CapacityError(
                f"the request may grow to {num_tokens} tokens in the KV cache{once}, which holds "
                f"{size.num_blocks * block_size} ({size.num_blocks} blocks of {block_size}); shorten the prompt or "
                "lower max_tokens, or give the cache more room"
            )


def _spanned(num_positions: int, block_size: int) -> int:
    """The most blocks that so many positions in a row lie in, wherever they begin."""
    return (num_positions + block_size - 2) // block_size + 1
