"""Ways to get the rest of a layer wrong: norms, residuals, MLP."""

from collections.abc import Iterator

from karat.check.mistakes.scope import LINEARS, Layer, Params, Scope
from karat.check.mistakes.weights import other_layers
from karat.check.model.graph import Node

_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)


def norms(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    first, second = "input_layernorm", "post_attention_layernorm"
    for role in (first, second, "self_attn.q_norm", "self_attn.k_norm"):
        if role in layer:
            for bug, detail, params in norm(scope, layer.node(role)):
                if bug != "norm-missing" or ".self_attn." not in layer.node(role).name:  # qk-norm-missing
                    yield bug, f"{role}: {detail}", {role: params}
    names = {role: layer.node(role).params["weight"] for role in (first, second)}
    yield "norm-swapped", "the two norms of the layer are exchanged", {
        first: {"weight": names[second]}, second: {"weight": names[first]}}  # fmt: skip
    for role in (first, second):
        yield "norm-swapped", f"{role} has the weight of model.norm", {role: {"weight": "model.norm.weight"}}
    if "self_attn.q_norm" in layer:
        q, k = (layer.node(f"self_attn.{part}_norm").params["weight"] for part in "qk")
        yield "norm-swapped", "q_norm and k_norm are exchanged", {
            "self_attn.q_norm": {"weight": k}, "self_attn.k_norm": {"weight": q}}  # fmt: skip
    for role, source in ((first, layer.before), (second, layer.node(second).inputs[0])):
        readers = LINEARS[:3] if role == first else LINEARS[4:6]
        yield "norm-missing", f"{role}'s result is not used", {r: {"inputs": (source,)} for r in readers}


def norm(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    eps = node.params["eps"]
    yield "norm-missing", "skipped", {"skip": True}
    yield "norm-offset", "1 + weight", {"offset": 1.0}
    yield "norm-weight", "no weight", {"no_weight": True}
    yield "norm-eps-outside", "eps outside the root", {"eps_outside": True}
    for other in _EPS:
        if other != eps:
            yield "norm-eps", f"eps {other:g} instead of {eps:g}", {"eps": other}
    yield from other_layers(scope, node)


def residuals(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    mid = "attention_residual"
    for role, block in ((mid, "attention"), ("layer", "MLP")):
        yield "residual-missing", f"only the {block}'s output is kept", {role: {"factors": (0, 1)}}
        yield "residual-missing", f"the {block}'s output is dropped", {role: {"factors": (1, 0)}}
        yield "residual-twice", f"the input of the {block} counts twice", {role: {"factors": (2, 1)}}
        yield "residual-twice", f"the {block}'s output counts twice", {role: {"factors": (1, 2)}}
    for role, norm in ((mid, "input_layernorm"), ("layer", "post_attention_layernorm")):
        block_output = layer.node(role).inputs[1]
        yield "residual-missing", f"taken after {norm}", {
            role: {"inputs": (layer.node(norm).name, block_output)}}  # fmt: skip
    yield "residual-missing", "the MLP's is the layer's input", {
        "layer": {"inputs": (layer.before, layer.node("mlp.down_proj").name)}}  # fmt: skip


def wiring(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    yield "residual-missing", "the MLP reads the layer's input", {
        "post_attention_layernorm": {"inputs": (layer.before,)}}  # fmt: skip


def mlp(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    act, gate, up = "mlp.act", "mlp.gate_proj", "mlp.up_proj"
    yield "gate-up-swapped", "up goes through the activation", {act: {"swapped": True}}
    params = {role: layer.node(role).params for role in (gate, up)}
    yield "gate-up-swapped", "the weights are exchanged", {
        gate: {key: params[up][key] for key in ("weight", "bias")},
        up: {key: params[gate][key] for key in ("weight", "bias")},
    }  # fmt: skip
    for name in ("gelu (erf)", "gelu (tanh)", "gelu (sigmoid)", "relu", "sigmoid", "tanh", "nothing"):
        yield "activation", name, {act: {"activation": name}}
    yield "activation", "up is not multiplied", {act: {"no_up": True}}
