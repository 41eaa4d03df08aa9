"""Slots of recurrent states against a model of them: what every slot holds, checked after every operation."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from karat.kv.states import StateSlots
from tests.support.drawn import examples

Text = tuple[int, ...]  # the tokens after which a state is; as an identity of blocks too


class StatesMachine(RuleBasedStateMachine):
    """A state is the tokens that it was made of. A step appends to what it reads, and may fail halfway."""

    @initialize(max_num_seqs=st.integers(1, 4), most_kept=st.integers(0, 4))
    def start(self, max_num_seqs: int, most_kept: int) -> None:
        self.slots = StateSlots(max_num_seqs=max_num_seqs, max_snapshots=most_kept)
        self.most_kept = most_kept
        self.texts: dict[int, Text] = {}
        self.kept: list[Text] = []  # the first to go first
        self.passing: dict[Text, int] = {}  # snapshots of a sequence for itself
        self.content: dict[int | None, object] = {None: ()}
        self.next_id = 0

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.texts)))

    @precondition(lambda self: len(self.texts) < self.slots.max_num_seqs)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from([None, *self.kept]))
        self.slots.allocate(self.next_id, text)
        self.texts[self.next_id] = text or ()
        if text is not None:
            self.use(text)
        self.next_id += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=2), fails=st.booleans())
    def step(self, data: st.DataObject, tokens: list[int], fails: bool) -> None:
        seq = self.pick(data)
        read, write = self.slots.step(seq)
        assert self.content[read] == self.texts[seq]
        self.content[write] = "half of a step"
        if fails:
            assert self.slots.step(seq) == (read, write), "a step that failed is run again"
            return
        self.content[write] = self.texts[seq] = (*self.texts[seq], *tokens)
        self.slots.commit(seq)

    @precondition(lambda self: any(self.texts.values()))
    @rule(data=st.data(), passing=st.booleans())
    def keep(self, data: st.DataObject, passing: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(seq for seq, text in self.texts.items() if text)))
        text = self.texts[seq]
        expected = None
        before = next((kept for kept, owner in self.passing.items() if owner == seq), None)
        if before is not None and before != text:
            expected = before
        elif text not in self.kept and 0 < self.most_kept == len(self.kept):
            expected = self.kept[0]
        if expected is not None:
            self.kept.remove(expected)
            self.passing.pop(expected, None)
        assert self.slots.keep(seq, text, passing=passing) == expected
        if text in self.kept:
            if not passing:
                self.use(text)
        elif self.most_kept:
            self.kept = [text, *self.kept] if passing else [*self.kept, text]
            if passing:
                self.passing[text] = seq

    def use(self, text: Text) -> None:
        self.passing.pop(text, None)
        self.kept.remove(text)
        self.kept.append(text)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.kept))
        self.slots.drop(text)
        self.kept.remove(text)
        self.passing.pop(text, None)
        self.slots.drop(text)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        seq = self.pick(data)
        self.slots.free(seq)
        del self.texts[seq]
        for text in [kept for kept, owner in self.passing.items() if owner == seq]:
            self.use(text)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "slots"):
            return
        self.slots.check()
        assert list(self.slots._snapshots) == self.kept and self.slots.num_snapshots == len(self.kept)
        assert self.slots._owners == self.passing
        assert all(self.slots.has(text) and self.content[self.slots._snapshots[text]] == text for text in self.kept)
        for seq, text in self.texts.items():
            assert self.content[self.slots.step(seq)[0]] == text, "another's state"


TestStates = StatesMachine.TestCase
TestStates.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)


def states(max_num_seqs: int = 2, num_snapshots: int = 2) -> StateSlots:
    return StateSlots(max_num_seqs=max_num_seqs, max_snapshots=num_snapshots)


def test_a_step_reads_one_slot_and_writes_the_other() -> None:
    slots = states()
    assert slots.num_slots == 2 * 2 + 2
    slots.allocate(7)
    read, first = slots.step(7)
    assert read is None
    slots.commit(7)
    read, second = slots.step(7)
    assert read == first != second
    for expected in [(second, first), (first, second)]:
        slots.commit(7)
        assert slots.step(7) == expected


def test_a_snapshot_is_read_where_it_is_and_never_written() -> None:
    slots = states()
    slots.allocate(0)
    slots.commit(0)
    slots.keep(0, "block")
    kept, _ = slots.step(0)
    slots.commit(0)
    slots.allocate(1, "block")
    assert slots.step(1)[0] == kept
    for _ in range(3):
        assert kept not in (slots.step(0)[0], slots.step(0)[1], slots.step(1)[1])
        slots.commit(0)
        slots.commit(1)
        slots.check()


def test_a_snapshot_that_goes_is_still_there_for_who_is_about_to_read_it() -> None:
    slots = states(num_snapshots=1)
    slots.allocate(0)
    slots.commit(0)
    slots.keep(0, "first")
    slots.allocate(1, "first")
    read, write = slots.step(1)
    slots.commit(0)
    slots.keep(0, "second")
    assert not slots.has("first") and slots.has("second") and slots.step(1) == (read, write)
    slots.check()


def test_a_passing_snapshot_is_replaced_by_the_next_and_lasts_once_its_sequence_ends() -> None:
    slots = states(num_snapshots=2)
    for seq_id, text in enumerate("ab"):
        slots.allocate(seq_id)
        slots.commit(seq_id)
        slots.keep(seq_id, text)
    for text, gone in [("c", "a"), ("d", "c"), ("e", "d")]:
        slots.commit(0)
        assert slots.keep(0, text, passing=True) == gone
    slots.commit(1)
    assert slots.keep(1, "f", passing=True) == "e", "the first to go, though it is new"
    slots.free(1)
    slots.commit(0)
    assert slots.keep(0, "g") == "b" and slots.has("f")
    slots.check()


def test_a_passing_snapshot_that_another_begins_with_lasts() -> None:
    slots = states()
    slots.allocate(0)
    slots.commit(0)
    slots.keep(0, "a", passing=True)
    slots.allocate(1, "a")
    slots.commit(0)
    assert slots.keep(0, "b", passing=True) is None and slots.has("a") and slots.has("b")
    slots.check()


def test_without_room_for_snapshots_none_is_kept() -> None:
    slots = states(num_snapshots=0)
    slots.allocate(0)
    slots.commit(0)
    slots.keep(0, "block")
    assert not slots.has("block") and slots.num_snapshots == 0
    slots.check()


def test_what_cannot_be_is_caught() -> None:
    slots = states(max_num_seqs=1)
    slots.allocate(0)
    with pytest.raises(AssertionError, match="allocated already"):
        slots.allocate(0)
    with pytest.raises(AssertionError, match="more than 1 sequences"):
        slots.allocate(1)
    with pytest.raises(AssertionError, match="no state yet"):
        slots.keep(0, "block")
    slots.free(0)
    with pytest.raises(KeyError):
        slots.allocate(0, "block")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda slots: slots._empty.pop(), "lost"),
        (lambda slots: slots._empty.append(slots.step(0)[1]), "empty and used"),
        (lambda slots: slots._num_users.__setitem__(0, 5), "miscounted"),
        (lambda slots: setattr(slots, "max_snapshots", 0), "too many"),
        (lambda slots: setattr(slots._running[0], "write", slots.step(0)[0]), "lost|which is read"),
        (lambda slots: slots._snapshots.popitem(), "miscounted"),
    ],
)
def test_check_finds_what_is_wrong(break_it: Callable[[StateSlots], object], message: str) -> None:
    slots = states()
    slots.allocate(0)
    slots.commit(0)
    slots.keep(0, "block")
    slots.check()
    break_it(slots)
    with pytest.raises(AssertionError, match=message):
        slots.check()
