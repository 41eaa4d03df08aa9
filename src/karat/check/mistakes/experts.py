"""Ways to get a mixture of experts wrong: which experts a token goes to, how they are weighted, what they compute."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.block import OF_UNITS
from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import Layer, OfLayer, Params, Scope
from karat.check.model.context import Array, Matrix
from karat.check.model.kinds import Op
from karat.check.model.right.experts import (
    ChosenIds,
    ChosenWeights,
    Expert,
    Inner,
    Paired,
    chosen_ids,
    chosen_weights,
    expert,
    inner,
    paired,
    routing_scores,
    weighed,
)
from karat.ops.api import Clamp, Routing

BUGS: Mapping[str, Bug] = {
    "expert-choice": Bug(
        "tokens go to other experts than the router's logits say",
        "take the experts with the largest logits, or scores and biases, num_experts_per_tok of them; ids begin with 0",
    ),
    "expert-weights": Bug(
        "what experts give is weighted wrongly",
        "weights are the scores of the chosen experts, without the bias that they are chosen by; with norm_topk_prob "
        "they are divided by their sum",
    ),
    "shared-expert": Bug(
        "the shared expert or the others are left out", "add sigmoid(shared_expert_gate(x)) * shared_expert(x)"
    ),
    "expert-matrices": Bug(
        "experts compute with matrices of other experts",
        "a stack of matrices has them in order of the experts' ids, from 0 on",
    ),
    "expert-biases": Bug(
        "biases of the experts are left out or not weighted",
        "add each bias to its product; a row's weight multiplies what its expert gives, the last bias included",
    ),
    "clamp": Bug(
        "the limits or constants of the experts' activation are others",
        "(up + 1) * gate * sigmoid(1.702 * gate), with gate at most swiglu_limit, and up from its negative to it",
    ),
}

Variants = Iterator[tuple[str, str, dict[str, Params]]]

_MATRICES = ("gates", "ups", "downs")
_BIASES = ("gate_biases", "up_biases", "down_biases")
_SHIFTS = {1: "the next expert", -1: "the expert before"}
PAIRINGS: Mapping[str, Callable[[Paired], Array]] = {
    "in order of id": lambda a: np.take_along_axis(a.weights, np.argsort(np.argsort(a.ids, axis=-1), axis=-1), axis=-1),
    "all 1": lambda a: np.ones_like(a.weights),
    "all equal": lambda a: np.full_like(a.weights, 1 / a.weights.shape[-1]),
    "the last expert is left out": lambda a: a.weights * (a.weights > a.weights.min(axis=-1, keepdims=True)),
}
UNIFORM: Mapping[str, Callable[[int], float]] = {"all 1": lambda _: 1.0, "all equal": lambda count: 1 / count}
# How gate and up [inner, hidden] are cut out of the rows of one matrix.
STACKS: Mapping[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "every second row of halves": lambda gate, up: _parted(np.concatenate([gate, up], axis=-1), slice(None, None, 2)),
    "halves of every second row": lambda gate, up: _parted(
        np.stack([gate, up], axis=-1).reshape(len(gate), -1), slice(gate.shape[-1])
    ),
}


def _without_one(inner: Op[Inner], a: Inner) -> Array:
    plain = replace(a, up=np.zeros_like(a.up))  # (0 + 1) * activation
    return inner(a) - inner(plain)


def _limited_below(inner: Op[Inner], a: Inner) -> Array:
    if a.clamp is None:  # left out by another mistake beside this one
        return inner(a)
    return inner(replace(a, gate=np.maximum(a.gate, -a.gate.dtype.type(a.clamp.limit))))


# Of experts whose activation is clamped.
CLAMPED: Mapping[str, Callable[[Op[Inner], Inner], Array]] = {
    "1 is not added to up": _without_one,
    "gate is limited below, too": _limited_below,
}


def _parted(both: Array, first: slice) -> tuple[Array, Array]:
    """The features [rows, 2 * inner] of both matrices, the first part and the rest."""
    is_first = np.zeros(both.shape[-1], bool)
    is_first[first] = True
    return both[:, is_first], both[:, ~is_first]


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """One of the two matrices that are cut wrongly out of one."""

    gate: Matrix
    up: Matrix
    cut: Callable[[Array, Array], tuple[Array, Array]]
    number: int

    @property
    def num_rows(self) -> int:
        return self.gate.num_rows

    def rows_at(self, ids: NDArray[np.int64]) -> Array:
        raise AssertionError("rows of an expert's matrix are not gathered")

    def product(self, x: Array) -> Array:
        return self.cut(self.gate.product(x), self.up.product(x))[self.number]


@mistake("chosen_ids", of=chosen_ids, choices=_SHIFTS)
def shift(chosen_ids: Op[ChosenIds], a: ChosenIds, number: int) -> NDArray[np.int64]:
    return (chosen_ids(a) + number) % a.logits.shape[-1]


@mistake("chosen_ids", of=chosen_ids, choices=(True,))
def smallest(chosen_ids: Op[ChosenIds], a: ChosenIds, _: bool) -> NDArray[np.int64]:
    return chosen_ids(replace(a, logits=-a.logits))


@mistake("chosen_weights", of=chosen_weights, choices=_SHIFTS)
def of_unshifted(chosen_weights: Op[ChosenWeights], a: ChosenWeights, number: int) -> Array:
    """The weights are those of the experts whose ids were shifted afterwards."""
    return chosen_weights(replace(a, ids=(a.ids - number) % a.logits.shape[-1]))


@mistake("chosen_weights", of=chosen_weights, choices=(True,))
def descending(chosen_weights: Op[ChosenWeights], a: ChosenWeights, _: bool) -> Array:
    return np.sort(chosen_weights(a), axis=-1)[:, ::-1]


@mistake("chosen_weights", of=chosen_weights, choices=(True, False))
def sigmoid(chosen_weights: Op[ChosenWeights], a: ChosenWeights, renormalised: bool) -> Array:
    scores = 1 / (1 + np.exp(-np.take_along_axis(a.logits, a.ids, axis=-1)))
    return scores / scores.sum(axis=-1, keepdims=True) if renormalised else scores


@mistake("chosen_weights", of=chosen_weights, choices=(True,))
def biased(chosen_weights: Op[ChosenWeights], a: ChosenWeights, _: bool) -> Array:
    """Weighted by what experts are chosen by: score + bias."""
    if a.routing.bias is None:
        return chosen_weights(a)
    return weighed(np.take_along_axis(routing_scores(a.logits, a.routing) + a.routing.bias, a.ids, axis=-1), a)


@mistake("chosen_weights", of=chosen_weights, choices=UNIFORM)
def uniform(chosen_weights: Op[ChosenWeights], a: ChosenWeights, name: str) -> Array:
    return np.full_like(chosen_weights(a), UNIFORM[name](a.ids.shape[-1]))


@mistake("chosen_weights", of=chosen_weights, choices=(True,))
def unbiased(chosen_weights: Op[ChosenWeights], a: ChosenWeights, _: bool) -> Array:
    """Weighted by the router's product alone, without its bias, which `routing` has then."""
    if a.routing.bias is None:
        return chosen_weights(a)
    return chosen_weights(replace(a, logits=a.logits - a.routing.bias))


