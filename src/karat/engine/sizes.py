"""EngineConfig: the sizes of an engine, and the limits of its steps."""

from dataclasses import dataclass

from karat.kv.blocks import BLOCK_SIZE
from karat.ops.executor import StepLimits

PROMPT_LOGITS_BYTES = 64 * 1024**2  # the most bytes of logits of prompt positions in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of an engine. max_model_len is the most tokens of prompt and output of a request together.

    With enable_prefix_caching, sequences with the same first tokens share blocks (karat.kv.blocks). A step with
    decoding takes at most about max_step_ms (0: no bound), by computing less of prompts. With overlaps_steps the next
    step is submitted while one is computed. key_work is the work of one
    key that a token sees, as a fraction of the token's linear layers (karat.engine.pace).
    """

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int = BLOCK_SIZE
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = False
    max_step_ms: int = 0
    key_work: float = 0.0
    overlaps_steps: bool = False

    @property
    def max_prompt_logits(self) -> int:
        """The most prompt positions of a step whose logits are wanted."""
        return max(1, PROMPT_LOGITS_BYTES // (4 * self.vocab_size))

    @property
    def step_limits(self) -> StepLimits:
        """The largest step that the scheduler makes."""
        return StepLimits(
            num_tokens=self.max_num_batched_tokens,
            num_logit_rows=min(self.max_num_batched_tokens, self.max_num_seqs + self.max_prompt_logits),
            num_seqs=self.max_num_seqs,
            context_len=self.max_model_len,
        )
