"""Which sequences compute how many tokens in the next step: continuous batching. Pure: no array library, no clock.

Sequences have an order: the smaller priority first, and of one priority the older. Every step serves the running ones
in it. Those with one pending token (decode) come first in the token budget; what is left goes to prefills, which may be
cut into chunks. When blocks run out, the last in order gives all of its blocks back and waits to be computed anew. The
first in order therefore always gets on, and while nothing comes that goes before, every sequence becomes the first:
no livelock. Waiting sequences enter in order, none overtakes.

What a priority does not do: whoever runs is not stopped to let in one that goes before (only blocks that run out stop
it), and who waits does not rise with time. So sequences of a large number wait as long as smaller ones keep coming.

With share_prefixes a sequence begins with the blocks that hold its first tokens already, whoever computed them: another
with the same beginning, another choice of the same request, or itself before it was preempted. What a running one is
about to compute is waited for rather than computed twice.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from karat.engine.pace import UNBOUNDED, StepBudget
from karat.engine.sequence import Sequence
from karat.errors import CapacityError
from karat.kv.blocks import BlockPool, Chain


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` tokens of a sequence, from position seq.num_computed on."""

    seq: Sequence
    num_tokens: int


@dataclass(slots=True)
class _Head:
    """What is known of the first waiting sequence, lest every step that it waits costs as much as its prompt is long.

    `rivals` are the running ones in prefill that have its first `beginning` tokens, as of `num_changes`.
    """

    seq: Sequence
    chain: Chain
    beginning: int = 0
    num_changes: int = -1
    rivals: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class _Left:
    """What a step still has for prefills: tokens, prompt positions whose logits are wanted, work."""

    budget: StepBudget
    num_tokens: int
    num_logits: int
    work: float
    is_whole: bool = True  # nothing was taken yet

    def most(self, seq: Sequence, start: int) -> int:
        """The largest chunk of a prefill from position `start` on; the first in order has a token at least."""
        num_tokens = min(self.num_tokens, self.num_logits) if seq.reads_prompt else self.num_tokens
        in_time = self.budget.num_tokens(start, self.work)
        return int(min(num_tokens, max(in_time, 1 if self.is_whole else 0)))

    def take(self, chunk: Chunk) -> None:
        seq = chunk.seq
        self.num_tokens -= chunk.num_tokens
        self.num_logits -= chunk.num_tokens if seq.reads_prompt else 0
        self.work = max(0.0, self.work - self.budget.work(seq.num_computed, chunk.num_tokens))
        self.is_whole = False


