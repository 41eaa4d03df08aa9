"""Sequence: one sequence of tokens as scheduler and step see it. Bookkeeping only, no array library."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its generated tokens.

    seq_id        rises with arrival
    token_ids     prompt, then output; the engine appends
    max_len       the most tokens in the cache at once (the last generated token never is in it)
    num_computed  tokens whose K and V the cache holds; only the scheduler changes it
    num_read      positions whose logits were read or are not wanted; those of all others are
    num_found     tokens that were in the cache when it first ran, None before that; only the scheduler changes it
    salt          only sequences with the same salt share blocks
    shares        whether it shares blocks: finds those of others, and leaves its own to be found
    max_rows      the most positions of a prefill's step whose logits it wants, None: as many as fit
    is_beside     whether it is work beside requests, a verification: it gets a part of their time (Scheduler.schedule)
    priority      the smaller is served first and preempted last; of one priority, the older sequence
    num_drafts    tokens at the end that are proposed and not accepted; whoever proposes them changes it
    cache_point   the tokens after which the next turn of a conversation will differ from this text; None: not known
    state_places  numbers of tokens after which its state is kept, ascending; only the scheduler changes it
    """

    seq_id: int
    token_ids: list[int]
    prompt_len: int
    max_len: int
    num_computed: int = 0
    num_read: int = 0
    num_found: int | None = None
    max_rows: int | None = None
    salt: str | None = None
    shares: bool = True
    is_beside: bool = False
    priority: int = 0
    num_drafts: int = 0
    cache_point: int | None = None
    state_places: tuple[int, ...] = ()

    @property
    def num_pending(self) -> int:
        """Tokens still to be computed: several in prefill, one and its drafts in decode."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether only its last token and the drafts after it are still to be computed."""
        return len(self.token_ids) - self.num_computed == 1 + self.num_drafts

    @property
    def reads_several(self) -> bool:
        """Whether logits of positions before the last are still to be read."""
        return self.num_read < len(self.token_ids) - 1

    @property
    def next_place(self) -> int | None:
        """The end of the next chunk at the latest, as the state after it is kept."""
        return next((place for place in self.state_places if place > self.num_computed), None)

    def wanted(self, num_tokens: int) -> range:
        """The positions, always consecutive, whose logits are wanted from the next `num_tokens` tokens."""
        stop = self.num_computed + num_tokens
        return range(min(max(self.num_computed, self.num_read), stop), stop)
