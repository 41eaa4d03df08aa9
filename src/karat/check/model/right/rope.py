"""RoPE."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array, Context
from karat.check.model.kinds import Given, Kind, Replace, right
from karat.config import RopeConfig
from karat.ops.rope_table import cos_sin, growths


@dataclass(frozen=True, slots=True, eq=False)
class Angles:
    """positions [tokens]; frequencies are those of a table of `table_dim`, of which `rotary_dim` dimensions turn."""

    positions: NDArray[np.int64]
    rope: RopeConfig
    rotary_dim: int
    table_dim: int
    context: Context


def angles(a: Angles) -> Array:
    """[tokens, rotary_dim / 2]"""
    frequencies = a.context.frequencies(a.rope, a.table_dim).astype(np.float32)[: a.rotary_dim // 2]
    return (a.positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Rotated:
    """x [tokens, heads, head_dim]; cos and sin [tokens, 1, rotary_dim / 2]."""

    x: Array
    cos: Array
    sin: Array
    context: Context


def rope(a: Rotated) -> Array:
    half = a.cos.shape[-1]
    left, right, rest = a.x[..., :half], a.x[..., half : 2 * half], a.x[..., 2 * half :]
    return np.concatenate((left * a.cos - right * a.sin, right * a.cos + left * a.sin, rest), axis=-1)


def _rope(given: Given) -> Array:
    params = given.params
    return turned(given.inputs[0], params["rope"], given.context, given.replace, params["dim"], growth=params["growth"])


def turned(
    x: Array,
    config: RopeConfig,
    context: Context,
    replace: Replace = right,
    dim: int | None = None,
    *,
    growth: float = 0.0,
) -> Array:
    """RoPE of x [tokens, heads, head_dim], or of the first `dim` numbers of each head; the result grows by `growth`."""
    dim = x.shape[-1] if dim is None else dim
    by = replace(angles)(Angles(context.tokens.positions, config, dim, dim, context))
    parts = cos_sin(by * (1 + context.jitter) if context.jitter else by)
    factors = (config.attention_factor * growths(config, growth, context.tokens.positions))[:, None]
    cos, sin = ((part * factors).astype(x.dtype)[:, None] for part in parts)
    return replace(rope)(Rotated(x, cos, sin, context))


KINDS = (Kind("rope", _rope, ("rope", "dim", "growth"), roundings=2),)
