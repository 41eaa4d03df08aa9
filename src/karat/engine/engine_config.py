"""EngineConfig: the sizes of an engine, and the limits of its steps."""

from dataclasses import dataclass

from karat.kv.blocks import BLOCK_SIZE
from karat.kv.sizes import GroupSize, windowed_blocks
from karat.kv.states import StateSlots, num_state_slots
from karat.ops.executor import StepLimits

PROMPT_LOGITS_BYTES = 64 * 1024**2  # the most bytes of logits of prompt positions in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes of an engine. max_model_len is the most tokens of prompt and output of a request together.

    `windows` are those of the model's cache groups (karat.kv.groups). A group without a window has num_blocks blocks. A
    group with one has as many as its sequences need (`groups`).

    With enable_prefix_caching, sequences with the same first tokens share blocks (karat.kv.blocks). A step with
    decoding takes at most about max_step_ms (0: no bound), by computing less of prompts. With overlaps_steps the next
    step is submitted while one is computed. key_work is the work of one key that a token sees, as a fraction of the
    token's linear layers (karat.engine.scheduling.step_budget).

    state_bytes is what the states of one sequence take, of all layers that keep one; max_snapshots of them are kept for
    later texts beside those of running sequences (karat.kv.states).
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
    windows: tuple[int | None, ...] = (None,)
    state_bytes: int = 0
    max_snapshots: int = 0

    @property
    def groups(self) -> tuple[GroupSize, ...]:
        """The sizes of the cache groups."""
        return tuple(
            GroupSize(self.num_blocks, None) if window is None else self._windowed(window) for window in self.windows
        )

    @property
    def group_blocks(self) -> tuple[int, ...]:
        """The number of blocks of each cache group."""
        return tuple(group.num_blocks for group in self.groups)

    @property
    def states(self) -> StateSlots | None:
        """Slots for states, all empty; None for a model that keeps none."""
        if self.state_bytes == 0:
            return None
        return StateSlots(max_num_seqs=self.max_num_seqs, max_snapshots=self.max_snapshots)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether states are kept for later texts."""
        return self.state_bytes > 0 and self.max_snapshots > 0 and self.enable_prefix_caching

    @property
    def num_state_slots(self) -> int:
        """The number of slots for states."""
        return num_state_slots(self.max_num_seqs, self.max_snapshots) if self.state_bytes else 0

    @property
    def all_state_bytes(self) -> int:
        """Memory of all slots for states."""
        return self.num_state_slots * self.state_bytes

    def _windowed(self, window: int) -> GroupSize:
        num_blocks = windowed_blocks(
            window,
            self.num_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            step_tokens=self.max_num_batched_tokens,
            keeps_prefixes=self.enable_prefix_caching,
        )
        return GroupSize(num_blocks, window)

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
