"""Recurrent layers: the causal convolution, the decay of a state, and the gated delta rule."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array
from karat.check.model.kinds import Given, Kind
from karat.check.model.right.elementwise import sigmoid
from karat.check.model.tokens import Tokens
from karat.ops import api


@dataclass(frozen=True, slots=True, eq=False)
class Convolved:
    """x [tokens, channels]; weight [channels, taps], of which the last tap is the token's own."""

    x: Array
    weight: Array
    tokens: Tokens


def conv(a: Convolved) -> Array:
    taps = a.weight.shape[1]
    return sum_of_taps(a, [taps - 1 - tap for tap in range(taps)])


def sum_of_taps(a: Convolved, delays: list[int]) -> Array:
    """The sum over taps of weight * x, where tap j reads the row of the same sequence that is delays[j] tokens back."""
    total = np.zeros_like(a.x)
    for weight, delay in zip(a.weight.T, delays, strict=True):
        total += weight * earlier(a.x, a.tokens, delay)
    return total


def earlier(x: Array, tokens: Tokens, delay: int) -> Array:
    """For each token the row of the one that stands `delay` before it in its sequence; 0 before a text."""
    if delay == 0:
        return x
    found = np.zeros_like(x)
    for sequence in np.unique(tokens.sequences):
        rows = np.flatnonzero(tokens.sequences == sequence)
        found[rows[delay:]] = x[rows[:-delay]]
    return found


def _conv(given: Given) -> Array:
    x, tokens = given.inputs[0], given.context.tokens
    weight = given.vector("weight").reshape(x.shape[1], -1)
    y = given.replace(conv)(Convolved(x, weight, tokens))
    if given.params["bias"] is not None:
        y = y + given.vector("bias")
    return y * sigmoid(y) if given.params["silu"] else y


@dataclass(frozen=True, slots=True, eq=False)
class Decayed:
    """a [tokens, heads]; bias and rate [heads]."""

    a: Array
    bias: Array
    rate: Array


def decay(a: Decayed) -> Array:
    return np.exp(a.rate * softplus(a.a + a.bias))


def softplus(y: Array) -> Array:
    return np.where(y > 20, y, np.log1p(np.exp(np.minimum(y, 20))))


def _decay(given: Given) -> Array:
    rate = given.vector("rate")
    rate = -np.exp(rate) if given.params["of_log"] else rate
    return given.replace(decay)(Decayed(given.inputs[0], given.vector("bias"), rate))


@dataclass(frozen=True, slots=True, eq=False)
class Recurrence:
    """q, k [tokens, key_heads, k_dim]; v [tokens, heads, v_dim]; decay, beta [tokens, heads]; key_heads [heads]."""

    q: Array
    k: Array
    v: Array
    decay: Array
    beta: Array
    key_heads: NDArray[np.int64]
    tokens: Tokens


def delta_rule(a: Recurrence) -> Array:
    state, out = np.zeros((0, 0, 0), a.v.dtype), np.empty_like(a.v)
    for token in np.lexsort((a.tokens.positions, a.tokens.sequences)):
        q, k = a.q[token, a.key_heads], a.k[token, a.key_heads]
        if a.tokens.positions[token] == 0:
            state = np.zeros((*a.v.shape[1:2], a.k.shape[2], a.v.shape[2]), a.v.dtype)
        state = state * a.decay[token][:, None, None]
        change = (a.v[token] - np.einsum("hi,hij->hj", k, state)) * a.beta[token][:, None]
        state = state + k[:, :, None] * change[:, None]
        out[token] = np.einsum("hi,hij->hj", q, state)
    return out.reshape(len(out), -1)


def _delta_rule(given: Given) -> Array:
    q, k, v, decay, beta = given.inputs
    key_heads = np.array(given.params["key_heads"], np.int64)
    return given.replace(delta_rule)(Recurrence(q, k, v, decay, beta, key_heads, given.context.tokens))


# The state of a token is made of those before it: what it rounds adds up, and what decays is forgotten.
KINDS = (
    Kind("conv", _conv, ("weight", "bias", "silu"), of=api.CausalConv, roundings=12),
    Kind("decay", _decay, ("bias", "rate", "of_log"), of=api.Decay, roundings=12),
    Kind("delta_rule", _delta_rule, ("key_heads",), of=api.DeltaRule, roundings=8),
)
