"""Each kind of node as one obvious function of its inputs, in float64 or float32.

The right computation is what a node says by default. The parameters that a node does not have by default are the ways
in which engines get it wrong (karat.check.mistakes sets them); so a bug is re-run by the same code as the right op.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from karat.check.model.graph import Node
from karat.check.model.tokens import NOBODY, Tokens
from karat.config import FloatName, RopeConfig
from karat.ops.rope_table import cos_sin, inverse_frequencies

Array = NDArray[np.floating]

_MAX_PART = 1 << 23  # elements of a weight that are widened at a time


class Weights(Protocol):
    """The tensors of a checkpoint by name, widened when asked for."""

    def array(self, name: str, dtype: np.dtype[np.floating]) -> Array: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_type(self, name: str) -> str: ...

    def rows(self, name: str, dtype: np.dtype[np.floating], start: int, stop: int) -> Array: ...


class Context:
    """What evaluating a node needs beside its inputs.

    `logit_rows` are the tokens whose logits exist; `kv_dtype` is what the cache stores, None for what is computed in;
    `jitter` moves RoPE's angles by that relative amount; `loose` moves what a narrower cache stores, before it is
    rounded, by that part of its row's largest value, up or down by chance, so that of numbers near a tie half fall to
    either side: to the other one where `loose` is negative.
    """

    def __init__(
        self, weights: Weights, tokens: Tokens, logit_rows: NDArray[np.int64], kv_dtype: FloatName | None = None
    ) -> None:
        self.weights = weights
        self.tokens = tokens
        self.logit_rows = logit_rows
        self.kv_dtype = kv_dtype
        self.jitter = self.loose = 0.0
        self._frequencies: dict[tuple[RopeConfig, int], NDArray[np.float32]] = {}

    def disturbed(self, *, jitter: float = 0.0, loose: float = 0.0) -> "Context":
        """The same with angles and cached numbers moved."""
        other = Context(self.weights, self.tokens, self.logit_rows, self.kv_dtype)
        other.jitter, other.loose = jitter, loose
        other._frequencies = self._frequencies
        return other

    def cached(self, x: Array) -> Array:
        """`x` as the cache gives it back."""
        if self.kv_dtype is None:
            return x
        if self.loose:
            largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
            signs = np.random.default_rng(x.shape).choice((-1.0, 1.0), x.shape)
            x = (x + self.loose * largest * signs).astype(x.dtype, copy=False)
        return rounded(x, self.kv_dtype).astype(x.dtype, copy=False)

    def frequencies(self, rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
        if (rope, head_dim) not in self._frequencies:
            self._frequencies[rope, head_dim] = inverse_frequencies(rope, head_dim)
        return self._frequencies[rope, head_dim]


def rounded(x: Array, dtype: FloatName) -> Array:
    """`x` rounded to nearest even to `dtype`, in float64."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return x.astype(dtype).astype(np.float64)
        bits = x.astype(np.float32).view(np.uint32)
        kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(x), np.nan, kept.view(np.float32)).astype(np.float64)


