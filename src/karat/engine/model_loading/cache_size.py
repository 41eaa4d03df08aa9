"""The size of the KV cache, and the number of states, for the available memory."""

import logging
from bisect import bisect_right
from collections.abc import Callable

from karat.config import FloatName
from karat.errors import CapacityError
from karat.kv.states import num_state_slots

_log = logging.getLogger(__name__)
CACHE_SHARE = 0.4  # of the memory available after the weights are loaded
SNAPSHOT_SHARE = 0.1  # likewise, of the states that are kept for later prompts
SNAPSHOTS_PER_SEQ = 4  # more are not kept unless somebody says so
LIST_BYTES = 48  # of a block in the lists of karat.kv.blocks: its number, and an entry in two lists


def require_room(weight_bytes: int, available: int) -> None:
    """Raise CapacityError, with the figures, for weights that take more memory than is available."""
    if weight_bytes > available:
        raise CapacityError(
            f"the weights take {_size(weight_bytes)} of memory, and {_size(available)} are available; take a file of "
            "fewer bits a weight, quantise on the way (--quantize q4_0), free memory, or take a machine with more"
        )


def warn_of_paging(weight_bytes: int, available: int) -> None:
    """Say so where weights that are mapped from a file are more than the memory that is available."""
    if weight_bytes > available:
        _log.warning(
            "the weights take %s, and %s of memory are available: the system reads what does not fit from the disk "
            "whenever a token needs it; expect the speed of the disk, but for experts that are not chosen",
            _size(weight_bytes),
            _size(available),
        )


def num_snapshots(state_bytes: int, *, max_num_seqs: int, num_bytes: int | None, available: int) -> int:
    """States that are kept for later prompts: as many as num_bytes hold, or by default as SNAPSHOT_SHARE allows.

    state_bytes is what the states of one sequence take. Raises CapacityError, with the figures, if those of
    max_num_seqs running sequences, two of each, take more than what is available; or those and num_bytes.
    """
    running = num_state_slots(max_num_seqs, 0) * state_bytes
    if running > available:
        raise CapacityError(
            f"the states of max_num_seqs={max_num_seqs} sequences take {_size(running)} of memory (two of "
            f"{_size(state_bytes)} each), and {_size(available)} are available; lower max_num_seqs"
        )
    if num_bytes is None:
        return min(SNAPSHOTS_PER_SEQ * max_num_seqs, int(SNAPSHOT_SHARE * (available - running)) // state_bytes)
    if running + num_bytes > available:
        raise CapacityError(
            f"state_cache_bytes={num_bytes}: beside the states of max_num_seqs={max_num_seqs} sequences "
            f"({_size(running)}) {_size(available - running)} of memory are available; lower one of them"
        )
    return num_bytes // state_bytes


def num_cache_blocks(
    cache_bytes: Callable[[int], int],
    kv_dtype: FloatName,
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    num_bytes: int | None,
    num_blocks: int | None,
    available_bytes: int,
    weight_bytes: int = 0,
    rope_bytes: int = 0,
    step_bytes: int = 0,
    state_bytes: int = 0,
    num_groups: int = 1,
) -> int:
    """Blocks of a cache group: as given, or enough for max_num_seqs full contexts within CACHE_SHARE of the memory.

    Groups with windows have fewer (karat.engine.engine_config). cache_bytes gives the bytes that all groups take for so
    many blocks, on all ranks together. Of available_bytes, weight_bytes and rope_bytes (tables of RoPE) are still to be
    loaded, and steps take step_bytes once all contexts are full, states state_bytes. A block is counted with its
    entries in the pool's lists.
    Raises CapacityError, with the figures, if not even one sequence of max_model_len tokens fits, or if the tables or
    lists do not.
    """
    list_bytes = LIST_BYTES * num_groups
    available = max(0, available_bytes - weight_bytes)
    if rope_bytes > available:
        raise CapacityError(
            f"the tables of RoPE for max_model_len={max_model_len} positions take {_size(rope_bytes)} of memory, and "
            f"{_size(available)} are available; lower max_model_len"
        )
    if num_groups == 0:
        return 0  # no layer keeps K and V
    available = max(0, available - rope_bytes - step_bytes - state_bytes)
    blocks_per_seq = -(-max_model_len // block_size)
    limit = f"num_blocks={num_blocks}"
    if num_blocks is None:
        if num_bytes is None:
            num_bytes = int(CACHE_SHARE * available)
            num_blocks = min(
                max_num_seqs * blocks_per_seq,
                _most(num_bytes, lambda number: cache_bytes(number) + number * list_bytes),
            )
            limit = (
                f"{CACHE_SHARE:.0%} of the {_size(available)} of memory that are available, lists of blocks included"
            )
        else:
            num_blocks = _most(num_bytes, cache_bytes)
            limit = f"kv_cache_bytes={num_bytes}"
    if num_blocks * list_bytes > available:
        raise CapacityError(
            f"the lists of {num_blocks} blocks take {_size(num_blocks * list_bytes)} of memory, and {_size(available)} "
            "are available; give fewer (num_blocks or kv_cache_bytes)"
        )
    if num_blocks < blocks_per_seq:
        raise CapacityError(
            f"a context of max_model_len={max_model_len} tokens takes {_size(cache_bytes(blocks_per_seq))} of "
            f"{kv_dtype} KV cache, which has room for {num_blocks * block_size} tokens ({limit}); lower "
            "max_model_len, choose a smaller kv_dtype, or give the cache more (kv_cache_bytes)"
        )
    return num_blocks


def _most(num_bytes: int, bytes_of: Callable[[int], int]) -> int:
    """The largest number of blocks that take at most num_bytes."""
    return bisect_right(range(num_bytes + 1), num_bytes, key=bytes_of) - 1  # a block takes a byte at the least


def _size(num_bytes: int) -> str:
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"