@mistake("experts", of=paired, choices=PAIRINGS)
def pairing(paired: Op[Paired], a: Paired, name: str) -> Array:
    return PAIRINGS[name](a)


@mistake("experts", of=expert, choices=STACKS)
def stack(expert: Op[Expert], a: Expert, name: str) -> Array:
    gate, up = (_Cut(a.gate, a.up, STACKS[name], number) for number in range(2))
    return expert(replace(a, gate=gate, up=up))


@mistake("experts", of=inner, choices=CLAMPED)
def clamped(inner: Op[Inner], a: Inner, name: str) -> Array:
    return CLAMPED[name](inner, a)


@mistake("experts", of=expert, choices=OF_UNITS)
def expert_activation(expert: Op[Expert], a: Expert, name: str) -> Array:
    return expert(replace(a, activation=OF_UNITS[name]))


def routing(scope: Scope, layer: Layer) -> Variants:
    """Which experts are chosen, and their weights."""
    for ids, role in zip(layer.roles_of("chosen_ids"), layer.roles_of("chosen_weights"), strict=True):
        for number, which in _SHIFTS.items():
            yield "expert-choice", which, {ids: {"shift": number}, role: {"of_unshifted": number}}
            yield "expert-choice", f"{which}, with its own weight", {ids: {"shift": number}}
        yield "expert-choice", "the smallest logits", {ids: {"smallest": True}}
        yield "expert-weights", "the largest first, whatever the order of ids", {role: {"descending": True}}
        right: Routing = layer.node(role).params["routing"]
        if right.bias is not None:
            yield "expert-choice", "the router's bias is left out", {ids: {"routing": replace(right, bias=None)}}
            yield "expert-weights", "the bias that is for choosing only is in the weight", {role: {"biased": True}}
        is_one = right.renormalised
        how = "they do not add up to 1 (softmax over all experts)" if is_one else "they add up to 1"
        yield "expert-weights", how, {role: {"routing": replace(right, renormalised=not is_one)}}
        yield "expert-weights", "sigmoid instead of softmax", {role: {"sigmoid": False}}
        yield "expert-weights", "sigmoid instead of softmax, then made to add up to 1", {role: {"sigmoid": True}}
        for name in UNIFORM:
            yield "expert-weights", name, {role: {"uniform": name}}
        if (bias := layer.graph.nodes[layer.node(ids).inputs[0]].params.get("bias")) is not None:
            of_product: Params = {"routing": replace(right, bias=bias), "unbiased": True}
            yield "expert-weights", "the router's bias is left out of them", {role: of_product}
    for role in layer.roles_of("experts"):
        for name in PAIRINGS:
            yield "expert-weights", name, {role: {"pairing": name}}


