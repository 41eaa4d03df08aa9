"""Ways to get the rest of a layer wrong: residuals and the MLP."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import Layer, OfLayer, Params, Scope
from karat.check.model.context import Array
from karat.check.model.graph import Node
from karat.check.model.kinds import Op
from karat.check.model.right.elementwise import (
    GateAndUp,
    Gated,
    GatedBy,
    Scaled,
    Sum,
    activated,
    add,
    gated_by,
    gelu,
    scale,
    sigmoid_mul,
    silu,
)
from karat.check.model.rounding import rounded

BUGS: Mapping[str, Bug] = {
    "gate-up-swapped": Bug("gate and up are exchanged", "silu belongs to gate_proj: silu(gate) * up"),
    "gate": Bug(
        "a gate is left out, not a sigmoid, or for the wrong elements",
        "multiply by sigmoid(gate); each of its numbers is for as many adjoining elements: one, a head, or the row",
    ),
    "multiplier": Bug(
        "a result is not multiplied by the model's number", "multiply once, by the number that config.json names"
    ),
    "activation": Bug("another activation function is used", "use the one that hidden_act names"),
    "residual-missing": Bug(
        "the residual is missing or taken from the wrong place", "add the block's input, before its norm"
    ),
    "residual-twice": Bug("the residual or the block's output is added twice", "add each once"),
    "layer-skipped": Bug("a layer is not computed", "compute num_hidden_layers layers, each on the result before it"),
}

_FLAG = (True,)
_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu (erf)": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)).astype(x.dtype)),  # cancels as it does there
    "gelu (tanh)": gelu,
    "gelu (sigmoid)": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "nothing": lambda x: x,
}
OF_UNITS = {**ACTIVATIONS, "silu": silu}
GATES: Mapping[str, Callable[[Array], Array]] = {
    "silu": silu,
    "softplus": lambda x: np.logaddexp(x.dtype.type(0), x),
    "tanh": np.tanh,
    "nothing": lambda x: x,
}


@mistake("add", of=add)
def factors(add: Op[Sum], a: Sum, counts: tuple[int, int]) -> Array:
    """How often each of the two is added."""
    parts = [x if count == 1 else x * x.dtype.type(count) for x, count in zip((a.x, a.y), counts, strict=True) if count]
    return parts[0] + parts[1] if len(parts) == 2 else parts[0]


@mistake("silu_mul", "gelu_mul", of=activated, choices=_FLAG)
def swapped(activated: Op[GateAndUp], a: GateAndUp, _: bool) -> Array:
    return activated(replace(a, gate=a.up, up=a.gate))


@mistake("silu_mul", "gelu_mul", of=activated, choices=OF_UNITS)
def activation(activated: Op[GateAndUp], a: GateAndUp, name: str) -> Array:
    return activated(replace(a, activation=OF_UNITS[name]))


@mistake("silu_mul", "gelu_mul", of=activated, choices=_FLAG)
def fp16_activation(activated: Op[GateAndUp], a: GateAndUp, _: bool) -> Array:
    """The activation is stored as float16 before it is multiplied."""
    return activated(replace(a, activation=lambda x: rounded(a.activation(x), "float16")))


@mistake("silu_mul", of=activated, choices=_FLAG)
def no_gate(activated: Op[GateAndUp], a: GateAndUp, _: bool) -> Array:
    return a.up


@mistake("silu_mul", "gelu_mul", of=activated, choices=_FLAG)
def no_up(activated: Op[GateAndUp], a: GateAndUp, _: bool) -> Array:
    return a.activation(a.gate)


@mistake("scale_by", of=scale, choices=(-1, 0, 2))
def applied(scale: Op[Scaled], a: Scaled, times: int) -> Array:
    """How often it is multiplied; less than 0 is divided."""
    return scale(replace(a, factor=a.factor**times))


@mistake("sigmoid_mul", of=sigmoid_mul, choices=_FLAG)
def ungated(sigmoid_mul: Op[Gated], a: Gated, _: bool) -> Array:
    return a.x


@mistake("sigmoid_mul", of=sigmoid_mul, choices=GATES)
def gate_activation(sigmoid_mul: Op[Gated], a: Gated, name: str) -> Array:
    return sigmoid_mul(replace(a, activation=GATES[name]))


@mistake("sigmoid_mul", of=gated_by, choices=_FLAG)
def tiled_gate(gated_by: Op[GatedBy], a: GatedBy, _: bool) -> Array:
    """The gate's numbers one after the other, over and over, instead of each as often as it has elements."""
    return np.tile(a.gate, a.columns // a.gate.shape[-1])


def residuals(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    for role, block in zip(layer.sums, ("attention", "MLP", "layer's input"), strict=False):
        yield "residual-missing", f"only the {block}'s output is kept", {role: {"factors": (0, 1)}}
        yield "residual-missing", f"the {block}'s output is dropped", {role: {"factors": (1, 0)}}
        yield "residual-twice", f"the input of the {block} counts twice", {role: {"factors": (2, 1)}}
        yield "residual-twice", f"the {block}'s output counts twice", {role: {"factors": (1, 2)}}
    for role in layer.sums:
        residual, block_output = layer.node(role).inputs
        for norm in layer.norms:
            if layer.node(norm).inputs == (residual,):
                after = layer.node(norm).name
                yield "residual-missing", f"taken after {norm}", {role: {"inputs": (after, block_output)}}
    if len(layer.sums) > 1:
        second, last = layer.node(layer.sums[1]), layer.node("layer")
        yield (
            "residual-missing",
            "the MLP's is the layer's input",
            {layer.sums[1]: {"inputs": (layer.before, second.inputs[1])}},
        )
        of_input: Params = {"inputs": (layer.before,), "applied": 0}
        if last.kind == "add":
            of_input = {"inputs": (layer.before, last.inputs[1]), "factors": (1, 0)}
        yield "layer-skipped", "the layer's result is its input", {"layer": of_input}


def wiring(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    if len(layer.sums) > 1:
        reading = layer.instead(layer.node("attention_residual").name, layer.before)
        del reading[layer.sums[1]]  # the sum keeps it
        yield "residual-missing", "the MLP reads the layer's input", reading


def mlp(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    act, gate, up = "mlp.act", "mlp.gate_proj", "mlp.up_proj"
    if (gated := "linear_attn.norm") in layer:
        yield "activation", f"{gated}: the norm goes through it", {gated: {"swapped": True}}
        yield "activation", f"{gated}: left out with the gate", {gated: {"no_gate": True}}
        for name in ("sigmoid", "gelu (tanh)", "nothing"):
            yield "activation", f"{gated}: {name}", {gated: {"activation": name}}
    if act not in layer:
        return
    yield "gate-up-swapped", "up goes through the activation", {act: {"swapped": True}}
    params = {role: layer.node(role).params for role in (gate, up)}
    yield (
        "gate-up-swapped",
        "the weights are exchanged",
        {
            gate: {key: params[up][key] for key in ("weight", "bias")},
            up: {key: params[gate][key] for key in ("weight", "bias")},
        },
    )
    own = {"silu_mul": "silu", "gelu_mul": "gelu (tanh)"}[layer.node(act).kind]
    for name in OF_UNITS:
        if name != own:
            yield "activation", name, {act: {"activation": name}}
    yield "activation", "up is not multiplied", {act: {"no_up": True}}


def gates(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    """Of every gate that the layer has, whatever its place."""
    for role in layer.roles_of("sigmoid_mul"):
        yield "gate", f"{role}: left out", {role: {"ungated": True}}
        yield "gate", f"{role}: its numbers are tiled", {role: {"tiled_gate": True}}
        for name in GATES:
            yield "gate", f"{role}: {name} instead of sigmoid", {role: {"gate_activation": name}}


def multipliers(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    """Of every result that the layer multiplies by a number of the model."""
    for role in layer.roles_of("scale"):
        for bug, detail, params in of_multiplier(layer.node(role)):
            yield bug, f"{role}: {detail}", {role: params}
    for role in layer.roles_of("scale_by"):
        for times, detail in ((0, "left out"), (2, "applied twice"), (-1, "divided by")):
            yield "multiplier", f"{role}: {detail}", {role: {"applied": times}}


def of_multiplier(node: Node) -> Iterator[tuple[str, str, Params]]:
    factor = node.params["factor"]
    yield "multiplier", "left out", {"factor": 1.0}
    yield "multiplier", "applied twice", {"factor": factor**2}
    if factor:
        yield "multiplier", "divided by", {"factor": 1 / factor}


OF_LAYER: Sequence[OfLayer] = (residuals, mlp, gates, multipliers, wiring)
