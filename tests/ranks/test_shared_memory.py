"""Exchange between processes: what is sent arrives, however ranks are delayed; a step that is given up ends.

Covers: karat.ranks.group, karat.ranks.lifeline.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from karat.errors import CapacityError, RankError
from karat.ranks.group import PlannedRank, Share, SingleGroup, tree_sum
from karat.ranks.processes import Ranks
from karat.ranks.shared_memory import (
    NUMBERS_OF_A_STEP,
    SharedMemoryGroup,
    StepWatcher,
    create_file,
    make_room,
    unavailable_reason,
)

if unavailable_reason():
    pytest.skip(str(unavailable_reason()), allow_module_level=True)

SLOT, WHOLE = 4096, 8192
# Sends b"ok" if many exchanges, at random moments, gave what every rank must have put there.
STRESS = f"""
import random, socket, time
import numpy as np
from karat.children.connection import Connection
from karat.ranks.group import Share
from karat.ranks.lifeline import end_with_parent
from karat.ranks.shared_memory import SharedMemoryGroup

def sent(rank, number):
    return np.random.default_rng([rank, number]).standard_normal((1 + number % 3, 7))

def main(arguments):
    rank, size, end, lifeline, shared = map(int, arguments)
    end_with_parent(lifeline)
    connection = Connection(socket.socket(fileno=end))
    group = SharedMemoryGroup(shared, rank, size, slot_bytes={SLOT}, whole_bytes={WHOLE}, spins=False)
    rng = random.Random(rank)
    while True:
        first, count = map(int, connection.receive().split())
        group.begin(first)
        answer = b"ok"
        for number in range(count):
            if rng.random() < 0.02:
                time.sleep(rng.random() * 0.002)
            if number % 5 == 4:
                share = Share(group, tuple(3 * (r + 1) for r in range(size)))
                whole = group.gather_columns(sent(rank, number)[:, :3], share)
                right = np.concatenate([sent(r, number)[:, :3] for r in range(size)], axis=1)
                parts, right = [np.array(whole)], [right]
                group.all_gather(np.zeros(1))  # nobody writes the next whole before all have read this one
            else:
                parts = group.all_gather(sent(rank, number))
                right = [sent(r, number) for r in range(size)]
            if not all(np.array_equal(a, b) for a, b in zip(parts, right, strict=True)):
                answer = b"wrong in %d" % number
                break
        connection.send(answer)
