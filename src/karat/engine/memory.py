"""How much memory there is, and how large a KV cache to make of it."""

import os
from pathlib import Path

from karat.config import FloatName, ModelConfig
from karat.errors import CapacityError

CACHE_SHARE = 0.4  # of the memory available after the weights are loaded
_CGROUP_LIMITS = (  # version 2, version 1: what a container may have, what it has
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """Memory that can still be taken: what the system calls available, or what a container's limit leaves if less.

    Where the system does not say (macOS), half of the physical memory.
    """
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage in _CGROUP_LIMITS:
        if Path(limit).exists() and (text := Path(limit).read_text().strip()) != "max":
            available = min(available, int(text) - int(Path(usage).read_text()))
    return max(available, 0)


def num_cache_blocks(
    config: ModelConfig, kv_dtype: FloatName, *, block_size: int, max_model_len: int, max_num_seqs: int,
    num_bytes: int | None, num_blocks: int | None,
) -> int:  # fmt: skip
    """Blocks for the KV cache: as given, or enough for max_num_seqs full contexts within CACHE_SHARE of the memory.

    CapacityError, with the figures, if not even one sequence of max_model_len tokens fits.
    """
    block_bytes = block_size * config.kv_bytes_per_token(kv_dtype)
    blocks_per_seq = -(-max_model_len // block_size)
    limit = "given"
    if num_blocks is None:
        if num_bytes is None:
            available = available_bytes()
            num_bytes = min(max_num_seqs * blocks_per_seq * block_bytes, int(CACHE_SHARE * available))
            limit = f"{CACHE_SHARE:.0%} of the {_size(available)} of memory that are available"
        num_blocks = num_bytes // block_bytes
    if num_blocks < blocks_per_seq:
        raise CapacityError(
            f"a context of max_model_len={max_model_len} tokens takes {_size(blocks_per_seq * block_bytes)} of "
            f"{kv_dtype} KV cache, which may have {_size(num_blocks * block_bytes)} ({limit}): that is "
            f"{num_blocks * block_size} tokens; lower max_model_len, choose a smaller kv_dtype, or give the cache more "
            "(kv_cache_bytes)"
        )
    return num_blocks


def _size(num_bytes: int) -> str:
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"
