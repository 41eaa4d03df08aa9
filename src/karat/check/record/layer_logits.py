"""Logits of a text, computed a layer at a time: memory holds one layer's weights, the hidden states, and a few rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from karat.check.record.executors import caches_of_one, one_sequence
from karat.check.trace.format import Array
from karat.checkpoint.weights import Weight
from karat.config import FloatName, ModelConfig
from karat.layers.place import Place
from karat.layers.weights import AS_STORED, Prepare, SpecCollector, WeightLoader
from karat.models.cut_units import cut_units
from karat.models.decoder import embedding, end, layer, layer_inputs, outline
from karat.ops.executor import Executor
from karat.ranks.group import SINGLE

_STEP = 256  # tokens that go through a layer at once
_ROWS = 16  # rows of logits at once


def layer_logits(
    config: ModelConfig,
    stored: Mapping[str, Weight],
    ops: Executor,
    token_ids: Sequence[int],
    first: int,
    *,
    kv_dtype: FloatName,
    prepare: Prepare = AS_STORED,
) -> Iterator[Array]:
    """Logits [rows, vocab] after the tokens from number `first` on, in order, a few rows at a time.

    The layers are the engine's own, on `ops`; each is loaded through `prepare`, computes all tokens, and is dropped.
    """
    units = cut_units(config, stored, prepare.stored_type)
    total = len(token_ids)

    def place() -> Place:
        return Place(WeightLoader(ops, stored, prepare), "", units, SINGLE)

    model = outline(config, units)
    caches, ropes = caches_of_one(ops, model.keeps, kv_dtype, total), model.rope_tables(ops, total)
    wanted = set(range(first, total))
    batches = [
        one_sequence(token_ids, start, min(start + _STEP, total), wanted, model.keeps, step=step)
        for step, start in enumerate(range(0, total, _STEP))
    ]
    steps = [ops.begin(batch) for batch in batches]
    embed = embedding(place(), config)
    states = [embed(ops, step) for step in steps]
    inputs = layer_inputs(place(), config)
    given = [None if inputs is None else inputs(ops, x, step) for x, step in zip(states, steps, strict=True)]
    del embed, inputs
    for index in range(config.num_layers):
        block = layer(place(), config, index)
        states = [
            block(ops, x, step, caches[index], ropes, each and each[index])
            for x, step, each in zip(states, steps, given, strict=True)
        ]
        del block
    root = place()
    tied = config.tie_word_embeddings
    norm, head = end(root, config, embedding(root if tied else replace(root, take=SpecCollector()), config))
    for x, step, batch in zip(states, steps, batches, strict=True):
        if len(batch.logit_rows):
            rows = norm(ops, ops.select_rows(x, step, name="model.selected"))
            for start in range(0, len(batch.logit_rows), _ROWS):
                yield np.asarray(ops.read(head(ops, rows[start : start + _ROWS])))
