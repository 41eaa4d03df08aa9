"""Scheduler: which sequences compute how many tokens in the next step (continuous batching). No arrays, no clock.

Sequences are ordered by priority, the smaller first, and then by age, the older first. Every step serves the running
sequences in this order. Those that decode come first in the token budget; the rest goes to
prefills, which may be cut into chunks. When blocks run out, the last sequence in order gives all of its blocks back and
waits to be computed anew. So the first in order always makes progress, and while no smaller one arrives, every sequence
becomes the first: there is no livelock. Waiting sequences are admitted in order; none overtakes.

Limits of a priority: a running sequence is not stopped to admit a smaller one (only a lack of blocks stops it), and a
waiting sequence does not rise with time. So sequences of a large priority wait as long as smaller ones keep arriving.

With share_prefixes a sequence begins with the cached blocks of its first tokens. Another sequence, another choice of
the request, or the sequence itself before a preemption computed them. If a running sequence is about to compute such a
block, a waiting one waits for it instead of computing it a second time.

Where layers keep a state (karat.kv.states) a sequence begins only after blocks that end with a snapshot. So chunks end
where one is wanted (state_places), and at every other end of a block the state is kept for the sequence itself.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from karat.engine.scheduling.sequence import Sequence
from karat.engine.scheduling.state_places import state_places
from karat.engine.scheduling.step_budget import UNBOUNDED, StepBudget
from karat.kv.blocks import BlockPool
from karat.kv.prefix import Chain
from karat.kv.sizes import check_fits


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` tokens of a sequence, from position seq.num_computed on."""

    seq: Sequence
    num_tokens: int


