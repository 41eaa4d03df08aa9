"""Preparation of weights between the file and the executor, and open_runner, which runs the loaded model."""

import logging
from collections.abc import Sequence

from karat.checkpoint import Weight, requantize, requantized_type
from karat.config import FloatName
from karat.engine.step import model_runner
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.cache import new_caches
from karat.models.registry import Model
from karat.ops.executor import Runner, StepLimits
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


def open_runner(
    model: Model,
    kv_dtype: FloatName,
    num_blocks: Sequence[int],
    limits: StepLimits,
    *,
    block_size: int = BLOCK_SIZE,
    guard: bool = False,
) -> Runner:
    """The model with a new KV cache, as a function of batches. `guard` checks every result (karat.ops.guard).

    num_blocks are those of each cache group; a single one makes one group of all layers.
    """
    ops = model.ops
    caches = new_caches(ops, model.keeps, kv_dtype, num_blocks, block_size=block_size)
    return model_runner(model.on(Guard(ops)) if guard else model, caches, limits)
