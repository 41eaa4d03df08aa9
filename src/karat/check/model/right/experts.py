"""A mixture of experts: which experts a token goes to, how they are weighted, what they compute."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array, Matrix, StoredMatrix, WithBias
from karat.check.model.kinds import Given, Kind
from karat.check.model.right.attention import powers_of
from karat.check.model.right.elementwise import gelu, sigmoid, silu
from karat.ops.api import Clamp, Routing


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


def _chosen_ids(given: Given) -> Array:
    return given.replace(chosen_ids)(ChosenIds(given.inputs[0], _routing(given))).astype(given.dtype)


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
    return weighed(weights, a)


def weighed(scores: Array, a: ChosenWeights) -> Array:
    """The weights [rows, num_chosen] of the chosen experts that have these scores."""
    routing, weights = a.routing, scores
    if routing.renormalised:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True) + routing.plus, routing.least)
    weights = weights * weights.dtype.type(routing.scale)
    return weights if routing.scales is None else weights * routing.scales[a.ids]


def _chosen_weights(given: Given) -> Array:
    logits, ids = given.inputs
    return given.replace(chosen_weights)(ChosenWeights(logits, ids.astype(np.int64), _routing(given)))


def _routing(given: Given) -> Routing:
    """How experts are chosen, with arrays in place of the names of biases and scales."""
    routing: Routing = given.params["routing"]
    bias, scales = (
        None if name is None else given.context.weights.array(name, given.dtype)
        for name in (routing.bias, routing.scales)
    )
    return replace(routing, bias=bias, scales=scales)


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


def _experts(given: Given) -> Array:
    (x, ids, by), params, put, read = given.inputs[:3], given.params, given.replace, given.context.read_by_expert
    weights = put(paired)(Paired(ids, by))
    total = np.zeros_like(x)
    clamp, gates, downs = params["clamp"], params["gates"], params["downs"]
    activation = activation_of(params, given.dtype.type)
    for number in range(len(gates)):
        rows, choice = np.nonzero(ids == number)
        if not len(rows):
            continue

        def between(gate: Array, up: Array, activation: Callable[[Array], Array], number: int = number) -> Array:
            return read(put(inner)(Inner(gate, up, clamp, activation)), downs[number])

        gate, up, down = (_of_expert(given, part, number) for part in ("gate", "up", "down"))
        made = put(expert)(Expert(read(x[rows], gates[number]), gate, up, between, down, activation))
        total[rows] += weights[rows, choice][:, None] * made
    return total


def activation_of(params: Mapping[str, Any], dtype: Callable[[float], Any] = float) -> Callable[[Array], Array]:
    """What an expert's gate goes through."""
    if (clamp := params["clamp"]) is not None:
        return partial(silu, alpha=dtype(clamp.alpha))
    return gelu if params["by_gelu"] else silu


def _of_expert(given: Given, part: str, number: int) -> Matrix:
    """One of the three matrices of an expert, with its bias."""
    weights = given.context.weights
    matrix = StoredMatrix(weights, given.params[f"{part}s"][number], given.dtype)
    biases = given.params[f"{part}_biases"]
    return matrix if biases is None else WithBias(matrix, weights.array(biases[number], given.dtype))


KINDS = (
    Kind("chosen_ids", _chosen_ids, ("routing",)),
    Kind("chosen_weights", _chosen_weights, ("routing",), roundings=4),
    Kind(
        "experts",
        _experts,
        ("gates", "ups", "downs", "gate_biases", "up_biases", "down_biases", "by_gelu", "clamp"),
        roundings=8,
    ),
)
