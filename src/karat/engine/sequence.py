"""One sequence of tokens on its way through the model, as scheduler and step see it. Pure: no array library."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what was generated after it.

    seq_id        rises with arrival
    token_ids     prompt, then output; the engine appends
    max_len       tokens that are ever in the cache together (the last token generated never is)
    num_computed  tokens that went through the model and whose K and V the cache holds; only the scheduler changes it
    prompt_logits whether the logits of all prompt positions are wanted, not only of the last
    num_read      prompt positions whose logits were read; they are not computed again after a preemption
    num_found     tokens that were in the cache when it first ran; None before that; only the scheduler changes it
    salt          sequences share blocks only where it is the same
    priority      a smaller one is served first and preempted last; of one priority, the older sequence is
    """

    seq_id: int
    token_ids: list[int]
    prompt_len: int
    max_len: int
    prompt_logits: bool = False
    num_computed: int = 0
    num_read: int = 0
    num_found: int | None = None
    salt: str | None = None
    priority: int = 0

    @property
    def num_pending(self) -> int:
        """Tokens that the model has still to see: many in prefill, one in decode."""
        return len(self.token_ids) - self.num_computed

    @property
    def reads_prompt(self) -> bool:
        """Whether logits of prompt positions are still to be read."""
        return self.prompt_logits and self.num_read < self.prompt_len - 1

    def wanted(self, num_tokens: int) -> range:
        """Positions whose logits are wanted when the next `num_tokens` tokens are computed; always consecutive."""
        stop = self.num_computed + num_tokens
        first = max(self.num_computed, self.num_read) if self.reads_prompt else len(self.token_ids) - 1
        return range(min(first, stop), stop)
