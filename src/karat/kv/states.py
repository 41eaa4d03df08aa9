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

A passing snapshot is for the sequence itself, should it be preempted. Its next one takes its place, and it is the first
to go when others need room. When the sequence ends or is preempted, it becomes as good as others.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Running:
    """The slot with the state after the last committed token (None: no token yet), and the slot of the next state.

    `passing` is the block of its own passing snapshot.
    """

    read: int | None
    write: int
    passing: Hashable | None = None


class StateSlots:
    """Slots for the states of at most `max_num_seqs` sequences, and for at most `max_snapshots` snapshots.

    Each sequence has two slots at the most beside those of snapshots, so a slot to write to is always free. A new
    snapshot takes the place of the one that was kept or read least recently. Unknown sequences raise KeyError.
    """

    def __init__(self, *, max_num_seqs: int, max_snapshots: int) -> None:
        assert max_num_seqs > 0 and max_snapshots >= 0, "sizes of states"
        self.max_num_seqs = max_num_seqs
        self.max_snapshots = max_snapshots
        self.num_slots = num_state_slots(max_num_seqs, max_snapshots)
        self.num_changes = 0  # how often a snapshot came or went
        self._empty = list(range(self.num_slots - 1, -1, -1))
        self._num_users = [0] * self.num_slots
        self._running: dict[int, _Running] = {}
        self._snapshots: OrderedDict[Hashable, int] = OrderedDict()  # slot by identity, the first to go first
        self._owners: dict[Hashable, int] = {}  # of passing snapshots, by identity

    def anew(self) -> "StateSlots":
        """Empty slots of the same number."""
        return StateSlots(max_num_seqs=self.max_num_seqs, max_snapshots=self.max_snapshots)

    @property
    def num_seqs(self) -> int:
        return len(self._running)

    @property
    def num_snapshots(self) -> int:
        return len(self._snapshots)

    @property
    def oldest(self) -> Hashable | None:
        """The block whose snapshot goes next, if there is any."""
        return next(iter(self._snapshots), None)

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
            self.use(identity)
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

    def keep(self, seq_id: int, identity: Hashable, *, passing: bool = False) -> Hashable | None:
        """Keep the state of a sequence as the snapshot of this block, the last of its tokens so far.

        If there is one already, it counts as used, unless this one is `passing`. If there is no room for any, nothing
        is kept. Returns the block whose snapshot went for it.
        """
        running = self._running[seq_id]
        assert running.read is not None, f"sequence {seq_id} has no state yet"
        is_new = self.max_snapshots > 0 and identity not in self._snapshots
        gone = None
        if running.passing not in (None, identity):
            gone = running.passing
        elif is_new and len(self._snapshots) == self.max_snapshots:
            gone = self.oldest
        if gone is not None:
            self.drop(gone)
        if is_new:
            self._snapshots[identity] = running.read
            self._num_users[running.read] += 1
            self.num_changes += 1
            if passing:
                running.passing = identity
                self._owners[identity] = seq_id
                self._snapshots.move_to_end(identity, last=False)
        elif not passing and identity in self._snapshots:
            self.use(identity)
        return gone

    def use(self, identity: Hashable) -> None:
        """The snapshot of this block, which must be there, is wanted: it is the last to go."""
        self._disown(identity)
        self._snapshots.move_to_end(identity)

    def drop(self, identity: Hashable) -> None:
        """Forget the snapshot of this block, if there is one. Sequences that are about to read it still may."""
        slot = self._snapshots.pop(identity, None)
        if slot is not None:
            self._disown(identity)
            self.num_changes += 1
            self._release(slot)

    def free(self, seq_id: int) -> None:
        """End a sequence. Snapshots stay."""
        running = self._running[seq_id]
        if running.passing is not None:
            self.use(running.passing)
        del self._running[seq_id]
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
        owned = {running.passing: seq_id for seq_id, running in self._running.items() if running.passing is not None}
        assert owned == self._owners and owned.keys() <= self._snapshots.keys(), "a passing snapshot of nobody"
        for seq_id, running in self._running.items():
            assert users[running.write] == 1, f"sequence {seq_id} will write to slot {running.write}, which is read"

    def _disown(self, identity: Hashable) -> None:
        """If it is a passing snapshot, it is none any more."""
        owner = self._owners.pop(identity, None)
        if owner is not None:
            self._running[owner].passing = None

    def _take(self) -> int:
        slot = self._empty.pop()
        self._num_users[slot] = 1
        return slot

    def _release(self, slot: int) -> None:
        self._num_users[slot] -= 1
        if self._num_users[slot] == 0:
            self._empty.append(slot)


def num_state_slots(max_num_seqs: int, max_snapshots: int) -> int:
    """Two for each running sequence, one that a step reads and one that it writes; and one for each snapshot."""
    return 2 * max_num_seqs + max_snapshots
