"""build_batch: from the scheduler's chunks to a checked ForwardBatch."""

from collections.abc import Sequence

from karat.batch import ForwardBatch
from karat.engine.scheduling.scheduler import Chunk
from karat.kv.blocks import BlockPool


def build_batch(chunks: Sequence[Chunk], blocks: BlockPool, *, vocab_size: int) -> ForwardBatch:
    """The batch of one step, validated.

    Positions come from the sequences' num_computed, cache lengths from the block pool. Each step checks that both agree
    (AssertionError otherwise).
    """
    token_ids: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    query_starts, context_lens, cached_lens = [0], [], []
    groups = range(len(blocks.sizes))
    slots: list[list[int]] = [[] for _ in groups]
    block_tables: list[list[list[int]]] = [[] for _ in groups]
    state_reads, state_writes = [], []
    width = max(len(blocks.table(chunk.seq.seq_id, group)) for chunk in chunks for group in groups) if groups else 0
    for chunk in chunks:
        seq, start = chunk.seq, chunk.seq.num_computed
        stop = start + chunk.num_tokens
        logit_rows += (query_starts[-1] + position - start for position in seq.wanted(chunk.num_tokens))
        token_ids += seq.token_ids[start:stop]
        positions += range(start, stop)
        query_starts.append(len(token_ids))
        context_lens.append(stop)
        cached_lens.append(blocks.cached_len(seq.seq_id))
        read, write = blocks.state_slots(seq.seq_id)
        state_reads.append(-1 if read is None else read)
        state_writes.append(-1 if write is None else write)
        num_used = blocks.blocks_for(stop)
        for group in groups:
            slots[group] += blocks.slots(seq.seq_id, group, start, stop)
            table = blocks.table(seq.seq_id, group)
            block_tables[group].append([*table[:num_used], *[-1] * (width - num_used)])
    batch = ForwardBatch.of(
        blocks.block_size,
        token_ids=token_ids,
        positions=positions,
        query_starts=query_starts,
        context_lens=context_lens,
        logit_rows=logit_rows,
        slots=slots,
        block_tables=block_tables,
        state_reads=state_reads,
        state_writes=state_writes,
    )
    caches = [(size.num_blocks * blocks.block_size, size.window) for size in blocks.sizes]
    num_states = 0 if blocks.states is None else blocks.states.num_slots
    batch.validate(cached_lens=cached_lens, caches=caches, vocab_size=vocab_size, num_states=num_states)
    return batch
