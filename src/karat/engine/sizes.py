"""Sizes of an engine, and what follows from them."""

from dataclasses import dataclass

from karat.kv.blocks import BLOCK_SIZE
from karat.ops.api import StepLimits

PROMPT_LOGITS_BYTES = 64 * 1024**2  # of the logits of prompt positions made in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of an engine. max_model_len bounds prompt and output of a request together.

    With enable_prefix_caching, sequences that begin with the same tokens share the blocks of these (karat.kv.blocks).
    A step in which somebody decodes takes at most about max_step_ms (0: no bound), by computing less of prompts; what
    the keys that a token sees cost, over its linear layers, is key_work (karat.engine.pace).
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

    @property
    def max_prompt_logits(self) -> int:
        """Prompt positions of a step whose logits may be wanted."""
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
