"""How a model is made to run: Preparation of its weights on the way to the executor; model_runner, from a batch to
logits; open_runner, the same with a new KV cache.
"""

import logging
from collections.abc import Sequence

from karat.checkpoint import Weight, requantize, requantized_type
from karat.config import FloatName
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.cache import new_caches
from karat.models.registry import Model
from karat.ops.api import Cache
from karat.ops.executor import AtOnce, Runner, StepLimits
from karat.ops.guard import Guard
from karat.quant import FORMATS

_log = logging.getLogger(__name__)


class Preparation:
    """The conversion of each weight: none, or quantising matrices to the format named `quantize`.

    A warning names each matrix that stays unchanged, unless `quiet`.
    """

    def __init__(self, quantize: str | None, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._format = FORMATS[quantize.upper()] if quantize else None

    def __call__(self, weight: Weight) -> Weight:
        if self._format is None:
            return weight
        done = requantize(weight, self._format)
        if done.kept_because and not self._quiet and len(weight.shape) > 1:
            _log.warning("%s", done.kept_because)
        return done.weight

    def stored_type(self, weight: Weight) -> str:
        """The stored type that the converted weight will have. Nothing is read."""
        return weight.dtype if self._format is None else requantized_type(weight, self._format)


def model_runner(model: Model, caches: Sequence[Cache], limits: StepLimits) -> Runner:
    """The model as a function from a batch to the logits [rows, vocab] of its logit_rows.

    A step writes K and V of the batch's tokens to its slots. It raises NumericsError for numbers that the cache's dtype
    cannot hold.
    """
    ops, group = model.ops, model.group
    if group.size > 1 and group.channel is None:  # the transport needs the host between ops, so no plan is recorded
        return AtOnce(lambda batch: ops.read(model.forward(ops.begin(batch), caches)))
    return ops.runner(lambda ops, step: model.forward(step, caches, ops), limits)


def open_runner(
    model: Model,
    kv_dtype: FloatName,
    num_blocks: Sequence[int],
    limits: StepLimits,
    *,
    block_size: int = BLOCK_SIZE,
    num_states: int = 0,
    guard: bool = False,
) -> Runner:
    """The model with a new KV cache, as a function of batches. `guard` checks every result (karat.ops.guard).

    num_blocks are those of each cache group, num_states the slots of states.
    """
    ops = model.ops
    caches = new_caches(ops, model.keeps, kv_dtype, num_blocks, block_size=block_size, num_states=num_states)
    return model_runner(model.on(Guard(ops)) if guard else model, caches, limits)
