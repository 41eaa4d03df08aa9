"""Readers that take fewer rows than they are given: only tokens whose rows they take stay in the cache.

The test's own reader drafts: it puts tokens behind the last one before anything chose them, and takes their rows up to
the first wrong one.
"""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.engine.choosing.logits_readers import LogitsReader, Reader
from karat.engine.engine import Engine
from karat.engine.scheduling.sequence import Sequence
from tests.engine.fakes import BYTES, SAMPLED, FakeModel, WholeEngine, alone, make_config, request
from tests.engine.test_overlap import Late

WINDOWS = [(None,), (None, 7), (None, 5, None, 11)]
VOCAB = BYTES.vocab_size
MODEL = FakeModel(make_config(vocab_size=VOCAB))


def greedy(prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """What the fake model says after a prompt, computed without an engine."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(int(MODEL.noise(tuple(token_ids)).argmax()))
    return token_ids[len(prompt) :]


class Drafting(Reader):
    """Generates the `num_tokens` likeliest tokens, with up to `most` drafts a step, of which some are right."""

    def __init__(self, sequence: Sequence, num_tokens: int, rng: random.Random, most: int) -> None:
        self.sequence, self.error = sequence, ""
        self.steps: list[tuple[int, int]] = []  # rows given and taken
        self._rng, self._most, self._num_tokens = rng, most, num_tokens
        self._chosen: list[int] = []
        self._right = greedy(tuple(sequence.token_ids), num_tokens)
        sequence.num_read = sequence.prompt_len - 1

    @property
    def chosen(self) -> list[int]:
        return self._chosen

    @property
    def done(self) -> bool:
        return len(self._chosen) == self._num_tokens

    def read(self, first: int, rows: NDArray[np.floating]) -> int:
        token_ids = self.sequence.token_ids
        num_taken = 0
        for position, row in enumerate(rows, first):
            num_taken += 1
            assert (row == MODEL.noise(tuple(token_ids[: position + 1]))).all(), "a row of another text"
            chosen = int(row.argmax())
            self._chosen.append(chosen)
            if token_ids[position + 1 : position + 2] != [chosen] or self.done:
                drafts = self._drafts()
                token_ids[position + 1 :] = [chosen, *drafts]
                self.sequence.num_drafts = len(drafts)
                break
            self.sequence.num_drafts -= 1  # it was right
        self.steps.append((len(rows), num_taken))
        return num_taken

    def _drafts(self) -> list[int]:
        num_chosen, rng = len(self._chosen), self._rng
        num = min(rng.randint(0, self._most), self._num_tokens - num_chosen - 1)
        right = self._right[num_chosen : num_chosen + max(num, 0)]
        return [token_id if rng.random() < 0.7 else rng.randrange(VOCAB) for token_id in right]

    def fail(self, error: Exception) -> None:
        raise error

    def recover(self) -> None:
        del self.sequence.token_ids[self.sequence.prompt_len + len(self._chosen) :]
        self.sequence.num_drafts = 0


class Hesitant(LogitsReader):
    """Takes only the first of the rows that it is given, some at a time."""

    def __init__(self, sequence: Sequence, rng: random.Random) -> None:
        super().__init__(sequence, np.full((sequence.prompt_len, VOCAB), np.nan, np.float32))
        self._rng = rng

    def read(self, first: int, rows: NDArray[np.floating]) -> int:
        return super().read(first, rows[: self._rng.randint(1, len(rows))])


def add(engine: Engine, reader: Reader) -> None:
    engine._readers[reader.sequence.seq_id] = reader
    engine.scheduler.add(reader.sequence)


def some_text(rng: random.Random) -> tuple[int, ...]:
    return tuple(b"ab" * 3 + bytes(rng.choices(b"ab", k=rng.randint(1, 18))))


def check_findable(engine: Engine) -> None:
    """Whatever can be found by content is a beginning of a text that was computed, in every group that has it."""
    blocks = engine.scheduler.blocks
    for node in blocks._index.nodes():
        told = [token_id for each in [*node.path()][::-1] for token_id in each.token_ids]
        for group, block in enumerate(node.blocks):
            if block is not None:
                size, slots = blocks.block_size, engine.run.slots[group]  # type: ignore[attr-defined]
                assert slots[block * size : (block + 1) * size].tolist() == told[-size:]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.sampled_from([20, 26, 80]),
    windows=st.sampled_from(WINDOWS),
    share=st.booleans(),
    late=st.booleans(),
    states=st.booleans(),
)
def test_only_accepted_tokens_stay(
    seed: int, num_blocks: int, windows: tuple[int | None, ...], share: bool, late: bool, states: bool
) -> None:
    """Beside requests, with preemptions, with windows that give back blocks as tokens are accepted, and with states."""
    rng = random.Random(seed)
    config = make_config(
        vocab_size=VOCAB,
        num_blocks=num_blocks,
        max_num_seqs=4,
        max_num_batched_tokens=11,
        enable_prefix_caching=share,
        windows=windows,
        overlaps_steps=late,
        state_bytes=10 if states else 0,
        max_snapshots=3 if states else 0,
    )
    model = FakeModel(config)
    engine = WholeEngine(Late(model.compute) if late else model, BYTES, config)
    items = [
        request(str(i), some_text(rng), seed=i, **SAMPLED, prompt_logprobs=rng.choice([None, 1])) for i in range(3)
    ]
    drafting, hesitant, waiting = list[Drafting](), list[Hesitant](), list[Any](items)
    for _ in range(4):
        num_tokens = rng.randint(1, 20)
        sequence = engine._sequence(some_text(rng), max_new=num_tokens)
        drafting.append(Drafting(sequence, num_tokens, rng, most=rng.choice([0, 2, 5])))
        hesitant.append(Hesitant(engine._sequence(some_text(rng), max_new=0), rng))
    waiting += [*drafting, *hesitant]
    rng.shuffle(waiting)
    outputs = {}
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.5:
            new = waiting.pop()
            engine.add_request(new) if new in items else add(engine, new)
        if rng.random() < 0.03 and engine._in_flight is None:
            engine.scheduler.preempt_all()
        outputs.update({update.request_id: update.output for update in engine.step() if update.output})
        engine.scheduler.check()
        if not late:
            check_findable(engine)
    assert engine.scheduler.blocks.num_free == sum(config.group_blocks)
    assert all(outputs[item.request_id] == alone(item) for item in items)
    for reader in drafting:
        assert reader.chosen == reader._right
    for text in hesitant:
        token_ids = text.sequence.token_ids
        assert text.error is None
        assert all((text.target[i] == MODEL.noise(tuple(token_ids[: i + 1]))).all() for i in range(len(token_ids)))


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_step_whose_drafts_are_wrong(windows: tuple[int | None, ...]) -> None:
    """The cache ends behind the last accepted token; blocks of drafts stay reserved and are not found by content."""
    config = make_config(vocab_size=VOCAB, windows=windows)
    engine = Engine(FakeModel(config), BYTES, config)
    prompt = tuple(b"abcdefghij")
    reader = Drafting(engine._sequence(prompt, max_new=30), 30, random.Random(0), most=0)
    add(engine, reader)
    engine.step()
    blocks, sequence = engine.scheduler.blocks, reader.sequence
    right = greedy(prompt, 8)
    wrong = [(token_id + 1) % VOCAB for token_id in right]
    assert blocks.cached_len(sequence.seq_id) == 10 and sequence.token_ids[10:] == right[:1]

    sequence.token_ids += [right[1], *wrong[2:8]]  # seven drafts, of which one is right
    sequence.num_drafts = 7
    assert sequence.is_decoding
    drafted = tuple(sequence.token_ids)
    engine.step()
    assert reader.steps[-1] == (8, 2)
    assert sequence.token_ids[10:] == right[:3] and sequence.num_computed == blocks.cached_len(sequence.seq_id) == 12
    tables = [list(blocks.table(sequence.seq_id, group)) for group in range(len(windows))]
    assert all(len(table) == 5 for table in tables), "18 tokens were reserved"
    assert blocks.find(drafted, 18).num_found == blocks.find(sequence.token_ids, 12).num_found == 3
    for table, window in zip(tables, windows, strict=True):
        given_back = 0 if window is None else (12 - window + 1) // 4
        assert [block == -1 for block in table] == [place < given_back for place in range(5)]

    sequence.token_ids += right[3:8]  # all of them right: written over the wrong ones, into the same blocks
    sequence.num_drafts = 5
    engine.step()
    assert reader.steps[-1] == (6, 6) and sequence.num_computed == 18
    assert blocks.find(drafted, 18).num_found == 3 and blocks.find(sequence.token_ids, 18).num_found == 4
    for group, table in enumerate(tables):
        assert list(blocks.table(sequence.seq_id, group))[3:] == table[3:], "no block more, no other block"
    engine.scheduler.check()


@pytest.mark.parametrize("num_taken", [0, 3, -1])
def test_a_reader_that_takes_no_row_or_too_many_ends(num_taken: int) -> None:
    """Else it would be given the same rows for ever."""

    class Wrong(LogitsReader):
        def read(self, first: int, rows: NDArray[np.floating]) -> int:
            return num_taken

    config = make_config(vocab_size=VOCAB)
    engine = Engine(FakeModel(config), BYTES, config)
    reader = Wrong(engine._sequence((1, 2), max_new=0), np.zeros((2, VOCAB)))
    add(engine, reader)
    engine.step()
    assert isinstance(reader.error, AssertionError) and not engine.has_work
    assert engine.scheduler.blocks.num_free == config.num_blocks