@dataclass(slots=True)
class _Head:
    """Facts on the first waiting sequence, kept between steps: else every step that it waits costs O(prompt).

    `rivals` are the running sequences in prefill with the same first `beginning` tokens, as of `num_changes`. Where
    layers keep a state, `places` are those with a snapshot to come that this sequence can begin with, and its place.
    """

    seq: Sequence
    chain: Chain
    beginning: int = 0
    num_changes: int = -1
    rivals: list[Sequence] = field(default_factory=list)
    places: list[tuple[Sequence, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Left:
    """The rest of a step's budget for prefills: tokens, prompt positions whose logits are wanted, and work."""

    budget: StepBudget
    num_tokens: int
    num_logits: int
    work: float
    is_whole: bool = True  # no chunk was taken yet

    def most(self, seq: Sequence, start: int) -> int:
        """The largest chunk of a prefill from position `start` on, in tokens. The first in order gets at least one."""
        num_tokens = self.num_tokens
        if seq.reads_several:
            num_rows = self.num_logits if seq.max_rows is None else min(seq.max_rows, self.num_logits)
            num_tokens = min(num_tokens, max(0, seq.num_read - start) + num_rows)
        if (place := seq.next_place) is not None:
            num_tokens = min(num_tokens, place - start)
        in_time = self.budget.num_tokens(start, self.work)
        return int(min(num_tokens, max(in_time, 1 if self.is_whole else 0)))

    def take(self, chunk: Chunk) -> None:
        seq = chunk.seq
        self.num_tokens -= chunk.num_tokens
        self.num_logits -= len(seq.wanted(chunk.num_tokens)) if seq.reads_several else 0
        self.work = max(0.0, self.work - self.budget.work(seq.num_computed, chunk.num_tokens))
        self.is_whole = False


class Scheduler:
    """Decides the steps; owns the blocks of the sequences it runs.

    One cycle is `schedule`, a forward pass, and `advance` for each chunk that was computed and read. `add` and `remove`
    come between cycles. Decisions depend on these calls alone.
    """

    def __init__(
        self,
        blocks: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_prompt_logits: int,
        share_prefixes: bool = False,
    ) -> None:
        """`max_prompt_logits` bounds the positions of a step's prefills whose logits are wanted (see Sequence).

        Unless share_prefixes every sequence computes all of its tokens, into blocks of its own.
        """
        assert 1 <= max_num_seqs <= max_num_batched_tokens and max_prompt_logits >= 1, "limits of the scheduler"
        self.blocks = blocks
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_prompt_logits = max_prompt_logits
        self._share_prefixes = share_prefixes
        self._waiting: list[Sequence] = []  # in order, as `_running` is
        self._running: list[Sequence] = []
        self._head: _Head | None = None
        self._num_changes = 0  # of `_running`
        self.num_preemptions = 0
        self.num_wanted_tokens = 0  # of sequences when they began or came back
        self.num_found_tokens = 0  # those of them that were in the cache and are not computed again
        self.num_stateless_tokens = 0  # those that were in the cache without a state after them, and are computed again

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence, younger than all earlier ones. CapacityError if it can never fit."""
        check_fits(seq.max_len, self.blocks.sizes, self.blocks.block_size)
        insort(self._waiting, seq, key=_order)

    def remove(self, seq: Sequence, *, forget: bool = False) -> None:
        """Remove a sequence that ended or was aborted, running or waiting.

        `forget`: its K and V must not be used, so no other sequence finds its blocks from now on.
        """
        if seq in self._running:
            self._running.remove(seq)
            self._num_changes += 1
            if forget:
                self.blocks.forget(seq.seq_id)
            self.blocks.free(seq.seq_id)
        else:
            self._waiting.remove(seq)

    def schedule(
        self, budget: StepBudget = UNBOUNDED, in_flight: Collection[int] = (), *, beside: bool | None = None
    ) -> list[Chunk]:
        """The chunks of the next step, their blocks reserved. Empty only if there is no sequence that can be in it.

        `budget` bounds the step's work in addition to the scheduler's limits. It never stops a decoding sequence,
        whose drafts wait where there is no room for them.
        in_flight: seq_ids of a step that is still computed. They are not in this one, and keep their blocks.
        beside: whose prefills are in the step: those of work beside requests, those of requests, or (None) both.
        Sequences of requests that decode are in every step. A step of one kind may be empty.
        """
        ready = [seq for seq in self._running if seq.seq_id not in in_flight and _takes_part(seq, beside)]
        decoding = [seq for seq in ready if seq.is_decoding]
        num_tokens, num_logits = self._max_num_batched_tokens - len(decoding), self._max_prompt_logits
        most: dict[int, int] = {}  # tokens of a decoding sequence: its last, and the drafts that have room
        for seq in decoding:
            num_drafts = min(seq.num_drafts, num_tokens, num_logits)
            num_tokens, num_logits = num_tokens - num_drafts, num_logits - num_drafts
            most[seq.seq_id] = 1 + num_drafts
        work = sum(budget.work(seq.num_computed, most[seq.seq_id]) for seq in decoding)
        left = _Left(budget, num_tokens, num_logits, budget.of_prefills(work if decoding else None))
        chunks: list[Chunk] = []
        for seq in ready:
            if seq not in self._running:
                break  # preempted, and so are all after it
            is_decoding = seq.seq_id in most
            chunk = self._reserve(seq, most[seq.seq_id] if is_decoding else left.most(seq, seq.num_computed), in_flight)
            if chunk:
                chunks.append(chunk)
                if not is_decoding:
                    left.take(chunk)
        while self._waiting and len(self._running) < self._max_num_seqs and left.num_tokens > 0:
            seq = self._waiting[0]
            if beside is not None and seq.is_beside != beside:
                break
            chain = self._find(seq)
            num_found = chain.num_found if chain else 0
            should_wait = self._should_wait if self.blocks.states is None else self._should_wait_for_state
            if not self._has_room_for(seq, chain) or should_wait(seq, num_found):
                break
            if left.most(seq, num_found * self.blocks.block_size) == 0:
                break
            self._admit(seq, chain)
            chunk = self._reserve(seq, left.most(seq, seq.num_computed), in_flight)
            assert chunk, "a sequence was admitted without room"
            chunks.append(chunk)
            left.take(chunk)
        is_part = bool(in_flight) or beside is not None
        assert chunks or is_part or not (self._running or self._waiting), "nothing can be scheduled"
        return chunks

    def advance(self, chunk: Chunk, num_accepted: int) -> None:
        """Record that a chunk was computed, and that its first `num_accepted` tokens are the sequence's.

        Their K and V are in the cache, and other sequences can find them. What was written behind them is overwritten.
        A state has taken in all of the chunk: where tokens are not accepted it stays what it was before, and those that
        are accepted are computed again.
        """
        seq, keeps_states = chunk.seq, self.blocks.states is not None
        assert 0 <= num_accepted <= chunk.num_tokens, f"{num_accepted} of {chunk.num_tokens} tokens were accepted"
        if keeps_states and num_accepted < chunk.num_tokens:
            num_accepted = 0
        is_shared = self._share_prefixes and seq.shares
        self.blocks.commit(seq.seq_id, num_accepted, seq.token_ids if is_shared else None)
        seq.num_computed += num_accepted
        if keeps_states and is_shared and num_accepted and seq.num_computed % self.blocks.block_size == 0:
            self.blocks.keep_state(seq.seq_id, passing=seq.num_computed not in seq.state_places)

    def preempt_all(self) -> None:
        """Take the blocks of every running sequence. All are computed anew, in the same order."""
        for seq in reversed(self._running[:]):
            self._preempt(seq)

    def restart(self, sequences: Iterable[Sequence]) -> None:
        """Begin anew with these sequences and an empty cache, from any state."""
        self.blocks = self.blocks.anew()
        self._running = []
        self._head = None
        self._waiting = sorted(sequences, key=_order)
        for seq in self._waiting:
            seq.num_computed, seq.state_places = 0, ()

    def check(self) -> None:
        """Raise AssertionError unless queues, sequences and blocks agree (between cycles)."""
        self.blocks.check()
        for queue in (self._running, self._waiting):
            assert queue == sorted(queue, key=_order), "sequences are out of order"
        ids = [seq.seq_id for seq in (*self._running, *self._waiting)]
        assert len(ids) == len(set(ids)), "a sequence is there twice"
        assert len(self._running) <= self._max_num_seqs and self.blocks.num_seqs == len(self._running), "running"
        for seq in self._running:
            assert seq.num_computed == self.blocks.cached_len(seq.seq_id) < len(seq.token_ids), "cache ≠ computed"
        assert all(seq.num_computed == 0 for seq in self._waiting), "a waiting sequence holds nothing"

    def _find(self, seq: Sequence) -> Chain | None:
        """What a waiting sequence can begin with. Positions with wanted logits are always computed."""
        if not (self._share_prefixes and seq.shares):
            self._head = None
            return None
        if self._head is None or self._head.seq is not seq:
            self._head = _Head(seq, Chain(seq.token_ids, seq.wanted(seq.num_pending).start, seq.salt))
        self.blocks.follow(self._head.chain)
        return self._head.chain

    def _has_room_for(self, seq: Sequence, chain: Chain | None) -> bool:
        """Whether the whole sequence fits even if each running one grows by a block: else it is soon preempted."""
        grown = ((other.seq_id, len(other.token_ids) + self.blocks.block_size) for other in self._running)
        return self.blocks.has_room(seq.num_pending, chain, grown, self._max_num_batched_tokens)

    def _should_wait(self, seq: Sequence, num_found: int) -> bool:
        """Whether the block after the found ones is in the pending prefill of a running sequence.

        That sequence comes before this one in order, so it will compute the block. Waiting costs no more than computing
        the same block a second time.
        """
        stop = (num_found + 1) * self.blocks.block_size
        head = self._head
        if head is None or stop > head.chain.limit:
            return False
        if head.num_changes != self._num_changes or stop < head.beginning:
            before = (other for other in self._running if _order(other) < _order(seq))
            head.rivals = [o for o in before if not o.is_decoding and o.shares and o.salt == seq.salt]
            head.beginning, head.num_changes = 0, self._num_changes
        if stop > head.beginning:
            more = slice(head.beginning, stop)
            tokens = seq.token_ids[more]
            head.rivals = [other for other in head.rivals if other.token_ids[more] == tokens]
            head.beginning = stop
        return any(not other.is_decoding and other.num_computed < stop for other in head.rivals)

    def _should_wait_for_state(self, seq: Sequence, num_found: int) -> bool:
        """Whether a running sequence that comes before is about to compute blocks and a state that this one needs."""
        head = self._head
        if head is None:
            return False
        if head.num_changes != self._num_changes:
            before = (other for other in self._running if _order(other) < _order(seq))
            rivals = [other for other in before if other.next_place and other.salt == seq.salt]
            head.places = [(other, _common_place(other, seq, head.chain.limit)) for other in rivals]
            head.num_changes = self._num_changes
        start = num_found * self.blocks.block_size
        return any(place > max(start, other.num_computed) for other, place in head.places)

    def _admit(self, seq: Sequence, chain: Chain | None) -> None:
        self._waiting.remove(seq)
        insort(self._running, seq, key=_order)
        self._num_changes += 1
        self._head = None
        self.blocks.allocate(seq.seq_id, chain)
        seq.num_computed = self.blocks.cached_len(seq.seq_id)
        if seq.num_found is None:
            seq.num_found = seq.num_computed
        if chain and self.blocks.states is not None and self.blocks.states.max_snapshots:
            known = len(chain.path) * self.blocks.block_size
            seq.state_places = state_places(
                len(seq.token_ids),
                self.blocks.block_size,
                start=seq.num_computed,
                cache_point=seq.cache_point,
                known=known,
                max_snapshots=self.blocks.states.max_snapshots,
            )
            if seq.cache_point is not None:
                self.blocks.use_state(chain, seq.cache_point)
            self.num_stateless_tokens += chain.num_stored * self.blocks.block_size - seq.num_computed
        self.num_wanted_tokens += len(seq.token_ids)
        self.num_found_tokens += seq.num_computed

    def _reserve(self, seq: Sequence, most: int, in_flight: Collection[int]) -> Chunk | None:
        """A chunk of at most `most` tokens. If there is no block for it, sequences after it are preempted."""
        wanted = min(seq.num_pending, most)
        if wanted == 0:
            return None
        while (room := self.blocks.room(seq.seq_id)) == 0:
            last = self._running[-1]
            if last is seq or last.seq_id in in_flight:
                break
            self._preempt(last)
        num_tokens = min(wanted, room)
        if num_tokens == 0:
            return None
        self.blocks.reserve(seq.seq_id, num_tokens)
        return Chunk(seq, num_tokens)

    def _preempt(self, seq: Sequence) -> None:
        self._running.remove(seq)
        self._num_changes += 1
        self.blocks.free(seq.seq_id)
        seq.num_computed, seq.state_places = 0, ()
        insort(self._waiting, seq, key=_order)
        self.num_preemptions += 1


def _takes_part(seq: Sequence, beside: bool | None) -> bool:
    return beside is None or seq.is_beside == beside or (beside and seq.is_decoding)


def _order(seq: Sequence) -> tuple[int, int]:
    """The order in which sequences are served. They are preempted in reverse order."""
    return seq.priority, seq.seq_id


def _common_place(other: Sequence, seq: Sequence, limit: int) -> int:
    """The last place of `other` where a state is kept and up to which both texts are the same; 0 if there is none."""
    places = [0, *(place for place in other.state_places if place <= limit)]
    num_common = bisect_left(places, True, key=lambda place: other.token_ids[:place] != seq.token_ids[:place])
    return places[num_common - 1]


def work_of(budget: StepBudget, chunks: list[Chunk]) -> tuple[float, float]:
    """The work of the chunks that decode, and of those that belong to a prefill."""
    work = [0.0, 0.0]
    for chunk in chunks:
        work[not chunk.seq.is_decoding] += budget.work(chunk.seq.num_computed, chunk.num_tokens)
    return work[0], work[1]
