"""Attention: scores, their softmax, and the values that it mixes."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array, Context
from karat.check.model.kinds import Given, Kind
from karat.check.model.right.elementwise import capped
from karat.check.model.tokens import NOBODY, Tokens


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
    cap: np.floating | None = None


def scores(a: Scores) -> Array:
    """[heads, tokens, context]"""
    k = a.context.cached(a.k)[:, a.kv_head]
    every_pair = a.q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)  # [heads, tokens, tokens]
    found = _by_position(every_pair, a.sources) * a.scale
    return np.where(a.seen, found if a.cap is None else capped(found, a.cap), -np.inf)


def _by_position(every_pair: Array, sources: NDArray[np.int64] | None) -> Array:
    if sources is None:
        return every_pair
    found = np.take_along_axis(every_pair, np.maximum(sources, 0)[None], axis=2)
    return np.where(sources == NOBODY, 0, found)


def _scores(given: Given) -> Array:
    (q, k, *others), tokens = given.inputs, given.context.tokens
    seen = given.replace(visible)(Visible(tokens.positions, tokens.positions, given.params["window"], tokens))
    kv_head, scale = kv_head_of(q.shape[1], k.shape[1]), given.number("scale")
    cap = None if given.params["cap"] is None else given.number("cap")
    return given.replace(scores)(Scores(q, k, kv_head, scale, seen, _sources(tokens), given.context, others, cap))


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


def _softmax(given: Given) -> Array:
    sinks = None if given.params["sinks"] is None else given.vector("sinks")
    return given.replace(softmax)(Softmax(given.inputs[0], given.context.tokens, sinks))


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


def _mix(given: Given) -> Array:
    (weights, v, *others), tokens = given.inputs, given.context.tokens
    kv_head = kv_head_of(len(weights), v.shape[1])
    heads = given.replace(mix)(Mix(weights, v, kv_head, _sources(tokens), given.context, others))
    return given.replace(joined)(Joined(heads, tokens))


def kv_head_of(num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    """[heads]: the KV head that each query head reads."""
    return np.arange(num_heads) // (num_heads // num_kv_heads)


def _sources(tokens: Tokens) -> NDArray[np.int64] | None:
    return None if tokens.is_single else tokens.sources()


KINDS = (
    Kind("scores", _scores, ("scale", "window", "cap")),
    Kind("softmax", _softmax, ("sinks",), roundings=4),
    Kind("mix", _mix),
)
