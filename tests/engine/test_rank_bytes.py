"""Each rank reads and keeps its own slices: as it counts itself, and as the operating system does."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from karat.checkpoint import open_model
from karat.engine.parallel import ParallelModel
from karat.models.registry import find_weights, read_config
from karat.ops.native import unavailable_reason
from tests.support import parallel

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("what a process reads is taken from /proc", allow_module_level=True)

SIZE = 4
# Rows of row-parallel weights are far longer than what the system reads ahead, and tensors than what it rounds up to.
LARGE = {
    "hidden_size": 64, "intermediate_size": 1 << 17, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 4096, "vocab_size": 1 << 16, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def team() -> Iterator[ParallelModel]:
    made = ParallelModel(SIZE)
    yield made
    made.close()


def count(pid: int, file: str, field: str) -> int:
    match = re.search(rf"^{field}:\s*(\d+)", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
def test_ranks_read_and_keep_their_share(stored: str, team: ParallelModel, tmp_path: Path) -> None:
    path = parallel.write(tmp_path, parallel.config_of("llama", **LARGE), stored)
    checkpoint = open_model(path)
    config = read_config(checkpoint.config)
    weights = find_weights(config, checkpoint).values()
    sharded = sum(weight.num_bytes for weight in weights if len(weight.shape) > 1)
    replicated = sum(weight.num_bytes for weight in weights) - sharded
    share = sharded / SIZE + replicated
    load = parallel.load_of(path, config.vocab_size, [[1, 2, 3]], chunk=4)
    tiny = parallel.write(tmp_path / "tiny", parallel.config_of("llama", num_hidden_layers=1), "F32")
    small = read_config(open_model(tiny).config)
    team.load(parallel.load_of(tiny, small.vocab_size, [[1, 2, 3]], chunk=4), small)  # everything is imported now

    file = path / "model.safetensors" if path.is_dir() else path
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    pids = team.process_ids
    read = [count(pid, "io", "read_bytes") for pid in pids]
    anonymous = [1024 * count(pid, "status", "RssAnon") for pid in pids]
    team.load(load, config)
    counted = [holding.bytes_read for holding in team.holdings]
    assert sum(counted) == sharded + SIZE * replicated
    assert max(counted) <= share * 1.001
    grown = [1024 * count(pid, "status", "RssAnon") - before for pid, before in zip(pids, anonymous, strict=True)]
    assert max(grown) <= share * 1.02 + (4 << 20), (grown, share)  # and buffers of a step
    fetched = [count(pid, "io", "read_bytes") - before for pid, before in zip(pids, read, strict=True)]
    if sum(fetched) < 0.9 * sharded:
        pytest.skip(f"the system kept the file in memory: {sum(fetched)} of {sharded} bytes were fetched")
    assert max(fetched) <= share * 1.05 + (1 << 20), (fetched, counted)
