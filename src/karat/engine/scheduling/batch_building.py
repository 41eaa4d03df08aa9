"""build_batch: from the scheduler's chunks to a checked ForwardBatch."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from karat.batch import GROUP_COLUMNS, ForwardBatch
from karat.engine.scheduling.scheduler import Chunk
from karat.kv.blocks import BlockPool


def build_batch(chunks: Sequence[Chunk], blocks: BlockPool, *, vocab_size: int) -> ForwardBatch:
    """The batch of one step, validated.

    A column of karat.batch has one line here, or its default. Positions come from the sequences' num_computed, cache
    lengths from the block pool. Each step checks that both agree (AssertionError otherwise).
    """
    columns, cached_lens = defaultdict[str, list[Any]](list, query_starts=[0]), []
    groups = range(len(blocks.sizes))
    for column in GROUP_COLUMNS:
        columns[column.name] = [[] for _ in groups]
    width = max(len(blocks.table(chunk.seq.seq_id, group)) for chunk in chunks for group in groups) if groups else 0
    for chunk in chunks:
        seq, start, row = chunk.seq, chunk.seq.num_computed, columns["query_starts"][-1]
        stop = start + chunk.num_tokens
        read, write = blocks.state_slots(seq.seq_id)
        cached_lens.append(blocks.cached_len(seq.seq_id))
        columns["token_ids"] += seq.token_ids[start:stop]
        columns["positions"] += range(start, stop)
        columns["query_starts"].append(row + chunk.num_tokens)
        columns["context_lens"].append(stop)
        columns["logit_rows"] += (row + position - start for position in seq.wanted(chunk.num_tokens))
        columns["state_reads"].append(-1 if read is None else read)
        columns["state_writes"].append(-1 if write is None else write)
        num_used = blocks.blocks_for(stop)
        for group in groups:
            columns["slots"][group] += blocks.slots(seq.seq_id, group, start, stop)
            table = blocks.table(seq.seq_id, group)
            columns["block_tables"][group].append([*table[:num_used], *[-1] * (width - num_used)])
    batch = ForwardBatch.of(blocks.block_size, **columns)
    caches = [(size.num_blocks * blocks.block_size, size.window) for size in blocks.sizes]
    num_states = 0 if blocks.states is None else blocks.states.num_slots
    batch.validate(cached_lens=cached_lens, caches=caches, vocab_size=vocab_size, num_states=num_states)
    return batch
