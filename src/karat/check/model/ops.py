"""Each op as functions of its arguments, in float64 or float32: what is right. Mistakes are in karat.check.mistakes."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array, Context, DType, Matrix, Weights
from karat.check.model.tokens import NOBODY, Tokens
from karat.config import RopeConfig
from karat.ops.api import Clamp, Routing


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    ids: NDArray[np.int64]
    table: Matrix


def embedding(a: Embedding) -> Array:
    return a.table.rows_at(a.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    x: Array
    weight: Array
    eps: np.floating
    context: Context


def norm(a: Norm) -> Array:
    x = spanned(a.x, a.weight)
    return (x / np.sqrt(mean_square(x) + a.eps) * a.weight).reshape(a.x.shape)


def spanned(x: Array, weight: Array) -> Array:
    """x with a last axis as long as the weight: heads, or all heads of a row together."""
    return x if weight.size == x.shape[-1] else x.reshape(len(x), -1)


def mean_square(x: Array) -> Array:
    return np.mean(x * x, axis=-1, keepdims=True)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """given: x before integers were made of it. others: what a mistake reads besides."""

    x: Array
    weight: Matrix
    context: Context
    given: Array
    others: Sequence[Array] = ()


def product(a: Product) -> Array:
    return a.weight.product(a.x)


@dataclass(frozen=True, slots=True, eq=False)
class Biased:
    y: Array
    bias: Array | None
    weights: Weights
    dtype: DType


def biased(a: Biased) -> Array:
    return a.y if a.bias is None else a.y + a.bias


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
class Rope:
    """x [tokens, heads, head_dim]; cos and sin [tokens, 1, rotary_dim / 2]."""

    x: Array
    cos: Array
    sin: Array
    context: Context


def rope(a: Rope) -> Array:
    half = a.cos.shape[-1]
    left, right, rest = a.x[..., :half], a.x[..., half : 2 * half], a.x[..., 2 * half :]
    return np.concatenate((left * a.cos - right * a.sin, right * a.cos + left * a.sin, rest), axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """query [tokens]: positions; last [tokens]: the last position that each query may see."""

    query: NDArray[np.int64]
    last: NDArray[np.int64]
    window: int | None
    tokens: Tokens


def visible(a: Visible) -> NDArray[np.bool_]:
    """[tokens, context]: the keys that each token sees. Nobody sees a key that its step has not computed."""
    key = np.arange(a.tokens.context)
    seen = key <= a.last[:, None]
    if a.window is not None:
        seen &= key > a.query[:, None] - a.window
    return seen & a.tokens.in_step


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """q [tokens, heads, head_dim]; k [tokens, kv_heads, head_dim]; kv_head [heads]; seen [tokens, context].

    sources [tokens, context]: the token whose key a query finds at a position. None: the token of that position.
    others: what a mistake reads besides.
    """

    q: Array
    k: Array
    kv_head: NDArray[np.int64]
    scale: np.floating
    seen: NDArray[np.bool_]
    sources: NDArray[np.int64] | None
    context: Context
    others: Sequence[Array] = ()


def scores(a: Scores) -> Array:
    """[heads, tokens, context]"""
    k = a.context.cached(a.k)[:, a.kv_head]
    every_pair = a.q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)  # [heads, tokens, tokens]
    return np.where(a.seen, _by_position(every_pair, a.sources) * a.scale, -np.inf)


def _by_position(every_pair: Array, sources: NDArray[np.int64] | None) -> Array:
    if sources is None:
        return every_pair
    found = np.take_along_axis(every_pair, np.maximum(sources, 0)[None], axis=2)
    return np.where(sources == NOBODY, 0, found)


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """scores [heads, tokens, context]; sinks [heads]: scores of one more key, whose weight is left out."""

    scores: Array
    tokens: Tokens
    sinks: Array | None


def softmax(a: Softmax) -> Array:
    powers = powers_of(with_sinks(a), axis=-1)
    return (powers / powers.sum(axis=-1, keepdims=True))[..., : a.scores.shape[-1]]


def with_sinks(a: Softmax) -> Array:
    """The scores, with the sinks as those of one more key."""
    if a.sinks is None:
        return a.scores
    sinks = np.broadcast_to(a.sinks[:, None, None], (*a.scores.shape[:-1], 1))
    return np.concatenate([a.scores, sinks], axis=-1)


def powers_of(x: Array, axis: int) -> Array:
    """exp(x - the largest along the axis); zeros where all are minus infinity."""
    largest = x.max(axis=axis, keepdims=True)
    return np.exp(x - np.where(np.isneginf(largest), 0, largest))


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """weights [heads, tokens, context]; v [tokens, kv_heads, head_dim]; kv_head, sources and others as in Scores."""

    weights: Array
    v: Array
    kv_head: NDArray[np.int64]
    sources: NDArray[np.int64] | None
    context: Context
    others: Sequence[Array] = ()


def mix(a: Mix) -> Array:
    """[heads, tokens, head_dim]"""
    v = a.context.cached(a.v)[:, a.kv_head]
    return _by_token(a.weights, a.sources) @ v.transpose(1, 0, 2)


def _by_token(weights: Array, sources: NDArray[np.int64] | None) -> Array:
    """[heads, tokens, tokens]"""
    if sources is None:
        return weights
    found = np.zeros((len(weights), len(sources), len(sources)), weights.dtype)
    where: Any = (slice(None), np.arange(len(sources))[:, None], np.maximum(sources, 0))
    np.add.at(found, where, np.where(sources == NOBODY, 0, weights))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    heads: Array
    tokens: Tokens


def joined(a: Joined) -> Array:
    """[tokens, heads * head_dim] of [heads, tokens, head_dim]."""
    return a.heads.transpose(1, 0, 2).reshape(a.heads.shape[1], -1)


def kv_head_of(num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    """[heads]: the KV head that each query head reads."""
    return np.arange(num_heads) // (num_heads // num_kv_heads)


def silu(x: Array, alpha: np.floating | int = 1) -> Array:
    return x / (1 + np.exp(-(alpha * x)))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True, slots=True, eq=False)
class SiluMul:
    gate: Array
    up: Array
    activation: Callable[[Array], Array] = silu


def silu_mul(a: SiluMul) -> Array:
    return a.activation(a.gate) * a.up


@dataclass(frozen=True, slots=True, eq=False)
class GatedBy:
    gate: Array
    columns: int


def gated_by(a: GatedBy) -> Array:
    """[rows, columns]: the number of the gate that each element of a row is multiplied by, of a gate [rows, …]."""
    return np.repeat(a.gate, a.columns // a.gate.shape[-1], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class SigmoidMul:
    x: Array
    gate: Array  # like x
    activation: Callable[[Array], Array] = sigmoid


def sigmoid_mul(a: SigmoidMul) -> Array:
    return a.x * a.activation(a.gate)


@dataclass(frozen=True, slots=True, eq=False)
class Add:
    x: Array
    y: Array


def add(a: Add) -> Array:
    return a.x + a.y


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    x: Array
    factor: np.floating


def scale(a: Scale) -> Array:
    return a.x * a.factor


def routing_scores(logits: Array, routing: Routing) -> Array:
    """The score [rows, experts] of each expert, before any bias."""
    if routing.score == "sigmoid":
        return sigmoid(logits)
    powers = powers_of(logits, axis=-1)
    return powers / powers.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, slots=True, eq=False)
class ChosenIds:
    logits: Array
    routing: Routing


def ranked(a: ChosenIds) -> Array:
    """What experts are chosen by [rows, experts]."""
    if a.routing.by_logit:
        return a.logits
    scores = routing_scores(a.logits, a.routing)
    if a.routing.bias is not None:
        scores = scores + a.routing.bias
    if (groups := a.routing.groups) is None:
        return scores
    by_group = scores.reshape(len(scores), groups.count, -1)
    sums = np.sort(by_group, axis=-1)[..., -2:].sum(axis=-1)
    ranks = np.argsort(np.argsort(-sums, axis=-1, kind="stable"), axis=-1)
    return np.where(ranks[..., None] < groups.num_chosen, by_group, groups.outside).reshape(scores.shape)


def chosen_ids(a: ChosenIds) -> NDArray[np.int64]:
    """[rows, num_chosen]: the largest first, of equal ones the smaller id first."""
    return np.argsort(-ranked(a), axis=-1, kind="stable")[:, : a.routing.num_chosen]


@dataclass(frozen=True, slots=True, eq=False)
class ChosenWeights:
    """ids [rows, num_chosen] as they were recorded."""

    logits: Array
    ids: NDArray[np.int64]
    routing: Routing


def chosen_weights(a: ChosenWeights) -> Array:
    routing = a.routing
    if routing.over_chosen:
        chosen, top = np.take_along_axis(a.logits, a.ids, axis=-1), a.logits.max(axis=-1, keepdims=True)
        weights = np.exp(chosen - top)
    else:
        weights = np.take_along_axis(routing_scores(a.logits, routing), a.ids, axis=-1)
    if routing.renormalised:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True) + routing.plus, routing.least)
    weights = weights * weights.dtype.type(routing.scale)
    return weights if routing.scales is None else weights * routing.scales[a.ids]


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    ids: Array
    weights: Array


def paired(a: Paired) -> Array:
    """The weight [rows, num_chosen] of what each chosen expert gives."""
    return a.weights


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """gate and up [rows, inner] of an expert."""

    gate: Array
    up: Array
    clamp: Clamp | None
    activation: Callable[[Array], Array]


def inner(a: Inner) -> Array:
    if a.clamp is None:
        return a.activation(a.gate) * a.up
    limit, dtype = a.clamp.limit, a.gate.dtype
    return a.activation(np.minimum(a.gate, dtype.type(limit))) * (np.clip(a.up, -limit, limit).astype(dtype) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Expert:
    """x [rows, hidden]: the rows that chose it. The product with `down` reads inner(gate, up, activation)."""

    x: Array
    gate: Matrix
    up: Matrix
    inner: Callable[[Array, Array, Callable[[Array], Array]], Array]
    down: Matrix
    activation: Callable[[Array], Array] = silu


def expert(a: Expert) -> Array:
    return a.down.product(a.inner(a.gate.product(a.x), a.up.product(a.x), a.activation))


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    x: Array
    rows: NDArray[np.int64]
    tokens: Tokens


def select(a: Select) -> Array:
    return a.x[a.rows]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What an op hands on."""

    x: Array
    dtype: DType


def result(a: Result) -> Array:
    return a.x