"""


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = create_file()
    make_room(made, 8, slot_bytes=SLOT, whole_bytes=WHOLE)
    yield made
    os.close(made)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_many_exchanges(size: int, descriptor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across steps whose numbers wrap around, too."""
    (tmp_path / "stress.py").write_text(STRESS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    ranks = Ranks("stress", size, [descriptor])
    watcher = StepWatcher(descriptor, 8, slot_bytes=SLOT, whole_bytes=WHOLE)
    try:
        for first in (1 << 12, 1 << 31, (1 << 32) - 300, 5000):  # each less than 2^31 after the one before
            answers = ranks.exchange([b"%d 160" % first] * size, signs=watcher)
            assert all(0 < watcher.progress(rank) >= 160 for rank in range(size))
            assert answers == [b"ok"] * size
    finally:
        ranks.close()


def test_a_step_that_is_given_up_ends_the_waiting(descriptor: int) -> None:
    """One rank alone waits for another that never comes."""
    sizes = {"slot_bytes": SLOT, "whole_bytes": WHOLE}
    group, watcher = SharedMemoryGroup(descriptor, 0, 2, spins=True, **sizes), StepWatcher(descriptor, 2, **sizes)
    number = watcher.next_number()
    group.begin(number)
    watcher.abandon(number)
    with pytest.raises(RankError, match="abandoned"):
        group.all_gather(np.zeros(3))
    assert group.abandoned
    group.begin(watcher.next_number())
    assert not group.abandoned and not watcher.is_waiting(0)


def test_a_wait_without_the_others_ends(descriptor: int) -> None:
    group = SharedMemoryGroup(descriptor, 0, 2, slot_bytes=SLOT, whole_bytes=WHOLE, spins=False)
    channel = group.channel
    with pytest.raises(TimeoutError, match="not done their part"):
        channel.wait(1, limit_s=0.2)
    channel.publish(1)
    with pytest.raises(TimeoutError):
        channel.wait(1, limit_s=0)
    assert not StepWatcher(descriptor, 2, slot_bytes=SLOT, whole_bytes=WHOLE).is_waiting(0)

    class Impatient:
        def __getattr__(self, name: str) -> object:
            return (lambda number: channel.wait(number, 0.1)) if name == "wait" else getattr(channel, name)

    group.channel = Impatient()
    with pytest.raises(RankError, match="not done their part; load the model again"):
        group.all_gather(np.zeros(3))
    other = SharedMemoryGroup(descriptor, 1, 2, slot_bytes=SLOT, whole_bytes=WHOLE, spins=False)
    other.channel.publish(1)
    assert channel.wait(1, limit_s=0), "who is there already is not late"


def test_numbers_of_steps_never_begin_at_zero(descriptor: int) -> None:
    watcher = StepWatcher(descriptor, 2, slot_bytes=SLOT, whole_bytes=WHOLE)
    assert watcher.next_number(3) == NUMBERS_OF_A_STEP and watcher.next_number() == 4 * NUMBERS_OF_A_STEP
    watcher._next = (1 << 32) - NUMBERS_OF_A_STEP
    assert [watcher.next_number() for _ in range(2)] == [(1 << 32) - NUMBERS_OF_A_STEP, NUMBERS_OF_A_STEP]


def test_who_watches_takes_no_part(descriptor: int) -> None:
    watcher = StepWatcher(descriptor, 2, slot_bytes=SLOT, whole_bytes=WHOLE)
    with pytest.raises(ValueError, match="none of them"):
        watcher._channel.publish(1)


def test_sizes_that_make_no_sense_are_refused(descriptor: int) -> None:
    from karat._native import SharedMemory

    for rank, size, slot in ((0, 9, SLOT), (2, 2, SLOT), (-2, 2, SLOT), (0, 2, 0), (0, 2, 1 << 50)):
        with pytest.raises(ValueError, match=r"rank|shared memory"):
            SharedMemory(descriptor, rank, size, slot, WHOLE, True)
    with pytest.raises(ValueError, match="too short"):
        SharedMemory(descriptor, 0, 8, SLOT * 100, WHOLE, True)


def test_the_file_has_no_name() -> None:
    if sys.platform != "linux":
        pytest.skip("descriptors are listed by Linux")
    descriptor = create_file()
    try:
        assert (
            str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
            and os.fstat(descriptor).st_nlink == 0
        )
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_room_is_really_taken(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform == "linux" != sys.platform:
        pytest.skip("as Linux does it")
    descriptor = create_file()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("sys.platform", platform)
            make_room(descriptor, 2, slot_bytes=700_000, whole_bytes=2_000_001)
        status = os.fstat(descriptor)
        assert status.st_size >= 4 * 700_000 + 2_000_001 and status.st_blocks * 512 >= status.st_size
        assert os.pread(descriptor, status.st_size, 0) == bytes(status.st_size)
        make_room(descriptor, 2, slot_bytes=1, whole_bytes=1)
        assert os.fstat(descriptor).st_size == 6 * 4096
    finally:
        os.close(descriptor)


def test_more_than_there_is_is_refused_before_it_is_taken(descriptor: int) -> None:
    with pytest.raises(
        CapacityError, match=r"need 17592\d+ bytes of shared memory, and 1000 are available; .*use one rank"
    ):
        make_room(descriptor, 8, slot_bytes=1 << 40, whole_bytes=1, available=1000)
    assert os.fstat(descriptor).st_blocks == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_memory_that_the_system_refuses(code: int, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.posix_fallocate", refuse, raising=False)
    with pytest.raises(CapacityError, match=rf"shared memory, which the system refuses \({os.strerror(code)}\)"):
        make_room(descriptor, 8, slot_bytes=SLOT, whole_bytes=WHOLE)


FULL = """
import os, sys
from karat.ranks.shared_memory import make_room
from karat.errors import CapacityError
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
make_room(descriptor, 2, slot_bytes=4096, whole_bytes=4096)
os.ftruncate(descriptor, 1 << 30)  # the system promises what it has not got
try:
    make_room(descriptor, 2, slot_bytes=1 << 20, whole_bytes=4096)
except CapacityError as error:
    print(error, os.fstat(descriptor).st_blocks)
"""


def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    script = f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec {sys.executable} -c "$0" {tmp_path}/file'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, FULL], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert "which the system refuses (No space left on device)" in done.stdout and done.stdout.endswith(" 0\n"), done


def test_sums_follow_the_tree() -> None:
    parts = [np.float32([x]) for x in (1e8, 1.0, -1e8, 1.0)]
    assert tree_sum(parts)[0] == (parts[0] + parts[1] + (parts[2] + parts[3]))[0]
    assert tree_sum(parts)[0] != ((parts[0] + parts[2]) + (parts[1] + parts[3]))[0]
    single = SingleGroup()
    assert single.all_gather(parts[0]) == [parts[0]]
    assert Share(PlannedRank(1, 2), (3, 9)).first == 3 and Share(single, (9,)).total == 9
