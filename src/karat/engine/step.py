"""From the scheduler's chunks to a checked ForwardBatch, and through the model to logits."""

from collections.abc import Sequence

import numpy as np

from karat.batch import ForwardBatch
from karat.engine.scheduler import Chunk
from karat.kv.blocks import BlockPool
from karat.models.registry import Model
from karat.ops.api import Cache, Runner, StepLimits


def build_batch(chunks: Sequence[Chunk], blocks: BlockPool, *, vocab_size: int) -> ForwardBatch:
    """The batch of one step, validated.

    Positions come from what the sequences count as computed, cache lengths from what the blocks count as written;
    that both agree is checked on every step (AssertionError otherwise).
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    query_starts, context_lens = [0], []
    tables = [blocks.table(chunk.seq.seq_id) for chunk in chunks]
    block_tables = np.full((len(chunks), max(map(len, tables))), -1, np.int32)
    for index, (chunk, table) in enumerate(zip(chunks, tables, strict=True)):
        seq, start = chunk.seq, chunk.seq.num_computed
        stop = start + chunk.num_tokens
        logit_rows += (query_starts[-1] + position - start for position in seq.wanted(chunk.num_tokens))
        token_ids += seq.token_ids[start:stop]
        positions += range(start, stop)
        slots += blocks.slots(seq.seq_id, start, stop)
        query_starts.append(len(token_ids))
        context_lens.append(stop)
        num_used = blocks.blocks_for(stop)
        block_tables[index, :num_used] = table[:num_used]
    batch = ForwardBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_starts=np.array(query_starts, np.int32),
        context_lens=np.array(context_lens, np.int32),
        block_tables=block_tables,
        logit_rows=np.array(logit_rows, np.int32),
        block_size=blocks.block_size,
    )
    cached_lens = np.array([blocks.cached_len(chunk.seq.seq_id) for chunk in chunks], np.int32)
    batch.validate(cached_lens=cached_lens, num_slots=blocks.num_blocks * blocks.block_size, vocab_size=vocab_size)
    return batch


def model_runner(model: Model, cache: Cache, limits: StepLimits) -> Runner:
    """The model as the engine calls it: a batch in, logits [rows, vocab] of its logit_rows out, good until the next.

    Writes K and V of the batch's tokens to its slots. Raises NumericsError for what the cache cannot hold.
    """
    ops, group = model.ops, model.group
    if group.size > 1 and group.channel is None:  # between two ops the transport needs the host: nothing to record
        return lambda batch: ops.read(model.forward(ops.begin(batch), cache))
    return ops.runner(lambda ops, step: model.on(ops).forward(step, cache), limits)
