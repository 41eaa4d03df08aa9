"""Runs a Karat model over token ids in given chunks, alone or together, on a cache whose blocks are shuffled."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import FloatName
from karat.kv.cache import new_caches
from karat.kv.groups import State, groups_of
from karat.models.registry import Model, build, read_config
from karat.ops.executor import Executor


class ArrayCheckpoint:
    """A checkpoint of float32 arrays in memory."""

    def __init__(self, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        self.path = Path("in-memory")
        self.weights = {
            name: Weight(name, "F32", t.shape, np.ascontiguousarray(t, "<f4").reshape(-1).view(np.uint8), self.path)
            for name, t in tensors.items()
        }


def from_transformers(
    raw_config: Mapping[str, object], hf_model: Any, ops: Executor, num_positions: int = 512, context: int | None = None
) -> Model:
    """Karat's model of a transformers model's weights, through Karat's own config reading and assignment.

    It computes what it computes in a `context` of so many tokens, or in the usual one.
    """
    tensors = {name: t.detach().float().numpy() for name, t in hf_model.state_dict().items()}
    if raw_config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    config = read_config(raw_config).reading(context)
    return build(config, ops, ArrayCheckpoint(tensors), num_positions=num_positions)


def run(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    chunk: int | None = None,
    kv_dtype: FloatName | None = None,
    block_size: int = 16,
    seed: int = 0,
    ops: Executor | None = None,
) -> list[NDArray[np.floating]]:
    """Logits [tokens, vocab] of every token of every prompt: all in one batch, `chunk` tokens of each a step."""
    model = model if ops is None else model.on(ops)
    ops = model.ops
    config = model.config
    blocks_each = [-(-len(p) // block_size) for p in prompts]
    num_blocks = sum(blocks_each) + 3
    free = list(np.random.default_rng(seed).permutation(num_blocks))
    tables = np.full((len(prompts), max(blocks_each)), -1, np.int32)
    for seq, count in enumerate(blocks_each):
        tables[seq, :count] = [free.pop() for _ in range(count)]
    num_states = 2 * len(prompts) * any(isinstance(keep, State) for keep in model.keeps)
    layer_caches = new_caches(
        ops,
        model.keeps,
        kv_dtype or ops.default_kv_dtype,
        num_blocks,
        block_size=block_size,
        num_states=num_states,
    )
    turns = np.zeros(len(prompts), np.int32)  # steps of a prompt: it writes its two slots of states in turn
    groups = groups_of(model.keeps)
    done = np.zeros(len(prompts), np.int32)
    logits: list[list[NDArray[np.floating]]] = [[] for _ in prompts]
    while any(done[i] < len(p) for i, p in enumerate(prompts)):
        live = [i for i, p in enumerate(prompts) if done[i] < len(p)]
        counts = np.array([min(chunk or len(prompts[i]), len(prompts[i]) - done[i]) for i in live], np.int32)
        ids = np.concatenate([np.array(prompts[i][done[i] : done[i] + n]) for i, n in zip(live, counts, strict=True)])
        positions = np.concatenate([np.arange(done[i], done[i] + n) for i, n in zip(live, counts, strict=True)])
        owner = np.repeat(live, counts)
        slots = tables[owner, positions // block_size] * block_size + positions % block_size
        context_lens = (done[live] + counts).astype(np.int32)
        in_use = np.arange(tables.shape[1]) < -(-context_lens[:, None] // block_size)
        batch = ForwardBatch.of(
            block_size,
            token_ids=ids,
            positions=positions,
            query_starts=[0, *np.cumsum(counts)],
            context_lens=context_lens,
            logit_rows=range(len(ids)),
            slots=[slots] * len(groups),
            block_tables=[np.where(in_use, tables[live], -1)] * len(groups),
            state_reads=[2 * i + (turns[i] + 1) % 2 if num_states and done[i] else -1 for i in live],
            state_writes=[2 * i + turns[i] % 2 if num_states else -1 for i in live],
        )
        turns[live] += 1
        caches = [(num_blocks * block_size, group.keys.window) for group in groups]
        batch.validate(
            cached_lens=done[live].tolist(), caches=caches, vocab_size=config.vocab_size, num_states=num_states
        )
        result = ops.read(model.forward(ops.begin(batch), layer_caches))
        for part, i in zip(np.split(result, np.cumsum(counts)[:-1]), live, strict=True):
            logits[i].append(np.array(part))
        done[live] += counts
    return [np.concatenate(parts) for parts in logits]