def evaluate(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    """The node's result in `dtype`; inputs are of that dtype. NaN and infinity go through without a warning."""
    with np.errstate(all="ignore"):
        result = _FUNCTIONS[node.kind](node, inputs, context, dtype)
        if node.params.get("fp16_output"):
            result = rounded(result, "float16")
        if (factor := node.params.get("output_factor")) is not None:
            result = result * dtype.type(factor)
        if (cap := node.params.get("soft_cap")) is not None:
            result = np.tanh(result / cap) * dtype.type(cap)
        return result.astype(dtype, copy=False)


def _embedding(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    name = node.params["weight"]
    ids = context.tokens.ids
    ids = np.where(ids >= node.params.get("from_id", 0), ids + node.params.get("shift", 0), ids)
    vocab = context.weights.shape(name)[0]
    if (effective := node.params.get("effective")) is not None:
        return effective(context.weights, dtype)[ids % vocab]
    distinct = np.unique(ids % vocab)
    table = np.stack([context.weights.rows(name, dtype, i, i + 1)[0] for i in distinct])
    for row, column, change in node.params.get("elements", ()):
        table[distinct == row, column] += dtype.type(change)
    return table[np.searchsorted(distinct, ids % vocab)]


def _norm(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    (x,) = inputs
    params = node.params
    if params.get("skip"):
        return x
    if (first := params.get("rope_first")) is not None:
        x = turned(x, Node("", "rope", (), {"rope": first}), context, dtype)
    eps = dtype.type(params["eps"])
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    root = np.sqrt(mean_square) + eps if params.get("eps_outside") else np.sqrt(mean_square + eps)
    weight = context.weights.array(params["weight"], dtype) + dtype.type(params.get("offset", 0))
    for column, change in params.get("elements", ()):
        weight[column] += dtype.type(change)
    return x / root * (1 if params.get("no_weight") else weight)


def _linear(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    (x,) = inputs
    params = node.params
    if params.get("skip"):
        return x
    x = x.reshape(len(x), -1)
    if (part := params.get("input_part")) is not None:  # (r, n): only the r-th of n parts of the inputs
        r, n = part
        size = x.shape[-1] // n
        x = np.where((np.arange(x.shape[-1]) // size == r)[None, :], x, 0)
    effective: Callable[[Weights, np.dtype[np.floating]], Array] | None = params.get("effective")
    result: Array
    if effective is not None:
        result = x @ effective(context.weights, dtype).T
    else:
        result = _product(x, params["weight"], context.weights, dtype)
    if params.get("fp16_sum"):
        result = rounded(result, "float16")
    for row, column, change in params.get("elements", ()):
        result[:, row] += x[:, column] * dtype.type(change)
    factor = params.get("bias_factor", 1)
    if params.get("bias") is not None and factor:
        bias = context.weights.array(params["bias"], dtype)
        if (effective_bias := params.get("effective_bias")) is not None:
            bias = effective_bias(context.weights, dtype)
        result = result + bias * dtype.type(factor)
    for row, change in params.get("bias_elements", ()):
        result[:, row] += dtype.type(change)
    result = result * dtype.type(params.get("factor", 1))
    head_dim = params.get("head_dim")
    return result.reshape(len(x), -1, head_dim) if head_dim else result


def _product(x: Array, name: str, weights: Weights, dtype: np.dtype[np.floating]) -> Array:
    """x @ weight.T, a part of the weight at a time where it is large."""
    out_features, in_features = weights.shape(name)
    if out_features * in_features <= _MAX_PART:
        return x @ weights.array(name, dtype).T
    step = max(1, _MAX_PART // in_features)
    parts = [
        x @ weights.rows(name, dtype, start, min(start + step, out_features)).T
        for start in range(0, out_features, step)
    ]
    return np.concatenate(parts, axis=1)


def turned(x: Array, node: Node, context: Context, dtype: np.dtype[np.floating]) -> Array:
    """RoPE of x [tokens, heads, head_dim] as the node has it."""
    params = node.params
    if params.get("skip"):
        return x
    rope: RopeConfig = params["rope"]
    dim = x.shape[-1]
    rotary_dim = params.get("rotary_dim", dim)
    table_dim = params.get("table_dim", rotary_dim)
    positions = position_map(params.get("positions", "right"), context.tokens)
    frequencies = context.frequencies(rope, table_dim).astype(np.float32)[: rotary_dim // 2]
    angles = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)  # [tokens, rotary_dim / 2]
    angles = angles * params.get("times", 1) * params.get("direction", 1)
    if context.jitter:
        angles = angles * (1 + context.jitter)
    cos, sin = cos_sin(angles)
    half = angles.shape[-1]
    cos, sin = ((part * rope.attention_factor).astype(dtype)[:, None] for part in (cos, sin))
    if params.get("pairing") == "interleaved":
        left, right = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        out = x.copy()
        out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2] = left * cos - right * sin, right * cos + left * sin
        return out
    left, right = x[..., :half], x[..., half : 2 * half]
    return np.concatenate((left * cos - right * sin, right * cos + left * sin, x[..., 2 * half :]), axis=-1)


def position_map(kind: str | int, tokens: Tokens) -> NDArray[np.int64]:
    """[tokens]: the positions that an engine uses; a number shifts them all."""
    right = tokens.positions
    if isinstance(kind, int):
        return right + kind
    match kind:
        case "right":
            return right
        case "restarted":
            return tokens.index_in_step
        case "frozen":  # every later step repeats the positions that follow the first step
            first = np.where(tokens.steps == 0, tokens.step_start + 1, 0)
            length = np.zeros(int(tokens.sequences.max()) + 1, np.int64)
            np.maximum.at(length, tokens.sequences, np.where(first > 0, right + 1, 0))
            return np.where(tokens.steps == 0, right, length[tokens.sequences] + tokens.index_in_step)
        case "frozen-last":
            length = np.zeros(int(tokens.sequences.max()) + 1, np.int64)
            np.maximum.at(length, tokens.sequences, np.where(tokens.steps == 0, right, 0))
            return np.where(tokens.steps == 0, right, length[tokens.sequences] + tokens.index_in_step)
        case "zero":
            return np.zeros_like(right)
        case "flat":  # not started anew for each sequence
            return np.arange(len(right), dtype=np.int64)
    raise AssertionError(kind)


def _rope(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    out = turned(inputs[0], node, context, dtype)
    if (late := node.params.get("norm_after")) is not None:
        weight, eps = late
        out = _norm(Node("", "norm", (), {"weight": weight, "eps": eps}), [out], context, dtype)
    return out


def visible(params: Mapping[str, Any], tokens: Tokens) -> NDArray[np.bool_]:
    """[tokens, context]: the keys that each token sees, by position in its sequence."""
    key = np.arange(tokens.context)[None, :]
    query = tokens.positions[:, None]
    if params.get("align") == "top-left":
        query = tokens.index_in_step[:, None]
    seen = key <= query + params.get("diagonal", 0)
    if params.get("causal") is False:
        seen = np.ones_like(seen)
    if (window := params["window"]) is not None:
        seen &= key > query - window
    # Nobody sees what has not been computed: keys beyond the end of the step.
    seen = seen & tokens.in_step
    if params.get("alone"):  # who sees nothing sees itself
        seen |= (key == query) & ~seen.any(axis=1, keepdims=True)
    return seen


def kv_head_of(params: Mapping[str, Any], num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    """[heads]: the KV head that each query head reads."""
    if params.get("gqa") == "tile":
        return np.arange(num_heads) % num_kv_heads
    return np.arange(num_heads) // (num_heads // num_kv_heads)


def _scores(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    q, k = inputs  # [tokens, heads, head_dim], [tokens, kv_heads, head_dim]
    params, tokens = node.params, context.tokens
    k = context.cached(k)[:, kv_head_of(params, q.shape[1], k.shape[1])]
    all_pairs = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0)  # [heads, queries, key tokens]
    if tokens.is_single and "cache" not in params:  # each key where its token is
        scores = all_pairs * dtype.type(params["scale"])
    else:
        sources = tokens.sources(params.get("cache", "right"))
        found = np.take_along_axis(all_pairs, np.maximum(sources, 0)[None], axis=2)  # [heads, tokens, context]
        scores = np.where((sources == NOBODY)[None], 0, found) * dtype.type(params["scale"])
    if (cap := params.get("score_cap")) is not None:
        scores = np.tanh(scores / cap) * dtype.type(cap)
    seen = visible(params, tokens)
    if params.get("mask") == "nan":
        scores = np.where(tokens.in_step, np.nan, scores)
    if params.get("late_cache_hidden"):
        late = (np.arange(tokens.context)[None, :] >= tokens.step_start[:, None]) & (tokens.steps[:, None] > 0)
        seen = seen & ~late
    return np.where(seen[None], scores, -np.inf)


def _softmax(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    (scores,) = inputs
    tokens, axis = context.tokens, node.params.get("axis", -1)
    if axis != -1:
        return _softmax_elsewhere(scores, axis, node.params, tokens)
    largest = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = powers.sum(axis=-1, keepdims=True)
    match node.params.get("empty", "nan"):
        case "nan":
            return powers / total
        case "zero":
            return powers / np.where(total == 0, 1, total)
        case "uniform":  # a large negative number instead of infinity: the keys of the step, seen or not
            reach = tokens.in_step / tokens.step_end[:, None]
            return np.where(total == 0, reach, powers / np.where(total == 0, 1, total))
    raise AssertionError(node.params)


def _softmax_elsewhere(scores: Array, axis: int, params: Mapping[str, Any], tokens: Tokens) -> Array:
    """Over heads (0) or queries (-2), within each step and sequence; keys that a step does not have stay 0.

    "window_cache": a cache of sliding windows, which has dropped the keys that no query of the step sees.
    """
    out = np.zeros_like(scores)
    for rows in tokens.chunks:
        end = int(tokens.positions[rows[-1]]) + 1
        part = scores[:, rows, :end]
        largest = part.max(axis=axis, keepdims=True)
        powers = np.exp(part - np.where(np.isneginf(largest), 0, largest))
        total = powers.sum(axis=axis, keepdims=True)
        weights = powers / (total if params.get("empty", "nan") == "nan" else np.where(total == 0, 1, total))
        dropped = np.isneginf(part).all(axis=(0, 1)) & bool(params.get("window_cache"))
        out[:, rows, :end] = np.where(dropped, 0, weights)
    return out


def _mix(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    weights, v = inputs  # [heads, tokens, context], [tokens, kv_heads, head_dim]
    params, tokens = node.params, context.tokens
    if (rope_v := params.get("rope_v")) is not None:
        v = turned(v, Node("", "rope", (), {"rope": rope_v}), context, dtype)
    num_heads = len(weights)
    v = context.cached(v)[:, kv_head_of(params, num_heads, v.shape[1])]
    if tokens.is_single and "cache" not in params:
        spread = weights
    else:
        sources = tokens.sources(params.get("cache", "right"))
        weights = np.where((sources == NOBODY)[None], 0, weights)
        spread = np.zeros((num_heads, tokens.num_tokens, tokens.num_tokens), dtype)
        query = np.arange(tokens.num_tokens)[:, None]
        where: Any = (slice(None), query, np.maximum(sources, 0))
        np.add.at(spread, where, weights)
    out = spread @ v.transpose(1, 0, 2)  # [heads, tokens, head_dim]
    if params.get("head_order") == "dim-major":
        return out.transpose(1, 2, 0).reshape(tokens.num_tokens, -1)
    if params.get("head_order") == "untransposed":
        joined = np.empty((tokens.num_tokens, num_heads * out.shape[-1]), dtype)
        for rows in tokens.chunks:
            joined[rows] = out[:, rows].reshape(len(rows), -1)
        return joined
    return out.transpose(1, 0, 2).reshape(tokens.num_tokens, -1)


_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu (erf)": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)).astype(x.dtype)),  # cancels as it does there
    "gelu (tanh)": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu (sigmoid)": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "nothing": lambda x: x,
}


def _silu_mul(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    gate, up = inputs
    if node.params.get("swapped"):
        gate, up = up, gate
    result = ACTIVATIONS[node.params.get("activation", "silu")](gate)
    if node.params.get("fp16_activation"):
        result = rounded(result, "float16")
    return result if node.params.get("no_up") else result * up


def _add(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    x, y = inputs
    a, b = node.params.get("factors", (1, 1))
    parts = [part if factor == 1 else part * dtype.type(factor) for part, factor in ((x, a), (y, b)) if factor]
    return parts[0] + parts[1] if len(parts) == 2 else parts[0]


def _select(node: Node, inputs: Sequence[Array], context: Context, dtype: np.dtype[np.floating]) -> Array:
    return inputs[0][context.logit_rows]


_FUNCTIONS: Mapping[str, Callable[[Node, Sequence[Array], Context, np.dtype[np.floating]], Array]] = {
    "embedding": _embedding,
    "norm": _norm,
    "linear": _linear,
    "rope": _rope,
    "scores": _scores,
    "softmax": _softmax,
    "mix": _mix,
    "silu_mul": _silu_mul,
    "add": _add,
    "select": _select,
}
