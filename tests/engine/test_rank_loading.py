"""One rank that cannot load what the others can: a typed error of one sentence, with the rank; and the ranks go on."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from karat import LLM, SamplingParams
from karat.engine.ranks.rank_model import ParallelModel
from karat.errors import CapacityError, KaratError, RankError
from karat.machine.cores import num_physical_cores
from karat.models.registry import read_config
from karat.ops.native import unavailable_reason
from tests.engine import tiny
from tests.support.parallel import load_of, parallel

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("limits are set as Linux has them", allow_module_level=True)

SHAPE = {"hidden_size": 72, "num_attention_heads": 12, "intermediate_size": 50, "vocab_size": 20_000}
# As karat.engine.ranks.rank's; rank 1 does something before it loads the first time.
LIMITED = """
import os, resource
import msgspec
from pathlib import Path
from karat.engine.ranks import rank as plain
from karat.engine.ranks.messages import LoadRank

class Limited(plain.Rank):
    loads = 0

    def do(self, command):
        if self.rank != 1 or not isinstance(command, LoadRank):
            return super().do(command)
        self.loads += 1
        if self.loads > 1:
            return super().do(command)
        {before}
        try:
            return super().do(command)
        finally:
            {after}

def main(arguments):
    plain.serve(arguments, Limited)
"""
NO_MEMORY = (
    "soft, hard = resource.getrlimit(resource.RLIMIT_AS); "
    "pages = int(Path('/proc/self/statm').read_text().split()[0]); "
    "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), hard))",
    "resource.setrlimit(resource.RLIMIT_AS, (soft, hard))",
)
NO_FILES = (
    "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))",
)
NO_CORE = ("command = msgspec.structs.replace(command, cpus=(1023,))", "pass")
SHORTER = (
    """
        def build(*args, real=plain.build, **options):
            path = Path(command.path) / "model.safetensors"
            os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
            return real(*args, **options)
        plain.build = build
""",
    "pass",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return tiny.write_model(path, **SHAPE)


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[tuple[str, str]], ParallelModel]]:
    """Two ranks, of which one does such things around its first loading."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    made: list[ParallelModel] = []

    def make(around: tuple[str, str]) -> ParallelModel:
        (tmp_path / "limited_rank.py").write_text(LIMITED.format(before=around[0], after=around[1]))
        made.append(ParallelModel(2, "limited_rank"))
        return made[0]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("around", "kind", "message"),
    [
        (NO_MEMORY, CapacityError, r"rank 1: memory ran out while loading its part of the model; free .*KV cache"),
        (NO_FILES, KaratError, r"rank 1: .*Too many open files.*"),
        (NO_CORE, RankError, r"rank 1: the system refused something while loading .*Invalid argument.*ulimit -a\)"),
    ],
)
def test_what_the_system_refuses_to_one_rank(
    around: tuple[str, str],
    kind: type[KaratError],
    message: str,
    folder: Path,
    team: Callable[[tuple[str, str]], ParallelModel],
) -> None:
    """It is said in a sentence, and the same ranks load the same model once there is nothing in the way."""
    ranks = team(around)
    load = load_of(folder, [[1, 2, 3]], chunk=8)
    load = msgspec.structs.replace(load, num_blocks=(1 << 17,))  # much more than 64 MiB of cache
    with pytest.raises(kind) as raised:
        ranks.load(load, read_config({**tiny.CONFIG, **SHAPE}))
    assert re.fullmatch(message, str(raised.value))
    assert parallel(ranks, folder, [[1, 2, 3]], chunk=8)[0].shape == (3, SHAPE["vocab_size"])


def test_a_file_that_becomes_shorter_while_one_rank_reads_it(
    folder: Path, team: Callable[[tuple[str, str]], ParallelModel]
) -> None:
    with pytest.raises(RankError, match=r"rank \d .*was killed \(SIGBUS\).*a file of the model became shorter"):
        parallel(team(SHORTER), folder, [[1, 2, 3]], chunk=8)


@pytest.mark.parametrize("threads", [1, len(os.sched_getaffinity(0))])
def test_ranks_have_cores_of_their_own_where_there_are_enough(threads: int, tmp_path: Path) -> None:
    """As the system tells of the thread that computes, the first."""
    folder = tiny.write_model(tmp_path, **SHAPE)
    cores = num_physical_cores()
    llm = LLM(folder, tensor_parallel_size=2, threads=threads)
    assert llm._ranks is not None
    llm.generate("Once", SamplingParams(max_tokens=2))
    allowed = [os.sched_getaffinity(pid) for pid in llm._ranks.process_ids]
    llm.close()
    ours = os.sched_getaffinity(0)
    if 2 * threads <= cores:
        assert not allowed[0] & allowed[1] and allowed[0] | allowed[1] <= ours
        assert all(len(cpus) >= threads for cpus in allowed)
    else:
        assert allowed == [ours, ours]
