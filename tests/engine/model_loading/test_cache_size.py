"""Available memory as different systems state it.

Covers: karat.machine.memory.
"""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import LLM
from karat.engine.model_loading import cache_size
from karat.engine.model_loading import load_plan as plan_module
from karat.engine.model_loading.cache_size import LIST_BYTES, num_cache_blocks, num_snapshots, require_room
from karat.errors import CapacityError
from karat.machine.memory import available_bytes
from karat.ops.executor import CacheSpec
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.rope_table import table_bytes
from tests.engine.tiny import write_model

GIB = 1024**3


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0"}
V2 = {
    "sys/fs/cgroup/memory.max": str(4 * GIB),
    "sys/fs/cgroup/memory.current": str(3 * GIB),
    "sys/fs/cgroup/memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\nshmem 0",
}
V1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": str(5 * GIB),
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
    "sys/fs/cgroup/memory/memory.stat": f"active_file 1\ninactive_file 1\ntotal_inactive_file {GIB}",
}


def nested(own: str, folder: str, gib: int) -> dict[str, str]:
    """A limit of `gib` GiB on a group, one of them taken; `own` is the process' line."""
    limits = {"memory.max": str(gib * GIB), "memory.current": str(GIB), "memory.stat": "anon 0"}
    of_folder = {f"sys/fs/cgroup/{folder}{name}": text for name, text in limits.items()} if folder else {}
    return {"proc/self/cgroup": own} | of_folder


@pytest.mark.parametrize(
    ("files", "available"),
    [
        (MEMINFO, 8 * GIB),
        (MEMINFO | V2, 2.5 * GIB),
        (MEMINFO | V1, 3 * GIB),
        (MEMINFO | V2 | {"sys/fs/cgroup/memory.max": "max"}, 8 * GIB),
        (MEMINFO | V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096)}, 8 * GIB),
        (MEMINFO | V2 | {"sys/fs/cgroup/memory.current": str(9 * GIB)}, 0),
        (MEMINFO | V2 | nested("0::/user.slice/app.scope", "", 3), 2.5 * GIB),
        (MEMINFO | nested("0::/user.slice/app.scope", "user.slice/app.scope/", 3), 2 * GIB),
        (MEMINFO | V2 | nested("0::/user.slice/app.scope", "user.slice/", 2), GIB),
        (MEMINFO | nested("0::/user.slice/app.scope", "another/", 1), 8 * GIB),
        (MEMINFO | V1 | {"proc/self/cgroup": "5:cpu:/\n4:memory:/job"}, 3 * GIB),
        (
            MEMINFO
            | {"proc/self/cgroup": "4:memory:/job"}
            | {name.replace("memory/", "memory/job/"): text for name, text in V1.items()},
            3 * GIB,
        ),
    ],
)
def test_linux(tmp_path: Path, files: dict[str, str], available: float) -> None:
    write(tmp_path, files)
    assert available_bytes(tmp_path) == available


