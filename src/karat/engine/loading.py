"""What happens to weights between the file and the executor, and what runs the model that they make."""

import logging

from karat.checkpoint import Weight, requantize, requantized_type
from karat.config import FloatName
from karat.engine.step import model_runner
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.cache import new_cache
from karat.models.registry import Model
from karat.ops.api import Runner, StepLimits
from karat.ops.guard import Guard
from karat.quant import FORMATS

_log = logging.getLogger(__name__)


class Preparation:
    """What is done to each weight on its way: nothing, or quantising matrices to the format of that name.

    Says which matrices stay as they are.
    """

    def __init__(self, quantize: str | None) -> None:
        self._format = FORMATS[quantize.upper()] if quantize else None

    def __call__(self, weight: Weight) -> Weight:
        if self._format is None:
            return weight
        done = requantize(weight, self._format)
        if done.kept_because and len(weight.shape) > 1:
            _log.warning("%s", done.kept_because)
        return done.weight

    def stored_type(self, weight: Weight) -> str:
        """The type that the weight will have; nothing is read."""
        return weight.dtype if self._format is None else requantized_type(weight, self._format)


def open_runner(
    model: Model,
    kv_dtype: FloatName,
    num_blocks: int,
    limits: StepLimits,
    *,
    block_size: int = BLOCK_SIZE,
    guard: bool = False,
) -> Runner:
    """What computes the model's steps, over a KV cache of its own; `guard` looks at every result (karat.ops.guard)."""
    ops = model.ops
    cache = new_cache(ops, model.config, kv_dtype, num_blocks, block_size=block_size, num_kv_heads=model.num_kv_heads)
    return model_runner(model.on(Guard(ops)) if guard else model, cache, limits)
