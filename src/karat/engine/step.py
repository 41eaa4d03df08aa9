"""build_batch: from the scheduler's chunks to a checked ForwardBatch. model_runner: from a batch to logits."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from karat.batch import ForwardBatch
from karat.engine.scheduler import Chunk
from karat.kv.blocks import BlockPool
from karat.models.registry import Model
from karat.ops.api import Cache
from karat.ops.executor import Runner, StepLimits


def build_batch(chunks: Sequence[Chunk], blocks: BlockPool, *, vocab_size: int) -> ForwardBatch:
    """The batch of one step, validated.

    Positions come from the sequences' num_computed, cache lengths from the block pool. Each step checks that both agree
    (AssertionError otherwise).
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    block_tables: list[int] = []
    query_starts, context_lens, cached_lens = [0], [], []
    tables = [blocks.table(chunk.seq.seq_id) for chunk in chunks]
    width = max(map(len, tables))
    for chunk, table in zip(chunks, tables, strict=True):
        seq, start = chunk.seq, chunk.seq.num_computed
        stop = start + chunk.num_tokens
        logit_rows += (query_starts[-1] + position - start for position in seq.wanted(chunk.num_tokens))
        token_ids += seq.token_ids[start:stop]
        positions += range(start, stop)
        slots += blocks.slots(seq.seq_id, start, stop)
        query_starts.append(len(token_ids))
        context_lens.append(stop)
        cached_lens.append(blocks.cached_len(seq.seq_id))
        num_used = blocks.blocks_for(stop)
        block_tables += table[:num_used]
        block_tables += [-1] * (width - num_used)
    # One array for all parts: a NumPy call for each would be a good part of the cost of a step of one token.
    parts = (token_ids, positions, slots, query_starts, context_lens, block_tables, logit_rows, cached_lens)
    flat, ends = np.array([number for part in parts for number in part], np.int32), accumulate(map(len, parts))
    arrays = [flat[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]
    batch = ForwardBatch(
        token_ids=arrays[0],
        positions=arrays[1],
        slots=arrays[2],
        query_starts=arrays[3],
        context_lens=arrays[4],
        block_tables=arrays[5].reshape(len(chunks), width),
        logit_rows=arrays[6],
        block_size=blocks.block_size,
    )
    batch.validate(cached_lens=arrays[7], num_slots=blocks.num_blocks * blocks.block_size, vocab_size=vocab_size)
    return batch


def model_runner(model: Model, cache: Cache, limits: StepLimits) -> Runner:
    """The model as a function from a batch to the logits [rows, vocab] of its logit_rows. Valid until the next call.

    A call writes K and V of the batch's tokens to its slots. It raises NumericsError for numbers that the cache's dtype
    cannot hold.
    """
    ops, group = model.ops, model.group
    if group.size > 1 and group.channel is None:  # the transport needs the host between ops, so no plan is recorded
        return lambda batch: ops.read(model.forward(ops.begin(batch), cache))
    return ops.runner(lambda ops, step: model.forward(step, cache, ops), limits)
