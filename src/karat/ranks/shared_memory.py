"""SharedMemoryGroup: a group of processes of one machine, over memory that all of them have mapped.

    byte 0             4096
         | control     | rank 0: slot 0 | slot 1 | rank 1: slot 0 | slot 1 | … | whole       |
           one page      slot_bytes each, rounded up to pages                    whole_bytes

    control   byte 0      number of the step that was abandoned: uint32
              byte 64     a line of 128 bytes for each of 8 ranks: published and sleepers (uint32 each),
                          64 bytes further waits and progress (uint32 each)
              byte 4032   Tally: a number of each rank, 8 × uint64
    slot      part of a collective: header (dtype, shape), then the array; collective n uses slot n % 2
    whole     the result of gather_columns, written by all ranks, each its own columns

csrc/group/collective.h is the other side of this layout. The memory is an anonymous file: it leaves no name behind,
needs no room in /dev/shm, and is freed with the last process that maps it.
"""

import mmap
import os
import sys
import tempfile
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from karat.errors import CapacityError, ExecutorError, RankError
from karat.ranks.group import Array, Share

try:
    import karat._native as _native
except ImportError:
    _CHANNEL: ModuleType | None = None
else:
    _CHANNEL = _native

# Collectives that a step may number. Numbers go on from step to step and may wrap around.
NUMBERS_OF_A_STEP = 1 << 12
_PIECE = 1 << 20
_HEADER = np.dtype([("dtype", "S8"), ("shape", "<i8", 6), ("ndim", "<i8")])


class StepAbandonedError(RankError):
    """The step was given up because another rank failed. That rank's error says why."""


class SharedMemoryGroup:
    """A rank's view of its group (karat.ranks.group.Group). `descriptor` is that of a file from `create_file`.

    With `spins` a rank polls for the other ranks' parts for some microseconds before it sleeps, which needs a core of
    its own.
    """

    def __init__(
        self, descriptor: int, rank: int, size: int, *, slot_bytes: int, whole_bytes: int, spins: bool
    ) -> None:
        assert _CHANNEL is not None, "unavailable_reason() is to be checked first"
        try:
            self.channel = _CHANNEL.SharedMemory(descriptor, rank, size, slot_bytes, whole_bytes, spins)
        except RuntimeError as refusal:
            raise CapacityError(
                f"{refusal}; raise the limit of address space (ulimit -v), or use fewer ranks"
            ) from None
        self.rank, self.size = rank, size

    def begin(self, number: int) -> None:
        """Start a step. Its collectives are numbered from `number` on (see `NUMBERS_OF_A_STEP`)."""
        self.channel.begin(number)

    @property
    def abandoned(self) -> bool:
        """Whether the step was given up."""
        return bool(self.channel.abandoned)

    def stir(self) -> None:
        """Report progress to the watching process. Collectives and the native plan do so too."""
        self.channel.stir()

    def all_gather(self, part: Array) -> list[Array]:
        number = self.channel.reserve(1)
        _put(self.channel.slot(self.rank, number), part)
        self._exchange(number)
        return [_get(self.channel.slot(rank, number)) for rank in range(self.size)]

    def gather_columns(self, part: Array, share: Share) -> Array:
        whole = _as_array(self.channel.whole(), (len(part), share.total), part.dtype)
        whole[:, share.first : share.first + part.shape[1]] = part
        self._exchange(self.channel.reserve(1))
        return whole

    def _exchange(self, number: int) -> None:
        self.channel.publish(number)
        try:
            done = self.channel.wait(number)
        except TimeoutError as late:  # after an hour: the watching process gives up a step long before
            raise RankError(f"{late}; load the model again") from None
        if not done:
            raise StepAbandonedError("the step was abandoned: another rank failed")