class Scheduler:
    """Decides the steps; owns the blocks of the sequences it runs.

    One cycle is `schedule`, a forward pass, and `advance` for each chunk that was computed. `add` and `remove` come
    between cycles. Decisions depend on these calls alone.
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
        """`max_prompt_logits` bounds the prompt positions of a step whose logits are wanted (see Sequence).

        Unless share_prefixes every sequence computes all of its tokens, into blocks of its own.
        """
        assert 1 <= max_num_seqs <= max_num_batched_tokens and max_prompt_logits >= 1, "limits of the scheduler"
        self.blocks = blocks
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_prompt_logits = max_prompt_logits
        self._share_prefixes = share_prefixes
        self._waiting: list[Sequence] = []  # both in order
        self._running: list[Sequence] = []
        self._head: _Head | None = None
        self._num_changes = 0  # of who runs
        self.num_preemptions = 0
        self.num_wanted_tokens = 0  # that sequences had when they began or came back
        self.num_found_tokens = 0  # of these, those that were in the cache, so not computed again

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def check_fits(self, num_tokens: int) -> None:
        """Raise CapacityError for a sequence that could not be in the cache even alone."""
        num_blocks, size = self.blocks.num_blocks, self.blocks.block_size
        if self.blocks.blocks_for(num_tokens) > num_blocks:
            raise CapacityError(
                f"the request may grow to {num_tokens} tokens in the KV cache, which holds {num_blocks * size} "
                f"({num_blocks} blocks of {size}); shorten the prompt or lower max_tokens, or give the cache more room"
            )

    def add(self, seq: Sequence) -> None:
        """Queue a sequence, younger than all before; CapacityError if it can never fit."""
        self.check_fits(seq.max_len)
        insort(self._waiting, seq, key=_order)

    def remove(self, seq: Sequence, *, forget: bool = False) -> None:
        """Take out a sequence that ended or was aborted, whether it runs or waits.

        `forget`: its K and V are not to be trusted, so no other sequence shall find them from now on.
        """
        if seq in self._running:
            self._running.remove(seq)
            self._num_changes += 1
            if forget:
                self.blocks.forget(seq.seq_id)
            self.blocks.free(seq.seq_id)
        else:
            self._waiting.remove(seq)

    def schedule(self, budget: StepBudget = UNBOUNDED) -> list[Chunk]:
        """The chunks of the next step, their blocks reserved; empty only if there is no sequence at all.

        `budget` bounds its work beside the limits that the scheduler was made for; it stops nobody who decodes.
        """
        decoding = [budget.work(seq.num_computed, 1) for seq in self._running if seq.num_pending == 1]
        left = _Left(
            budget,
            num_tokens=self._max_num_batched_tokens - len(decoding),
            num_logits=self._max_prompt_logits,
            work=budget.of_prefills(sum(decoding) if decoding else None),
        )
        chunks: list[Chunk] = []
        for seq in list(self._running):
            if seq not in self._running:
                break  # preempted, and with it all that come after
            is_decode = seq.num_pending == 1
            chunk = self._reserve(seq, 1 if is_decode else left.most(seq, seq.num_computed))
            if chunk:
                chunks.append(chunk)
                if not is_decode:
                    left.take(chunk)
        while self._waiting and len(self._running) < self._max_num_seqs and left.num_tokens > 0:
            seq = self._waiting[0]
            found = self._find(seq)
            if not self._has_room_for(seq, found) or self._should_wait(seq, len(found)):
                break
            if left.most(seq, len(found) * self.blocks.block_size) == 0:
                break
            self._admit(seq, found)
            chunk = self._reserve(seq, left.most(seq, seq.num_computed))
            assert chunk, "a sequence was admitted without room"
            chunks.append(chunk)
            left.take(chunk)
        assert chunks or not (self._running or self._waiting), "nothing can be scheduled"
        return chunks

    def advance(self, chunk: Chunk) -> None:
        """Record that a chunk was computed: its K and V are in the cache, where others may find them."""
        seq = chunk.seq
        self.blocks.commit(seq.seq_id, chunk.num_tokens, seq.token_ids if self._share_prefixes else None)
        seq.num_computed += chunk.num_tokens

    def preempt_all(self) -> None:
        """Take the blocks of every running sequence; all start anew, in the same order."""
        for seq in reversed(self._running[:]):
            self._preempt(seq)

    def restart(self, sequences: Iterable[Sequence]) -> None:
        """Begin anew with these sequences and an empty cache, whatever state all was left in."""
        self.blocks = BlockPool(self.blocks.num_blocks, self.blocks.block_size)
        self._running = []
        self._head = None
        self._waiting = sorted(sequences, key=_order)
        for seq in self._waiting:
            seq.num_computed = 0

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

    def _find(self, seq: Sequence) -> list[int]:
        """Blocks of the cache that a waiting sequence can begin with; what logits are wanted of is computed anyway."""
        if not self._share_prefixes:
            return []
        if self._head is None or self._head.seq is not seq:
            self._head = _Head(seq, Chain(seq.token_ids, seq.wanted(seq.num_pending).start, seq.salt))
        return self.blocks.follow(self._head.chain)

    def _has_room_for(self, seq: Sequence, found: list[int]) -> bool:
        """Whether all of it fits, even if each running sequence grows by a block: lest it be preempted at once."""
        blocks = self.blocks
        spoken_for = sum(
            blocks.blocks_for(len(other.token_ids) + blocks.block_size) - len(blocks.table(other.seq_id))
            for other in self._running
        )
        return blocks.cost(seq.num_pending, found) + spoken_for <= blocks.num_free

    def _should_wait(self, seq: Sequence, num_found: int) -> bool:
        """Whether the block after those found is in the pending prefill of a running sequence.

        That one goes before it, and is sure to get there; to wait costs no more than to compute the same beside it.
        """
        stop = (num_found + 1) * self.blocks.block_size
        head = self._head
        if head is None or stop > head.chain.limit:
            return False
        if head.num_changes != self._num_changes or stop < head.beginning:
            before = (other for other in self._running if _order(other) < _order(seq))
            head.rivals = [other for other in before if other.num_pending > 1 and other.salt == seq.salt]
            head.beginning, head.num_changes = 0, self._num_changes
        if stop > head.beginning:
            more = slice(head.beginning, stop)
            tokens = seq.token_ids[more]
            head.rivals = [other for other in head.rivals if other.token_ids[more] == tokens]
            head.beginning = stop
        return any(other.num_pending > 1 and other.num_computed < stop for other in head.rivals)

    def _admit(self, seq: Sequence, found: list[int]) -> None:
        self._waiting.remove(seq)
        insort(self._running, seq, key=_order)
        self._num_changes += 1
        self._head = None
        self.blocks.allocate(seq.seq_id, found, seq.salt)
        seq.num_computed = self.blocks.cached_len(seq.seq_id)
        if seq.num_found is None:
            seq.num_found = seq.num_computed
        self.num_wanted_tokens += len(seq.token_ids)
        self.num_found_tokens += seq.num_computed

    def _reserve(self, seq: Sequence, most: int) -> Chunk | None:
        """A chunk of at most `most` tokens; preempts those that come after rather than get no block."""
        wanted = min(seq.num_pending, most)
        if wanted == 0:
            return None
        while (room := self.blocks.room(seq.seq_id)) == 0 and self._running[-1] is not seq:
            self._preempt(self._running[-1])
        num_tokens = min(wanted, room)
        if num_tokens == 0:
            return None
        self.blocks.reserve(seq.seq_id, num_tokens)
        return Chunk(seq, num_tokens)

    def _preempt(self, seq: Sequence) -> None:
        self._running.remove(seq)
        self._num_changes += 1
        self.blocks.free(seq.seq_id)
        seq.num_computed = 0
        insort(self._waiting, seq, key=_order)
        self.num_preemptions += 1


def _order(seq: Sequence) -> tuple[int, int]:
    """Who is served first and preempted last."""
    return seq.priority, seq.seq_id