@pytest.mark.parametrize("files", [{}, {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:   100 kB"}])
def test_where_the_system_does_not_say(tmp_path: Path, files: dict[str, str]) -> None:
    """No /proc, or an old kernel's or a sandbox's without MemAvailable."""
    write(tmp_path, files)
    assert 2**20 < available_bytes(tmp_path) < 2**50


def test_this_machine() -> None:
    assert 2**20 < available_bytes() < 2**50


def test_weights_that_do_not_fit_are_refused_with_the_figures() -> None:
    require_room(2 * GIB, 2 * GIB)
    with pytest.raises(
        CapacityError, match=r"the weights take 3\.0 GiB of memory, and 2\.0 GiB are available; .*--quantize"
    ):
        require_room(3 * GIB, 2 * GIB)


def blocks(available: int, **changes: int | None) -> int:
    """Of 16 tokens of a model with 256 bytes of K and V a token, for contexts of 1,600 tokens. Nothing is rounded."""
    arguments: dict[str, int | None] = {"num_bytes": None, "num_blocks": None, **changes}
    return num_cache_blocks(
        lambda number: number * 16 * 2 * 2 * 2 * 8 * 4,
        "float32",
        block_size=16,
        max_model_len=1600,
        max_num_seqs=4,
        available_bytes=available,
        **arguments,  # type: ignore[arg-type]
    )


def test_lists_of_blocks_and_tables_of_rope_are_counted() -> None:
    assert blocks(GIB) == 400
    block_bytes = 16 * 2 * 2 * 2 * 8 * 4
    available = 300 * (block_bytes + LIST_BYTES) * 5 // 2
    assert blocks(available) == 300
    assert blocks(available + 777, rope_bytes=777) == 300
    assert blocks(available, rope_bytes=available // 3) == 200
    assert blocks(available, step_bytes=available // 3) == 200, "parts of attention, too"
    with pytest.raises(CapacityError, match=r"40% .* lists of blocks included.*lower max_model_len"):
        blocks(available, rope_bytes=available * 3 // 4)


def test_states_of_running_sequences_come_first() -> None:
    state = 63 * 2**20  # of Qwen3.5 35B-A3B

    def kept(available: int, num_bytes: int | None = None, max_num_seqs: int = 16) -> int:
        return num_snapshots(state, max_num_seqs=max_num_seqs, num_bytes=num_bytes, available=available)

    assert kept(32 * state) == 0 and kept(42 * state) == 1 and kept(432 * state) == 40, "a tenth of the rest"
    assert kept(10**6 * state) == 64 and kept(10**6 * state, max_num_seqs=1) == 4, "or four for each sequence"
    assert kept(40 * state, 8 * state) == 8 and kept(40 * state, 8 * state - 1) == 7 and kept(32 * state, 0) == 0
    with pytest.raises(
        CapacityError,
        match=r"max_num_seqs=16 sequences take 2\.0 GiB of memory \(two of 63\.0 MiB each\), and 1\.9 GiB .*lower",
    ):
        kept(31 * state)
    with pytest.raises(CapacityError, match=rf"state_cache_bytes={8 * state + 1}: .*\(2\.0 GiB\) 504\.0 MiB of memory"):
        kept(40 * state, 8 * state + 1)


def test_states_leave_less_for_the_cache() -> None:
    block_bytes = 16 * 2 * 2 * 2 * 8 * 4
    available = 300 * (block_bytes + LIST_BYTES) * 5 // 2
    assert blocks(available, state_bytes=available // 3) == 200
    assert blocks(available, num_groups=0) == blocks(0, num_groups=0) == 0, "a model of states alone"


@given(
    room=st.integers(0, 40_000),
    unit=st.integers(20, 300),
    blocks_per_unit=st.integers(1, 20),
    asked=st.none() | st.integers(0, 10_000),
)
def test_as_many_blocks_as_fit_and_no_more(room: int, unit: int, blocks_per_unit: int, asked: int | None) -> None:
    """A cache that comes in units of several blocks: the most that fit, found by trying all."""

    def cache_bytes(number: int) -> int:
        return -(-number // blocks_per_unit) * unit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_size, "LIST_BYTES", 1)
        try:
            num_blocks = num_cache_blocks(
                cache_bytes,
                "float32",
                block_size=16,
                max_model_len=16,
                max_num_seqs=500,
                num_bytes=asked,
                available_bytes=room,
                num_blocks=None,
            )
        except CapacityError:
            num_blocks = 0
    if asked is None:
        fitting = [n for n in range(501) if cache_bytes(n) + n <= int(0.4 * room)]
    else:
        fitting = [n for n in range(asked // unit * blocks_per_unit + 2) if cache_bytes(n) <= asked]
        fitting = fitting if max(fitting) <= room else [0]  # their lists take more than there is
    assert num_blocks == max(fitting)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.skipif(unavailable_reason() is not None, reason="no native extension here")
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 140),
    num_blocks=st.integers(1, 70),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
)
def test_a_cache_takes_what_was_counted(layers: int, heads: int, head_dim: int, num_blocks: int, dtype: Any) -> None:
    """The address space of the process grows by it, in whole pages."""
    ops = NativeOps(threads=1)
    spec = CacheSpec(
        layers=tuple(range(layers)),
        num_blocks=num_blocks,
        block_size=16,
        num_kv_heads=heads,
        k_dim=head_dim,
        v_dim=head_dim,
        dtype=dtype,
    )

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    before = pages()
    held = ops.new_cache([spec])
    grown = pages() - before
    del held
    assert grown == -(-ops.cache_bytes(spec) // resource.getpagesize())


def test_tables_and_lists_that_do_not_fit_are_refused_with_the_figures() -> None:
    with pytest.raises(CapacityError, match=r"RoPE .*max_model_len=1600 .*3\.0 GiB .*1\.5 GiB .*lower max_model_len"):
        blocks(2 * GIB, rope_bytes=3 * GIB, weight_bytes=GIB // 2)
    with pytest.raises(CapacityError, match=r"lists of 1000000000 blocks take 44\.7 GiB .*num_blocks"):
        blocks(2 * GIB, num_blocks=10**9)


def test_a_long_context_of_a_tiny_model_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few kilobytes may state a context whose tables and lists take more than all memory."""
    write_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 10**9}))
    monkeypatch.setattr("karat.ops.executor.available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(plan_module, "build", lambda *_, **__: pytest.fail("it was built"))
    assert table_bytes(8, 10**9, 4) > 8 * GIB
    with pytest.raises(CapacityError, match="the tables of RoPE"):
        LLM(tmp_path)
    with pytest.raises(CapacityError, match="RoPE"):
        LLM(tmp_path, num_blocks=10**9)
