"""A node's result from its inputs: the arguments of the right functions, and those functions.

`evaluate` takes a way to replace a right function by a wrong one. karat.check.mistakes.registry has one.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from karat.check.model import ops
from karat.check.model.context import Array, Context, DType, Matrix, StoredMatrix, WithBias
from karat.check.model.graph import Kind, Node
from karat.check.model.tokens import Tokens
from karat.config import RopeConfig
from karat.ops.api import Routing
from karat.ops.rope_table import cos_sin

Arguments = TypeVar("Arguments")
Op = Callable[[Arguments], NDArray[Any]]  # numbers, or what a token sees


class Replace(Protocol):
    """The function that takes the place of a right one."""

    def __call__(self, right: Op[Arguments], /) -> Op[Arguments]: ...


def right(function: Op[Arguments], /) -> Op[Arguments]:
    """The right function itself, for `evaluate`."""
    return function


def evaluate(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace = right) -> Array:
    """The node's result in `dtype`; inputs are of that dtype. NaN and infinity go through without a warning."""
    with np.errstate(all="ignore"):
        x = _EVALUATED[node.kind](node, inputs, context, dtype, replace)
        return replace(ops.result)(ops.Result(x, dtype)).astype(dtype, copy=False)


def _embedding(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    table = StoredMatrix(context.weights, node.params["weight"], dtype)
    return replace(ops.embedding)(ops.Embedding(context.tokens.ids, table))


def _norm(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    weight, eps = context.weights.array(node.params["weight"], dtype), dtype.type(node.params["eps"])
    return replace(ops.norm)(ops.Norm(inputs[0], weight, eps, context))


def _linear(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    weight = StoredMatrix(context.weights, node.params["weight"], dtype)
    given = inputs[0].reshape(len(inputs[0]), -1)
    x = context.read(given, node.params["weight"])
    bias = None if node.params.get("bias") is None else context.weights.array(node.params["bias"], dtype)
    product = replace(ops.product)(ops.Product(x, weight, context, given, inputs[1:]))
    y = replace(ops.biased)(ops.Biased(product, bias, context.weights, dtype))
    head_dim = node.params.get("head_dim")
    return y.reshape(len(x), -1, head_dim) if head_dim else y


def _rope(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    return turned(inputs[0], node.params["rope"], context, replace)


def turned(x: Array, config: RopeConfig, context: Context, replace: Replace = right) -> Array:
    """RoPE of x [tokens, heads, head_dim]."""
    head_dim = x.shape[-1]
    by = replace(ops.angles)(ops.Angles(context.tokens.positions, config, head_dim, head_dim, context))
    parts = cos_sin(by * (1 + context.jitter) if context.jitter else by)
    cos, sin = ((part * config.attention_factor).astype(x.dtype)[:, None] for part in parts)
    return replace(ops.rope)(ops.Rope(x, cos, sin, context))


def _scores(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    (q, k, *others), tokens = inputs, context.tokens
    seen = replace(ops.visible)(ops.Visible(tokens.positions, tokens.positions, node.params["window"], tokens))
    kv_head, scale = ops.kv_head_of(q.shape[1], k.shape[1]), dtype.type(node.params["scale"])
    return replace(ops.scores)(ops.Scores(q, k, kv_head, scale, seen, _sources(tokens), context, others))


def _softmax(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    stated = node.params["sinks"]
    sinks = None if stated is None else context.weights.array(stated, dtype)
    return replace(ops.softmax)(ops.Softmax(inputs[0], context.tokens, sinks))


def _mix(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    (weights, v, *others), tokens = inputs, context.tokens
    kv_head = ops.kv_head_of(len(weights), v.shape[1])
    heads = replace(ops.mix)(ops.Mix(weights, v, kv_head, _sources(tokens), context, others))
    return replace(ops.joined)(ops.Joined(heads, tokens))


def _sources(tokens: Tokens) -> NDArray[np.int64] | None:
    return None if tokens.is_single else tokens.sources()


def _silu_mul(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    gate, up = inputs
    return replace(ops.silu_mul)(ops.SiluMul(gate, up))


def _sigmoid_mul(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    x, gate = (values.reshape(len(values), -1) for values in inputs)
    by_element = replace(ops.gated_by)(ops.GatedBy(gate, x.shape[-1]))
    return replace(ops.sigmoid_mul)(ops.SigmoidMul(x, by_element)).reshape(inputs[0].shape)


def _add(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    x, y = inputs
    return replace(ops.add)(ops.Add(x, y))


def _scale(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    return replace(ops.scale)(ops.Scale(inputs[0], dtype.type(node.params["factor"])))


def _chosen_ids(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    return replace(ops.chosen_ids)(ops.ChosenIds(inputs[0], _routing(node, context, dtype))).astype(dtype)


def _chosen_weights(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    logits, ids = inputs
    routing = _routing(node, context, dtype)
    return replace(ops.chosen_weights)(ops.ChosenWeights(logits, ids.astype(np.int64), routing))


def _routing(node: Node, context: Context, dtype: DType) -> Routing:
    """How experts are chosen, with arrays in place of the names of biases and scales."""
    routing: Routing = node.params["routing"]
    bias, scales = (
        None if name is None else context.weights.array(name, dtype) for name in (routing.bias, routing.scales)
    )
    return dataclasses.replace(routing, bias=bias, scales=scales)


def _experts(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    x, ids = inputs[:2]
    weights = replace(ops.paired)(ops.Paired(ids, inputs[2]))
    total = np.zeros_like(x)
    clamp, gates, downs = node.params["clamp"], node.params["gates"], node.params["downs"]
    alpha = dtype.type(1 if clamp is None else clamp.alpha)
    for number in range(len(gates)):
        rows, choice = np.nonzero(ids == number)
        if not len(rows):
            continue

        def inner(gate: Array, up: Array, activation: Callable[[Array], Array], number: int = number) -> Array:
            inner = replace(ops.inner)(ops.Inner(gate, up, clamp, activation))
            return context.read(inner, downs[number])

        gate, up, down = (_of_expert(node, part, number, context, dtype) for part in ("gate", "up", "down"))
        read = context.read(x[rows], gates[number])
        activation = ops.silu if clamp is None else partial(ops.silu, alpha=alpha)
        given = replace(ops.expert)(ops.Expert(read, gate, up, inner, down, activation))
        total[rows] += weights[rows, choice][:, None] * given
    return total


def _of_expert(node: Node, part: str, number: int, context: Context, dtype: DType) -> Matrix:
    """One of the three matrices of an expert, with its bias."""
    matrix = StoredMatrix(context.weights, node.params[f"{part}s"][number], dtype)
    biases = node.params[f"{part}_biases"]
    return matrix if biases is None else WithBias(matrix, context.weights.array(biases[number], dtype))


def _select(node: Node, inputs: Sequence[Array], context: Context, dtype: DType, replace: Replace) -> Array:
    return replace(ops.select)(ops.Select(inputs[0], context.logit_rows, context.tokens))


_EVALUATED: Mapping[Kind, Callable[[Node, Sequence[Array], Context, DType, Replace], Array]] = {
    "embedding": _embedding,
    "norm": _norm,
    "linear": _linear,
    "rope": _rope,
    "scores": _scores,
    "softmax": _softmax,
    "mix": _mix,
    "silu_mul": _silu_mul,
    "sigmoid_mul": _sigmoid_mul,
    "add": _add,
    "scale": _scale,
    "chosen_ids": _chosen_ids,
    "chosen_weights": _chosen_weights,
    "experts": _experts,
    "select": _select,
}