class StepWatcher:
    """The starting process's view of a group: it numbers steps, may abandon one, and reads the gathered columns."""

    def __init__(self, descriptor: int, size: int, *, slot_bytes: int, whole_bytes: int) -> None:
        assert _CHANNEL is not None, "unavailable_reason() is to be checked first"
        self._channel = _CHANNEL.SharedMemory(descriptor, -1, size, slot_bytes, whole_bytes, False)
        self._next = NUMBERS_OF_A_STEP

    def next_number(self, num_steps: int = 1) -> int:
        """The first number of the collectives of a command that takes `num_steps` steps."""
        number = self._next
        self._next = (number + num_steps * NUMBERS_OF_A_STEP) % (1 << 32) or NUMBERS_OF_A_STEP
        return number

    def abandon(self, number: int) -> None:
        """End all waits of all ranks in the step that began with `number`."""
        self._channel.abandon(number)

    def is_waiting(self, rank: int) -> bool:
        """Whether the rank sleeps until another rank has done its part."""
        return bool(self._channel.is_waiting(rank))

    def progress(self, rank: int) -> int:
        """A number that changes while the rank makes progress."""
        return int(self._channel.progress(rank))

    def whole(self, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> Array:
        """The result of `gather_columns`, as a view of the memory. Valid until the next step."""
        return _as_array(self._channel.whole(), shape, dtype)


class RankTally:
    """A progress number of each rank in the file's first page, which the starting process can read at any time."""

    def __init__(self, descriptor: int) -> None:
        assert _CHANNEL is not None, "the descriptor is of a file from create_file"
        page = np.frombuffer(mmap.mmap(descriptor, _CHANNEL.CONTROL_BYTES), np.uint64)
        self._numbers = page[-_CHANNEL.MAX_RANKS :]

    def write(self, rank: int, number: int) -> None:
        """Set the number of a rank."""
        self._numbers[rank] = number

    def total(self) -> int:
        """The sum of all ranks' numbers."""
        return int(self._numbers.sum())


def unavailable_reason() -> str | None:
    """Why this installation cannot run ranks; None if it can."""
    return None if _CHANNEL is not None else "tensor parallelism needs the C++ extension, which is not installed here"


def create_file() -> int:
    """The descriptor of a new, empty anonymous file that ranks can map. The caller closes it.

    Raises CapacityError if the system refuses it, ExecutorError without the C++ extension.
    """
    if _CHANNEL is None:
        raise ExecutorError(f"{unavailable_reason()}; with a C++ compiler on the PATH, install Karat again")
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("karat-ranks", os.MFD_CLOEXEC)
        with tempfile.TemporaryFile(buffering=0) as file:
            return os.dup(file.fileno())
    except OSError as fault:
        raise CapacityError(
            f"the ranks need shared memory, which the system refuses ({fault.strerror}); raise its limits (ulimit -n), "
            "or use one rank"
        ) from fault


def make_room(descriptor: int, size: int, *, slot_bytes: int, whole_bytes: int, available: int | None = None) -> None:
    """Fill the file with as many zeros as the group needs; the memory is really taken. No process may use the file.

    Raises CapacityError if they are more than `available` bytes, or if the system refuses them.
    """
    assert _CHANNEL is not None, "create_file checks that"
    num_bytes = _CHANNEL.SharedMemory.num_bytes(size, slot_bytes, whole_bytes)
    advice = "lower max_num_batched_tokens or max_num_seqs, or use one rank"
    os.ftruncate(descriptor, 0)
    if available is not None and num_bytes > available:
        raise CapacityError(
            f"the ranks need {num_bytes} bytes of shared memory, and {available} are available; free memory, {advice}"
        )
    try:
        _reserve(descriptor, num_bytes)
    except OSError as fault:
        os.ftruncate(descriptor, 0)  # give back the part that was reserved
        raise CapacityError(
            f"the ranks need {num_bytes} bytes of shared memory, which the system refuses ({fault.strerror}); "
            f"raise its limits (ulimit -f, a container's memory), {advice}"
        ) from fault


def _reserve(descriptor: int, num_bytes: int) -> None:
    """Zeros with memory behind them. Without memory, the first process to write there would be killed (SIGBUS)."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, num_bytes)
        return
    zeros = memoryview(bytes(_PIECE))
    start = 0
    while start < num_bytes:
        start += os.pwrite(descriptor, zeros[: num_bytes - start], start)


def _put(slot: NDArray[np.uint8], part: Array) -> None:
    """Write a part into a slot: a header with dtype and shape, then the array."""
    header = np.zeros(1, _HEADER)
    header["dtype"], header["ndim"] = part.dtype.str.encode(), part.ndim
    header["shape"][0, : part.ndim] = part.shape
    assert _HEADER.itemsize + part.nbytes <= len(slot), f"a part of {part.nbytes} bytes for a slot of {len(slot)}"
    slot[: _HEADER.itemsize] = header.view(np.uint8)
    slot[_HEADER.itemsize : _HEADER.itemsize + part.nbytes] = np.ascontiguousarray(part).reshape(-1).view(np.uint8)


def _get(slot: NDArray[np.uint8]) -> Array:
    header = slot[: _HEADER.itemsize].view(_HEADER)[0]
    shape = tuple(int(n) for n in header["shape"][: header["ndim"]])
    return _as_array(slot[_HEADER.itemsize :], shape, np.dtype(header["dtype"].decode()))


def _as_array(memory: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[np.floating]) -> Array:
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    assert num_bytes <= len(memory), f"an array of {shape} in {len(memory)} bytes"
    array: Array = memory[:num_bytes].view(dtype).reshape(shape)
    return array
