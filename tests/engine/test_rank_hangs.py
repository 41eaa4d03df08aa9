"""Ranks that are there and get nowhere, told from those that work long: asleep or spinning, in a step or loading."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from karat import LLM, SamplingParams
from karat.engine.ranks import rank_model as under_test
from karat.engine.ranks.rank_model import ParallelModel
from karat.errors import RankError
from karat.ops.native import unavailable_reason
from karat.ranks.processes import Patience, Ranks
from tests.engine import tiny
from tests.support.clock import FairClock
from tests.support.parallel import parallel

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("ranks are watched through /proc", allow_module_level=True)

LONG = 16_000 if "KARAT_LONG" in os.environ else 9_000  # tokens of a step that takes seconds
NOTICED_S = 20.0  # ten times 1.5 seconds of silence, and starting and ending
ECHO = """
import socket, time
from karat.children.connection import Connection
from karat.ranks.lifeline import end_with_parent

def main(arguments):
    rank, size, end, lifeline, shared = map(int, arguments)
    end_with_parent(lifeline)
    connection = Connection(socket.socket(fileno=end))
    while True:
        message = connection.receive()
        if message == b"hang" and rank == 1:
            time.sleep(100)
        if message == b"work":
            until = time.process_time() + 2.5
            while time.process_time() < until:
                pass
        connection.send(message)
"""
# As karat.engine.ranks.rank's, but for one of them.
BROKEN = """
import time
from karat.engine.ranks.rank import Rank, serve
from karat.engine.ranks.messages import LoadRank, Step

class Broken(Rank):
    def do(self, command):
        if self.rank == 1 and isinstance(command, {command}):
            {instead}
        return super().do(command)

def main(arguments):
    serve(arguments, Broken)
"""


@dataclass
class Told:
    """Signs as a test wants them."""

    waiting: set[int] = field(default_factory=set)
    progress: Callable[[int], int] = lambda rank: 0

    def is_waiting(self, rank: int) -> bool:
        return rank in self.waiting


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The name of a module of this text, for ranks to run."""
    names = (f"ranks_of_a_test_{number}" for number in count())
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(text: str) -> str:
        name = next(names)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.mark.slow
def test_a_rank_that_sleeps_is_told_from_one_that_works_long(module: Callable[[str], str]) -> None:
    ranks = Ranks(module(ECHO), 2, [0])
    assert ranks.exchange([b"a", b"b"], signs=Told()) == [b"a", b"b"]
    numbers = count()
    assert ranks.exchange([b"work", b"b"], signs=Told({1}, lambda rank: next(numbers))) == [b"work", b"b"]
    with FairClock() as clock, pytest.raises(RankError, match=r"rank 1 .* has done nothing for 1\.5 s"):
        ranks.exchange([b"hang", b"hang"], signs=Told({0}))
    assert clock.seconds < NOTICED_S


def test_the_end_of_ranks_that_the_system_puts_off_is_not_waited_for(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(module(ECHO), 2, [0])
    waits: list[float | None] = []

    def wait(timeout: float | None = None) -> int:
        waits.append(timeout)
        raise subprocess.TimeoutExpired("a rank", timeout or 0)

    with monkeypatch.context() as patch:
        for process in ranks._processes:
            patch.setattr(process, "wait", wait)
        ranks.close()
    assert len(waits) == 4 and None not in waits
    for process in ranks._processes:
        assert process.wait(600)  # killed, or ended by itself just before


@pytest.mark.slow
def test_a_rank_that_spins_is_told_from_one_that_gets_on(module: Callable[[str], str]) -> None:
    """By its processor time, not the time that passes."""
    ranks = Ranks(module(ECHO), 2, [0])
    patience = Patience(vain_s=0.5)
    numbers = count()
    gets_on = Told({1}, lambda rank: next(numbers))
    assert ranks.exchange([b"work", b"b"], signs=gets_on, patience=patience) == [b"work", b"b"]
    with pytest.raises(RankError, match=r"rank 0 .* used 0\.5 s of processor time without progress"):
        ranks.exchange([b"work", b"b"], signs=Told({1}), patience=patience)


@pytest.mark.slow
def test_a_rank_that_all_others_wait_for_may_be_slow_but_not_much_slower(module: Callable[[str], str]) -> None:
    """Each gets nowhere for 2.5 s of processor time: together that is a long piece of work, alone it is a fault."""
    ranks = Ranks(module(ECHO), 2, [0])
    assert ranks.exchange([b"work", b"work"], signs=Told()) == [b"work", b"work"]
    with pytest.raises(RankError, match=r"rank 0 .* used 1\.5 s of .* without progress, while all others wait for it"):
        ranks.exchange([b"work", b"b"], signs=Told())


def test_a_rank_of_a_model_that_spins_in_a_step_is_found_by_the_others(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    folder = tiny.write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
    team = ParallelModel(2, module(BROKEN.format(command="Step", instead="while True: pass")))
    try:
        with pytest.raises(RankError, match=r"rank 1 .* used 1\.5 s of processor time .* all others wait for it"):
            parallel(team, folder, [[1, 2, 3]], chunk=8)
    finally:
        team.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("command", "instead", "message"),
    [
        ("Step", "while True: pass", r"rank 1 .* used 0\.5 s of processor time without progress"),
        ("Step", "time.sleep(100)", r"rank 1 .* has done nothing for 1\.5 s"),
        ("LoadRank", "while True: pass", r"rank 1 .* used 0\.7 s of processor time without progress"),
        ("LoadRank", "time.sleep(100)", r"rank 1 .* has done nothing for 1\.2 s"),
    ],
)
def test_ranks_of_a_model(
    command: str,
    instead: str,
    message: str,
    module: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert under_test.LOADING.vain_s >= 60 <= under_test.STEP.vain_s and under_test.LOADING.idle_s >= 10
    monkeypatch.setattr(under_test, "STEP", Patience(vain_s=0.5))
    monkeypatch.setattr(under_test, "LOADING", Patience(vain_s=0.7, idle_s=1.2))
    folder = tiny.write_model(tmp_path, hidden_size=72, num_attention_heads=12, intermediate_size=50)
    team = ParallelModel(2, module(BROKEN.format(command=command, instead=instead)))
    try:
        with pytest.raises(RankError, match=message):
            parallel(team, folder, [[1, 2, 3]], chunk=8)
    finally:
        team.close()


def processor_seconds(process_ids: tuple[int, ...]) -> float:
    """That the busiest of these processes has had."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in process_ids)
    return max(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_a_long_layer_gets_on_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer's attention takes nearly the whole step. The patience is three quarters of that time: with less, a slow
    rank on a busy machine counts as one that hangs."""
    folder = tiny.write_model(
        tmp_path,
        hidden_size=256,
        num_attention_heads=32,
        num_key_value_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=16384,
    )
    llm = LLM(folder, tensor_parallel_size=2, threads=1, max_num_batched_tokens=16384, max_num_seqs=1)
    assert llm._ranks is not None
    process_ids = llm._ranks.process_ids
    try:
        params = SamplingParams(temperature=0, max_tokens=1)
        before = processor_seconds(process_ids)
        llm.generate([[7] * LONG], params)
        spent = processor_seconds(process_ids) - before
        monkeypatch.setattr(under_test, "STEP", Patience(vain_s=spent * 3 / 4))
        assert llm.generate([[8] * LONG], params)[0].outputs[0].token_ids
        assert spent > 0.3, "looked at several times"
    finally:
        llm.close()
