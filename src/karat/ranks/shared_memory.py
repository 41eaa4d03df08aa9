"""Groups between processes of one machine, over a piece of memory that all of them have mapped.

The memory is an anonymous file: it has no name that could be left behind, needs no room in /dev/shm, and is gone with
the last process that has it.
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

# Of the collectives of a step; their numbers count on from step to step and may wrap around.
NUMBERS_OF_A_STEP = 1 << 12
MAX_RANKS = 8  # csrc/group/collective.h
_CONTROL_BYTES = 4096
_PIECE = 1 << 20
_HEADER = np.dtype([("dtype", "S8"), ("shape", "<i8", 6), ("ndim", "<i8")])


class StepAbandonedError(RankError):
    """The step was given up because another rank failed; that one says why."""


class SharedMemoryGroup:
    """A rank's view of its group (karat.ranks.group.Group). `descriptor` is of a file that `create_file` made.

    With `spins` a rank looks for its neighbours' parts for a while before it sleeps, for which it needs its own core.
    """

    def __init__(
        self, descriptor: int, rank: int, size: int, *, slot_bytes: int, whole_bytes: int, spins: bool
    ) -> None:
        assert _CHANNEL is not None, "who starts ranks has looked"
        try:
            self.channel = _CHANNEL.SharedMemory(descriptor, rank, size, slot_bytes, whole_bytes, spins)
        except RuntimeError as refusal:
            raise CapacityError(
                f"{refusal}; raise the limit of address space (ulimit -v), or use fewer ranks"
            ) from None
        self.rank, self.size = rank, size

    def begin(self, number: int) -> None:
        """A step starts, whose collectives are numbered from `number` on (see `NUMBERS_OF_A_STEP`)."""
        self.channel.begin(number)

    @property
    def abandoned(self) -> bool:
        """Whether the step was given up."""
        return bool(self.channel.abandoned)

    def stir(self) -> None:
        """Tell who watches that this rank gets on with its work. Collectives and the native plan do so too."""
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
        except TimeoutError as late:  # of an hour: who watches the ranks gives up a step long before
            raise RankError(f"{late}; load the model again") from None
        if not done:
            raise StepAbandonedError("the step was abandoned: another rank failed")


class Watcher:
    """The view of who starts the ranks: it numbers the steps, may give one up, and reads what ranks made whole."""

    def __init__(self, descriptor: int, size: int, *, slot_bytes: int, whole_bytes: int) -> None:
        assert _CHANNEL is not None, "who starts ranks has looked"
        self._channel = _CHANNEL.SharedMemory(descriptor, -1, size, slot_bytes, whole_bytes, False)
        self._next = NUMBERS_OF_A_STEP

    def next_number(self, num_steps: int = 1) -> int:
        """Where the collectives of a command that takes `num_steps` steps are numbered from."""
        number = self._next
        self._next = (number + num_steps * NUMBERS_OF_A_STEP) % (1 << 32) or NUMBERS_OF_A_STEP
        return number

    def abandon(self, number: int) -> None:
        """End the waiting of all ranks in the step that began with `number`."""
        self._channel.abandon(number)

    def is_waiting(self, rank: int) -> bool:
        """Whether the rank sleeps until another has done its part."""
        return bool(self._channel.is_waiting(rank))

    def progress(self, rank: int) -> int:
        """A number that changes as long as the rank gets on with its work."""
        return int(self._channel.progress(rank))

    def whole(self, shape: tuple[int, int], dtype: np.dtype[np.floating]) -> Array:
        """What `gather_columns` made, as it lies there, until the next step."""
        return _as_array(self._channel.whole(), shape, dtype)


class Tally:
    """A number of each rank that who starts them can read meanwhile: how far it has come. In the file's first page."""

    def __init__(self, descriptor: int) -> None:
        page = np.frombuffer(mmap.mmap(descriptor, _CONTROL_BYTES), np.uint64)
        self._numbers = page[-MAX_RANKS:]

    def write(self, rank: int, number: int) -> None:
        self._numbers[rank] = number

    def total(self) -> int:
        return int(self._numbers.sum())


def unavailable_reason() -> str | None:
    """Why ranks cannot work together here; None where they can."""
    return None if _CHANNEL is not None else "tensor parallelism needs the C++ extension, which is not installed here"


def create_file() -> int:
    """The descriptor of a new anonymous file, empty as yet, that ranks can map; the caller closes it.

    Raises CapacityError where the system refuses it, ExecutorError where there is no extension to use it with.
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
    """Make the file zeros, as many as such a group needs, while nobody uses it: memory that is really taken.

    Raises CapacityError where they are more than `available`, or the system refuses them.
    """
    assert _CHANNEL is not None, "who created the file has looked"
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
        os.ftruncate(descriptor, 0)  # what there was of it
        raise CapacityError(
            f"the ranks need {num_bytes} bytes of shared memory, which the system refuses ({fault.strerror}); "
            f"raise its limits (ulimit -f, a container's memory), {advice}"
        ) from fault


def _reserve(descriptor: int, num_bytes: int) -> None:
    """Zeros that have their memory already: without it, whoever writes there first would be killed (SIGBUS)."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, num_bytes)
        return
    zeros = memoryview(bytes(_PIECE))
    start = 0
    while start < num_bytes:
        start += os.pwrite(descriptor, zeros[: num_bytes - start], start)


def _put(slot: NDArray[np.uint8], part: Array) -> None:
    """A part, with what it is in front of it."""
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
