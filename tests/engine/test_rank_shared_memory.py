"""The shared memory of ranks: none to be had, less than they need, and a full /dev/shm, which they do not use."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from karat import LLM
from karat.errors import CapacityError
from karat.ops.native import unavailable_reason
from tests.engine import tiny

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("ranks are watched through /proc", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that 2 ranks can share, for long contexts."""
    path = tmp_path_factory.mktemp("model")
    return tiny.write_model(
        path, hidden_size=72, num_attention_heads=12, intermediate_size=50, max_position_embeddings=8192
    )


def test_no_room_for_shared_memory(folder: Path) -> None:
    """A limit on files stands for a system without memory; /dev/shm, which may be small, is not used at all."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(
            CapacityError, match=r"the ranks need [0-9]+ bytes of shared memory, which the system refuses"
        ):
            LLM(folder, tensor_parallel_size=2, threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_more_shared_memory_than_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 4 million tokens, of which nothing is taken."""
    monkeypatch.setattr("karat.engine.ranks.rank_model.available_bytes", lambda: 1 << 30)
    with pytest.raises(CapacityError, match=r"need \d{10} bytes of shared memory, and 1073741824 are available"):
        LLM(folder, tensor_parallel_size=2, threads=1, max_num_batched_tokens=1 << 22)


def test_a_full_dev_shm_does_not_matter(folder: Path) -> None:
    script = (
        "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full; "
        f"exec {sys.executable} -m karat run -q {folder} Once --tensor-parallel-size 2 --max-tokens 5 --ignore-eos"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
