"""Each rank reads and keeps its own slices: as it counts itself, and as the operating system does."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from karat.checkpoint.slices import part_bytes
from karat.config import ModelConfig
from karat.engine.ranks.rank_model import ParallelModel
from karat.kv.groups import Keys
from karat.models.cut_units import cut_units
from karat.models.degrees import working_degrees
from karat.models.opening import open_model
from karat.models.registry import build, find_weights, read_config
from karat.ops.native import unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.ranks.group import PlannedRank
from tests.support import parallel

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("what a process reads is taken from /proc", allow_module_level=True)

SIZE = 4
# Rows of row-parallel weights are far longer than what the system reads ahead, and tensors than what it rounds up to.
LARGE = {
    "hidden_size": 64,
    "intermediate_size": 1 << 17,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 4096,
    "vocab_size": 1 << 16,
    "max_position_embeddings": 64,
}


@pytest.fixture
def team() -> Iterator[ParallelModel]:
    made = ParallelModel(SIZE)
    yield made
    made.close()


def count(pid: int, file: str, field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+)", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


def shares(config: ModelConfig, item: float) -> list[float]:
    """The bytes that are each rank's: its query heads, the KV heads that these read, an even part of all else.

    `item` is of a number in a matrix. Heads that do not divide are dealt as the tree says, 3, 4, 3, 4 of 14.
    """
    hidden, per_kv = config.hidden_size, config.num_heads // config.num_kv_heads
    found = []
    for rank in range(SIZE):
        heads = range(rank * config.num_heads // SIZE, (rank + 1) * config.num_heads // SIZE)
        kv_heads = {head // per_kv for head in heads}
        rows = 2 * config.head_dim * (len(heads) + len(kv_heads)) + 3 * config.intermediate_size // SIZE
        found.append(item * hidden * (rows + config.vocab_size // SIZE) + 4 * 3 * hidden)
    return found


def forget(path: Path) -> None:
    """Have the system read the file of a model from the disk again."""
    with (path / "model.safetensors" if path.is_dir() else path).open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def most_memory(pids: Sequence[int]) -> Iterator[list[int]]:
    """The anonymous memory of processes at its largest while this lasts, as far as looking all the time can tell."""
    largest = [0] * len(pids)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.0005):
            for index, pid in enumerate(pids):
                largest[index] = max(largest[index], 1024 * count(pid, "status", "RssAnon"))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield largest
    finally:
        ended.set()
        looking.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "heads"), [("F32", {}), ("Q8_0", {}), ("Q8_0", {"num_attention_heads": 14, "num_key_value_heads": 2})]
)
def test_ranks_read_and_keep_their_share(
    stored: str, heads: dict[str, int], team: ParallelModel, tmp_path: Path
) -> None:
    path = parallel.write(tmp_path, parallel.config_of("llama", **(LARGE | heads)), stored)
    checkpoint = open_model(path)
    config = read_config(checkpoint.config)
    share = shares(config, {"F32": 4, "Q8_0": 34 / 32}[stored])
    load = parallel.load_of(path, [[1, 2, 3]], chunk=4)
    sizes = {"hidden_size": 32, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32, "vocab_size": 64}
    tiny = parallel.write(tmp_path / "tiny", parallel.config_of("llama", **sizes), "F32")
    small = read_config(open_model(tiny).config)
    team.load(parallel.load_of(tiny, [[1, 2, 3]], chunk=4), small)  # everything is imported now

    forget(path)
    pids = team.process_ids
    read = [count(pid, "io", "read_bytes") for pid in pids]
    anonymous = [1024 * count(pid, "status", "RssAnon") for pid in pids]
    with most_memory(pids) as largest:
        team.load(load, config)
    counted = [holding.bytes_read for holding in team.holdings]
    assert counted == share
    # Never more than the share and buffers of a step, also while it loads: the largest slice is 8 MB in float32.
    grown = [most - before for most, before in zip(largest, anonymous, strict=True)]
    for rank in range(SIZE):
        assert grown[rank] <= share[rank] + (1 << 20), (rank, grown, share)
    fetched = [count(pid, "io", "read_bytes") - before for pid, before in zip(pids, read, strict=True)]
    if sum(fetched) < 0.9 * sum(share):
        pytest.skip(f"the system kept the file in memory: {sum(fetched)} of {sum(share)} bytes were fetched")
    for rank in range(SIZE):
        assert fetched[rank] <= share[rank] * 1.05 + (1 << 20), (rank, fetched, counted)


ALONE = """
import sys
from pathlib import Path
from karat.models.opening import open_model
from karat.ranks.group import PlannedRank
from karat.models.registry import build, read_config
from karat.ops.native import NativeOps

def fetched():
    (line,) = (line for line in open("/proc/self/io") if line.startswith("read_bytes:"))
    return int(line.split()[1])

checkpoint = open_model(Path(sys.argv[1]))
config, ops, before = read_config(checkpoint.config), NativeOps(threads=1), fetched()
model = build(config, ops, checkpoint, num_positions=8, group=PlannedRank(int(sys.argv[2]), int(sys.argv[3])))
print(f"[{model.bytes_read}, {fetched() - before}]")
"""


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["BF16", "Q8_0"])
def test_a_rank_alone_has_the_system_read_its_share(stored: str, tmp_path: Path) -> None:
    """Ranks at once read each other's parts out of the system's memory; alone, each part that is touched is fetched."""
    path = parallel.write(tmp_path, parallel.config_of("llama", **LARGE), stored)
    for rank in range(SIZE):
        forget(path)
        command = [sys.executable, "-c", ALONE, str(path), str(rank), str(SIZE)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        counted, fetched = json.loads(done.stdout)
        if fetched < 0.9 * counted:
            pytest.skip(f"the system kept the file in memory: {fetched} of {counted} bytes were fetched")
        assert fetched <= 1.1 * counted + (1 << 20), (rank, counted, fetched)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "stored"),
    [(28, 4, 128, "Q4_K"), (28, 4, 64, "F32"), (14, 2, 64, "Q8_0"), (15, 3, 32, "BF16"), (24, 8, 16, "F32")],
)
def test_a_rank_has_each_kv_head_that_it_reads_once(
    heads: int, kv_heads: int, head_dim: int, stored: str, tmp_path: Path
) -> None:
    """Of the files and in its cache, at every degree, also where its heads are unequal parts of two groups."""
    path = parallel.write(
        tmp_path,
        parallel.config_of(
            "llama",
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            attention_bias=True,
        ),
        stored,
    )
    checkpoint = open_model(path)
    config = read_config(checkpoint.config)
    weights = find_weights(config, checkpoint)
    sizes = [size for size in (2, 4, 8) if size in working_degrees(config, cut_units(config, weights))]
    assert 4 in sizes
    for size in sizes:
        every_head: list[int] = []
        for rank in range(size):
            model = build(config, ReferenceOps(), checkpoint, num_positions=8, group=PlannedRank(rank, size))
            parts = {spec.source.rpartition("self_attn.")[2]: spec for spec in model.parts}
            own = [row // head_dim for piece in parts["q_proj.weight"].pieces or () for row in range(*piece)]
            read = sorted({head * kv_heads // heads for head in own})
            for name in ("k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias"):
                rows = [row for piece in parts[name].pieces or () for row in range(*piece)]
                assert rows == [head * head_dim + row for head in read for row in range(head_dim)]
            assert set(model.keeps) == {Keys(len(read), head_dim, head_dim, None)}
            every_head += sorted(set(own))
            taken = sum(part_bytes(weights[spec.source], spec) for spec in model.parts)
            assert model.bytes_read == taken
        assert every_head == list(range(heads))
