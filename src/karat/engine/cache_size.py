"""The size of the KV cache for the available memory."""

from karat.config import FloatName, ModelConfig
from karat.errors import CapacityError
from karat.machine.memory import available_bytes

CACHE_SHARE = 0.4  # of the memory available after the weights are loaded
LIST_BYTES = 48  # of a block in the lists of karat.kv.blocks: its number, and an entry in two lists


def require_room(weight_bytes: int, available: int) -> None:
    """Raise CapacityError, with the figures, for weights that take more memory than is available."""
    if weight_bytes > available:
        raise CapacityError(
            f"the weights take {_size(weight_bytes)} of memory, and {_size(available)} are available; take a file of "
            "fewer bits a weight, quantise on the way (--quantize q4_0), free memory, or take a machine with more"
        )


def num_cache_blocks(
    config: ModelConfig,
    kv_dtype: FloatName,
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    num_bytes: int | None,
    num_blocks: int | None,
    num_kv_heads: int | None = None,
    weight_bytes: int = 0,
    rope_bytes: int = 0,
) -> int:
    """Blocks of the KV cache: as given, or enough for max_num_seqs full contexts within CACHE_SHARE of the memory.

    num_kv_heads counts a KV head once for each rank that holds it (None: once). weight_bytes and rope_bytes (tables of
    RoPE) are still to be loaded. A block is counted with its entries in the pool's lists. Raises CapacityError, with
    the figures, if not even one sequence of max_model_len tokens fits, or if the tables or lists do not.
    """
    available = max(0, available_bytes() - weight_bytes)
    if rope_bytes > available:
        raise CapacityError(
            f"the tables of RoPE for max_model_len={max_model_len} positions take {_size(rope_bytes)} of memory, and "
            f"{_size(available)} are available; lower max_model_len"
        )
    available -= rope_bytes
    block_bytes = block_size * config.kv_bytes_per_token(kv_dtype, num_kv_heads)
    blocks_per_seq = -(-max_model_len // block_size)
    limit = "given"
    if num_blocks is None:
        if num_bytes is None:
            with_lists = block_bytes + LIST_BYTES
            affordable = int(CACHE_SHARE * available) // with_lists
            num_bytes = min(max_num_seqs * blocks_per_seq, affordable) * block_bytes
            limit = (
                f"{CACHE_SHARE:.0%} of the {_size(available)} of memory that are available, lists of blocks included"
            )
        num_blocks = num_bytes // block_bytes
    if num_blocks * LIST_BYTES > available:
        raise CapacityError(
            f"the lists of {num_blocks} blocks take {_size(num_blocks * LIST_BYTES)} of memory, and {_size(available)} "
            "are available; give fewer (num_blocks or kv_cache_bytes)"
        )
    if num_blocks < blocks_per_seq:
        raise CapacityError(
            f"a context of max_model_len={max_model_len} tokens takes {_size(blocks_per_seq * block_bytes)} of "
            f"{kv_dtype} KV cache, which may have {_size(num_blocks * block_bytes)} ({limit}): that is "
            f"{num_blocks * block_size} tokens; lower max_model_len, choose a smaller kv_dtype, or give the cache "
            "more (kv_cache_bytes)"
        )
    return num_blocks


def _size(num_bytes: int) -> str:
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"
