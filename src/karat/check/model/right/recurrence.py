"""Recurrent layers: the causal convolution, the decay of a state, and the gated delta rule."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array
from karat.check.model.kinds import Given, Kind, Op
from karat.check.model.right.elementwise import sigmoid
from karat.check.model.tokens import NOBODY, Tokens
from karat.ops import api


@dataclass(frozen=True, slots=True, eq=False)
class Convolved:
    """x [tokens, channels]; weight [channels, taps], of which the last tap is the token's own.

    before [tokens]: the token whose state a token goes on from, or NOBODY.
    """

    x: Array
    weight: Array
    tokens: Tokens
    before: NDArray[np.int64]


def conv(a: Convolved) -> Array:
    taps = a.weight.shape[1]
    return sum_of_taps(a, [taps - 1 - tap for tap in range(taps)])


def sum_of_taps(a: Convolved, delays: list[int]) -> Array:
    """The sum over taps of weight * x, where tap j reads the row that is delays[j] tokens back.

    If that is negative, it is a row of the same step that follows.
    """
    total = np.zeros_like(a.x)
    for weight, delay in zip(a.weight.T, delays, strict=True):
        total += weight * along(a.x, a.before if delay > 0 else a.tokens.after_in_step, abs(delay))
    return total


def along(x: Array, source: NDArray[np.int64], count: int) -> Array:
    """For each token the row that is found `count` times from a token to its source; zeros where that is NOBODY."""
    found = np.arange(len(x))
    for _ in range(count):
        found = np.where(found == NOBODY, NOBODY, source[found])
    return np.where((found == NOBODY).reshape(-1, *(1,) * (x.ndim - 1)), 0, x[found])


def _conv(given: Given) -> Array:
    x, tokens = given.inputs[0], given.context.tokens
    weight = given.vector("weight").reshape(x.shape[1], -1)
    y = given.replace(conv)(Convolved(x, weight, tokens, tokens.before))
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
class OneToken:
    """state [heads, k_dim, v_dim]; k [heads, k_dim], v [heads, v_dim]; decay, beta [heads]."""

    state: Array
    k: Array
    v: Array
    decay: Array
    beta: Array


def updated(a: OneToken) -> Array:
    """The state after the token."""
    state = a.state * a.decay[:, None, None]
    change = (a.v - np.einsum("hi,hij->hj", a.k, state)) * a.beta[:, None]
    return state + a.k[:, :, None] * change[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Recurrence:
    """q, k [tokens, key_heads, k_dim]; v [tokens, heads, v_dim]; decay, beta [tokens, heads]; key_heads [heads].

    before [tokens]: the token whose state a token goes on from, or NOBODY; update: the state after a token.
    """

    q: Array
    k: Array
    v: Array
    decay: Array
    beta: Array
    key_heads: NDArray[np.int64]
    tokens: Tokens
    before: NDArray[np.int64]
    update: Op[OneToken]


def delta_rule(a: Recurrence) -> Array:
    nothing = np.zeros((a.v.shape[1], a.k.shape[2], a.v.shape[2]), a.v.dtype)
    out, states = np.empty_like(a.v), {NOBODY: nothing}
    readers = np.bincount(a.before[a.before != NOBODY], minlength=len(out))
    for token in range(len(out)):  # each after the one that it goes on from
        source = int(a.before[token])
        q, k = a.q[token, a.key_heads], a.k[token, a.key_heads]
        state = a.update(OneToken(states[source], k, a.v[token], a.decay[token], a.beta[token]))
        out[token] = np.einsum("hi,hij->hj", q, state)
        if readers[token]:
            states[token] = state
        if source != NOBODY:
            readers[source] -= 1
            if not readers[source]:
                del states[source]
    return out.reshape(len(out), -1)


def _delta_rule(given: Given) -> Array:
    q, k, v, decay, beta = given.inputs
    key_heads = np.array(given.params["key_heads"], np.int64)
    tokens, update = given.context.tokens, given.replace(updated)
    return given.replace(delta_rule)(Recurrence(q, k, v, decay, beta, key_heads, tokens, tokens.before, update))


def _roundings_of_decay(result: Array) -> Array:
    """Those of the exponent are errors of the result relative to the exponent: the rate's exponential 4, the sum with
    the bias 1, the exponential and the logarithm inside of softplus 4 each, the product with the rate 1. Then 4 of the
    exponential itself. Below the smallest normal number of float32 an engine may have zero.
    """
    size = np.abs(result)
    counted = 4 + 14 * np.abs(np.log(np.maximum(size, 2.0**-126)))
    return np.where(size < 2.0**-126, 2.0**24, counted)


# A conv: of the last tap a product and a sum, the bias, and silu with 4 of its exponential, a sum, a quotient and a
# product: 10, of which the inputs' noise is one. What cancels is in that noise, as each product moves by its own.
# A delta rule: of one token a product with the decay, product and sum of k and S, a difference, a product with beta,
# product and sum of the change, product and sum of q and S: 9, less one. What adds up over tokens is measured, as the
# noise moves the inputs of each.
KINDS = (
    Kind("conv", _conv, ("weight", "bias", "silu"), of=api.CausalConv, roundings=9),
    Kind("decay", _decay, ("bias", "rate", "of_log"), of=api.Decay, roundings=_roundings_of_decay),
    Kind("delta_rule", _delta_rule, ("key_heads",), of=api.DeltaRule, roundings=8),
)
