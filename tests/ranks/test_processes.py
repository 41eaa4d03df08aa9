"""Cores, vital signs and messages of rank processes; their faults are in tests/engine/test_rank_faults.py.

Covers: karat.ranks.placement, karat.ranks.vitals.
"""

import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from karat.children.connection import Connection, ConnectionEndedError
from karat.ranks import placement
from karat.ranks.vitals import Vitals


def machine(root: Path, siblings: dict[int, str], nodes: dict[int, str]) -> Path:
    for cpu, listed in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{listed}\n")
    for node, cpus in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return root


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two hardware threads on two nodes, numbered so that neighbours are of different nodes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    return machine(tmp_path, siblings, {0: "0,2,4,6", 1: "1,3,5,7"})


def test_ranks_get_whole_cores_of_one_node(eight: Path) -> None:
    assert placement.cores_of_ranks(2, 2, eight) == [frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})]
    assert placement.cores_of_ranks(4, 1, eight) == [{0, 4}, {2, 6}, {1, 5}, {3, 7}]


def test_more_threads_than_cores_are_left_to_the_system(eight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert placement.cores_of_ranks(2, 3, eight) is None
    assert placement.cores_of_ranks(8, 1, eight) is None
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 3}, raising=False)
    assert placement.cores_of_ranks(2, 1, eight) == [{1, 5}, {3}]
    assert placement.cores_of_ranks(4, 1, eight) is None


def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert placement.cores_of_ranks(2, 1, tmp_path) == [{0}, {1}]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert placement.cores_of_ranks(2, 1, tmp_path) is None


def thread(root: Path, number: int, state: str, cpu_time: int) -> None:
    folder = root / f"77/task/{number}"
    folder.mkdir(parents=True, exist_ok=True)
    fields = [state, *["0"] * 10, str(cpu_time), "0", *["0"] * 5]
    (folder / "stat").write_text(f"{number} (a name) with ) in it) {' '.join(fields)}")


@pytest.mark.parametrize(
    ("states", "spent", "idle", "stopped"),
    [
        ("SS", 0, True, False),
        ("SS", 3, False, False),  # it computed in between
        ("SR", 0, False, False),  # a thread that waits for a core
        ("DS", 0, False, False),  # for a disk
        ("TT", 0, True, True),
        ("tS", 0, True, True),
    ],
)
def test_vital_signs(
    states: str, spent: int, idle: bool, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    vitals = Vitals(77, tmp_path)
    for step in range(4):
        for number, state in enumerate(states):
            thread(tmp_path, number, state, spent * step)
        now += 0.5
        vitals.look()
    assert (vitals.idle_s >= 1.5, vitals.stopped_s >= 2.0) == (idle, stopped)


def test_a_pause_of_whoever_looks_is_no_pause_of_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program and its ranks are stopped for a minute together, and it is the first to run on."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    vitals = Vitals(77, tmp_path)
    for passed, state in [(0.1, "S"), (60.0, "T"), (0.1, "T"), (0.1, "S"), (60.0, "S"), (0.1, "S")]:
        thread(tmp_path, 0, state, 0)
        now += passed
        vitals.look()
        assert vitals.stopped_s < 1.5 and vitals.idle_s < 1.5


def test_processor_time_in_vain_is_that_of_the_busiest_thread_since_there_was_progress(tmp_path: Path) -> None:
    vitals = Vitals(77, tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    for progress, spent, vain_s in [
        (0, (5, 9), 0),
        (0, (6, 11), 2),
        (0, (9, 12), 4),
        (1, (10, 20), 0),
        (1, (10, 20), 0),
        (1, (10, 20, 7), 7),
        (2, (10, 99, 8), 0),
        (2, (13, 100, 9), 3),
    ]:
        for number, seconds in enumerate(spent):
            thread(tmp_path, number, "R", seconds * ticks)
        vitals.look(progress)
        assert vitals.vain_s == vain_s


def test_where_there_is_no_proc_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", iter(range(0, 100, 10)).__next__)
    vitals = Vitals(77, tmp_path)
    vitals.look()
    vitals.look()
    assert vitals.idle_s == vitals.stopped_s == vitals.vain_s == 0


def send_without_end(connection: Connection) -> None:
    for _ in range(100):
        connection.send(b"z" * 100_000)


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = (Connection(end) for end in socket.socketpair())
    sent = [b"", b"x", os.urandom(3_000_000), b"y" * 70_000]
    sender = threading.Thread(target=lambda: [ours.send(message) for message in sent])
    sender.start()
    assert [theirs.receive() for _ in sent] == sent
    sender.join()
    ours.close()
    with pytest.raises(ConnectionEndedError):
        theirs.receive()
    with pytest.raises(ConnectionEndedError):
        send_without_end(theirs)


def test_messages_that_came_with_others_are_known_of() -> None:
    ours, theirs = (Connection(end) for end in socket.socketpair())
    ours.send(b"one")
    ours.send(b"two")
    assert not theirs.has_more
    assert theirs.receive() == b"one" and theirs.has_more
    assert theirs.receive() == b"two" and not theirs.has_more


def test_an_end_within_a_message_is_an_end() -> None:
    end, other = socket.socketpair()
    end.sendall((100).to_bytes(8, "little") + b"half")
    end.close()
    with pytest.raises(ConnectionEndedError):
        Connection(other).receive()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_vital_signs_of_this_process() -> None:
    vitals = Vitals(os.getpid())
    vitals.look()
    assert vitals.idle_s == 0 and vitals.stopped_s == 0