def shared(scope: Scope, layer: Layer) -> Variants:
    """The MLP beside the experts. Its gate is one of `block.gates`."""
    if "mlp.shared_expert_gate" in layer:
        yield "shared-expert", "left out", {"mlp": {"factors": (1, 0)}}
        yield "shared-expert", "only it is kept", {"mlp": {"factors": (0, 1)}}


def matrices(scope: Scope, layer: Layer) -> Variants:
    """What an expert computes with."""
    for role in layer.roles_of("experts"):
        params = layer.node(role).params
        held = _MATRICES if params["down_biases"] is None else _MATRICES + _BIASES
        for shift, which in ((1, "next"), (-1, "previous")):
            turned = {key: (*params[key][shift:], *params[key][:shift]) for key in held}
            yield "expert-matrices", f"each has those of the {which} expert", {role: turned}
            for key in _MATRICES:
                yield "expert-matrices", f"each has the {which} one's {key[:-1]}", {role: {key: turned[key]}}
        exchanged: Params = {"gates": params["ups"], "ups": params["gates"]}
        exchanged |= {"gate_biases": params["up_biases"], "up_biases": params["gate_biases"]}
        yield "gate-up-swapped", "of each expert", {role: exchanged}
        for name in STACKS:
            yield "gate-up-split", f"of each expert: {name}", {role: {"stack": name}}
        own = "gelu (tanh)" if params["by_gelu"] else "silu"
        for name in OF_UNITS:
            if name != own:
                yield "activation", f"of each expert: {name}", {role: {"expert_activation": name}}
        for other in range(scope.config.num_layers):
            found = scope.graph.by_role.get((other, role))
            if other != layer.index and found is not None and found.kind == "experts":
                yield (
                    "layer-prefix",
                    f"experts of layer {other}",
                    {role: {key: found.params[key] for key in held}},
                )


def clamps(scope: Scope, layer: Layer) -> Variants:
    """Biases and the clamped activation of experts that have them."""
    for role in layer.roles_of("experts"):
        params = layer.node(role).params
        if params["down_biases"] is not None:
            for key in _BIASES:
                yield "expert-biases", f"those of {key.split('_')[0]} are left out", {role: {key: None}}
            yield "expert-biases", "all are left out", {role: dict.fromkeys(_BIASES)}
        if (clamp := params["clamp"]) is None:
            continue
        yield "clamp", "no limits", {role: {"clamp": Clamp(np.inf, clamp.alpha)}}
        yield "clamp", "alpha is 1", {role: {"clamp": Clamp(clamp.limit, 1.0)}}
        yield "clamp", "silu(gate) * up, as in other models", {role: {"clamp": None}}
        for name in CLAMPED:
            yield "clamp", name, {role: {"clamped": name}}


OF_LAYER: Sequence[OfLayer] = (routing, matrices, clamps, shared)
