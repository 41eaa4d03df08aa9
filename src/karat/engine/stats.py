"""What an engine counts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine at one moment. What has no `num_running`, `num_waiting` or `num_blocks` in its name only ever rises.

    A request of n choices is n sequences. Blocks used are held by sequences that run; those that are kept for prompts
    to come count as free. Of the tokens of every sequence that begins, or comes back after a preemption, prefix_queries
    counts all and prefix_hits those that the cache had.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_blocks_used: int
    num_preemptions: int
    prefix_queries: int
    prefix_hits: int
    num_steps: int
    num_prompt_tokens: int  # computed as part of a prompt, or again after a preemption
    num_generated_tokens: int
