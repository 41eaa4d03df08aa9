"""Noise: random moves of numbers, of the size that the rounding of an engine's types explains."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from karat.check.model import integers
from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.right.recurrence import along
from karat.check.replay.accumulation import Accumulation
from karat.check.trace.format import TraceInfo
from karat.config import FloatName
from karat.quant import FORMATS

Array = NDArray[np.floating]

# Half a unit in the last place, relative.
PRECISION: Mapping[FloatName, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
_ERF_UNITS, _TANH_UNITS = 8, 2  # by which a library's functions are off
_CHUNK = 64  # tokens whose decays engines add up as logarithms


class Noise:
    """Noise for the results of a trace with description `info`, drawn from a seed."""

    def __init__(self, info: TraceInfo, context: Context, seed: int) -> None:
        self._unit = PRECISION[info.dtype]
        self._activations = info.activations
        self._context = context
        self._rng = np.random.default_rng(seed)
        self._accumulation = Accumulation(context, seed)
        self._accumulator = 2.0**-29 if info.dtype == "float64" else 1.0

    def disturbed(self, node: Node, inputs: Sequence[Array], result: Array) -> Array:
        """The node's result with noise for another order of summation and another rounding; ids have none."""
        if node.kind == "chosen_ids":
            return result
        result = self.moved(result, self._unit)
        amplitude = self._accumulation.amplitude(node, inputs, self._accumulator)
        if amplitude is None:
            return result
        with np.errstate(all="ignore"):
            return result + amplitude.astype(result.dtype, copy=False) * self.like(result)

    def as_rounded(self, node: Node, inputs: list[Array]) -> list[Array]:
        """The inputs of a matrix product with the noise of rounded activations, if the engine rounds them; those of a
        delta rule with that of decays from logarithms."""
        if node.kind == "delta_rule":
            q, k, v, decay, beta = inputs
            return [q, k, v, self._of_logarithms(decay), beta]
        if node.kind != "linear":
            return inputs
        return [self.rounded(inputs[0].reshape(len(inputs[0]), -1), node.params["weight"]), *inputs[1:]]

    @property
    def moves_what_experts_read(self) -> bool:
        """Whether the engine rounds inputs of products in a way that only noise can follow."""
        return self._activations == "ggml"

    def rounded(self, x: Array, weight: str) -> Array:
        """x [rows, columns], the inputs of a product with this weight, with the noise of rounded activations."""
        if self._activations is None or self._activations == "none":
            return x
        if self._activations == "ggml":
            step = ggml_half_step(x, self._context.weights.stored_type(weight))
        else:
            step = integers.half_step(x, self._activations) if self._context.reads_integers(weight) else None
        return x if step is None else x + step * self._rng.uniform(-1, 1, x.shape)

    def _of_logarithms(self, decay: Array) -> Array:
        """Decays as engines compute them that take a chunk at once: exp(a - b), where a and b are sums of logarithms
        since the chunk began. What these round is relative to them, however little decays at last."""
        with np.errstate(all="ignore"):
            sizes = -np.log(np.clip(decay.astype(np.float64), 2.0**-149, 1))
            tokens = self._context.tokens
            sums = np.zeros_like(sizes)
            for sequence in np.unique(tokens.sequences):
                rows = tokens.sequences == sequence
                sums[rows] = np.cumsum(sizes[rows], axis=0)
            sums -= along(sums, tokens.before, _CHUNK)  # wherever a chunk began
            return decay * (1 + 1.5 * 2.0**-24 * self._accumulator * sums * self.like(sums)).astype(decay.dtype)

    def as_cached(self, x: Array) -> Array:
        """K or V with the rounding noise of a narrower cache, if there is one."""
        kv_dtype = self._context.kv_dtype
        return x if kv_dtype is None else x * (1 + PRECISION[kv_dtype] * self._rng.uniform(-1, 1, x.shape))

    def moved(self, x: Array, unit: float) -> Array:
        """x with each number moved at random by up to 1.5 `unit` of its size; x itself if `unit` is 0."""
        if not unit:
            return x
        with np.errstate(all="ignore"):
            moved = self.like(x)
            moved *= x.dtype.type(1.5 * unit)
            moved += x.dtype.type(1)
            moved *= x  # minus infinity stays what it is
            return moved

    def like(self, x: Array) -> Array:
        """Random numbers from -1 to 1 in the shape and type of x; a large x repeats a pool, from a random start."""
        if x.size < len(_pool(x.dtype)):
            return self._rng.uniform(-1, 1, x.shape).astype(x.dtype, copy=False)
        start = int(self._rng.integers(len(_pool(x.dtype))))
        return np.resize(np.roll(_pool(x.dtype), start), x.shape)

    def with_gelu_of_library(self, node: Node, inputs: Sequence[Array], result: Array) -> Array:
        """The node's result with the error of a library's GELU, if it has one.

        erf and tanh near -1 are off by units of 1, which the sum with 1 keeps. ggml has a table of float16, of numbers
        rounded to float16; what experts make of it is off by as much of its row.
        """
        units, coarse = _units_of_library(node), PRECISION["float16"]
        with np.errstate(all="ignore"):
            if self._activations == "ggml" and node.kind == "experts" and node.params["by_gelu"]:
                sizes = np.sqrt(np.square(result).mean(axis=-1, keepdims=True))
                return result + 3 * coarse * sizes * self.like(result)
            if self._activations == "ggml" and node.kind == "gelu_mul":
                gate, up = np.abs(inputs[0]), np.abs(inputs[1])
                return result + (3 * coarse * gate + 2.0**-24) * up * self.like(result)
            return result if not units else result + units * self._unit * inputs[0] * inputs[1] / 2 * self.like(result)


def _units_of_library(node: Node) -> int:
    """By how many units of 1 a library's function is off near -1 that the node computes GELU by; 0 if it has none."""
    activation = node.mistakes.get("activation", "gelu (tanh)" if node.kind == "gelu_mul" else None)
    return {"gelu (erf)": _ERF_UNITS, "gelu (tanh)": _TANH_UNITS}.get(activation, 0)


@cache
def _pool(dtype: np.dtype[np.floating]) -> Array:
    """Uniform numbers from -1 to 1, a prime number of them."""
    return np.random.default_rng(0).uniform(-1, 1, 262_139).astype(dtype)


def ggml_half_step(x: Array, stored: str) -> Array | None:
    """The largest error of ggml's rounding for each value of x [tokens, features], the inputs of a matrix product.

    None if nothing is rounded. Inputs are rounded to fit the stored type of the weight (vec_dot_type):

        weight                       inputs become
        E4M3                         the same type, the largest of 128 becoming 448
        block format of 32 values    8-bit integers in blocks of 32 (Q8_0, Q8_1)
        block format of 256 values   8-bit integers in blocks of 256 (Q8_K)
        f16, bf16                    the same type
        f32                          unchanged

    The largest magnitude of a block becomes 127.
    """
    if stored in ("F16", "BF16"):
        return np.abs(x) * (2.0**-11 if stored == "F16" else 2.0**-8)
    if (format_ := FORMATS.get(stored)) is None:
        return None
    blocks = x.reshape(len(x), -1, format_.block_size)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    if stored == "E4M3":
        return np.maximum(np.abs(blocks) * 2.0**-4, largest / 448 * 2.0**-10).reshape(x.shape)
    return np.broadcast_to(largest / 254, blocks.shape).reshape(x.shape)
