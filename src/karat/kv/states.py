"""StateSlots: which slot holds the recurrent state of which sequence, and snapshots of states. Bookkeeping only.

A layer with a state (karat.kv.groups.State) overwrites it at every step, so positions have no slots of their own. A
slot holds the states of all layers after some number of tokens. A step reads one slot of a sequence and writes another,
and `commit` makes the written one the one to read. So a step that fails changes nothing and can be run again.

A snapshot is the state after a full block, kept under the identity of that block (its node in karat.kv.prefix). The
slot that the sequence has just written becomes the snapshot's: nothing is copied. The sequence, and every one that
begins with the snapshot, reads it once and then writes to slots of its own.

    sequence 7    reads 3, writes 0       step, commit →   reads 0, writes 3
                  keep(7, node)           →                reads 0, writes 3      snapshot of node: 0
                  step, commit            →                reads 3, writes 5      snapshot of node: 0
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Running:
    """The slot with the state after the last committed token (None: no token yet), and the slot of the next state."""

    read: int | None
    write: int


class StateSlots:
    """Slots for the states of at most `max_num_seqs` sequences, and snapshots that take at most `snapshot_bytes`.

    Each sequence has two slots at the most beside those of snapshots, so a slot to write to is always free. A new
    snapshot takes the place of the one that was kept or read least recently. Unknown sequences raise KeyError.
    """

    def __init__(self, *, max_num_seqs: int, state_bytes: int, snapshot_bytes: int) -> None:
        """`state_bytes` is what a slot takes: the states of all layers of one sequence."""
        assert max_num_seqs > 0 and state_bytes > 0 and snapshot_bytes >= 0, "sizes of states"
        self.max_num_seqs = max_num_seqs
        self.max_snapshots = snapshot_bytes // state_bytes
        self.num_slots = 2 * max_num_seqs + self.max_snapshots
        self._empty = list(range(self.num_slots - 1, -1, -1))
        self._num_users = [0] * self.num_slots
        self._running: dict[int, _Running] = {}
        self._snapshots: OrderedDict[Hashable, int] = OrderedDict()  # slot by identity, the least recently used first

    @property
    def num_snapshots(self) -> int:
        return len(self._snapshots)

    def has(self, identity: Hashable) -> bool:
        """Whether there is a snapshot of the state after this block."""
        return identity in self._snapshots

    def allocate(self, seq_id: int, identity: Hashable | None = None) -> None:
        """Start a sequence, with the snapshot of this block (which must be there) or without a token."""
        assert seq_id not in self._running, f"sequence {seq_id} is allocated already"
        assert len(self._running) < self.max_num_seqs, f"more than {self.max_num_seqs} sequences have states"
        read = None
        if identity is not None:
            read = self._snapshots[identity]
            self._snapshots.move_to_end(identity)
            self._num_users[read] += 1
        self._running[seq_id] = _Running(read, self._take())

    def step(self, seq_id: int) -> tuple[int | None, int]:
        """The slots that a step of this sequence reads (None: zeros) and writes. The same until `commit`."""
        running = self._running[seq_id]
        return running.read, running.write

    def commit(self, seq_id: int) -> None:
        """The step was computed: the written state is the sequence's."""
        running = self._running[seq_id]
        before, running.read = running.read, running.write
        if before is not None and self._num_users[before] == 1:
            running.write = before
            return
        if before is not None:
            self._release(before)
        running.write = self._take()

    def keep(self, seq_id: int, identity: Hashable) -> None:
        """Keep the state of a sequence as the snapshot of this block, the last of its tokens so far.

        If there is one already, it counts as used. If there is no room for any, nothing is kept.
        """
        read = self._running[seq_id].read
        assert read is not None, f"sequence {seq_id} has no state yet"
        if identity in self._snapshots:
            self._snapshots.move_to_end(identity)
        elif self.max_snapshots:
            if len(self._snapshots) == self.max_snapshots:
                self.drop(next(iter(self._snapshots)))
            self._snapshots[identity] = read
            self._num_users[read] += 1

    def drop(self, identity: Hashable) -> None:
        """Forget the snapshot of this block, if there is one. Sequences that are about to read it still may."""
        slot = self._snapshots.pop(identity, None)
        if slot is not None:
            self._release(slot)

    def free(self, seq_id: int) -> None:
        """End a sequence. Snapshots stay."""
        running = self._running.pop(seq_id)
        self._release(running.write)
        if running.read is not None:
            self._release(running.read)

    def check(self) -> None:
        """Raise AssertionError unless every slot is empty or used, and users, sequences and snapshots agree."""
        users = Counter(self._snapshots.values())
        users.update(
            slot for running in self._running.values() for slot in (running.read, running.write) if slot is not None
        )
        assert sorted([*self._empty, *users]) == list(range(self.num_slots)), "a slot is lost, or empty and used"
        assert self._num_users == [users[slot] for slot in range(self.num_slots)], "users are miscounted"
        assert len(self._running) <= self.max_num_seqs and len(self._snapshots) <= self.max_snapshots, "too many"
        for seq_id, running in self._running.items():
            assert users[running.write] == 1, f"sequence {seq_id} will write to slot {running.write}, which is read"

    def _take(self) -> int:
        slot = self._empty.pop()
        self._num_users[slot] = 1
        return slot

    def _release(self, slot: int) -> None:
        self._num_users[slot] -= 1
        if self._num_users[slot] == 0:
            self._empty.append(slot)
