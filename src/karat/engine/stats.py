"""EngineStats: the counters of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine at one moment. All counters except num_running, num_waiting, num_blocks*, num_snapshots only rise.

    A request of n choices is n sequences. Blocks are those of all cache groups together. Used blocks are held by
    running sequences; blocks that are kept for later prompts count as free. When a sequence begins or comes back after
    a preemption, prefix_queries counts its tokens and prefix_hits those of them that are in the
    cache. prefix_stateless counts those that are in the cache, too, but no state after them is.

    state_bytes is the memory of recurrent states (karat.kv.states): those of running sequences, and max_snapshots kept
    for later prompts, of which num_snapshots are there. All are 0 for a model that keeps none.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int
    num_blocks_used: int = 0
    num_preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_stateless: int = 0
    state_bytes: int = 0
    num_snapshots: int = 0
    max_snapshots: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0  # computed as part of a prompt, or again after a preemption
    num_generated_tokens: int = 0
