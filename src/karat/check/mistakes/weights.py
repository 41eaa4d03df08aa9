"""Ways to load, read, shard and reduce weights wrongly."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.quantised import mistakes
from karat.check.mistakes.scope import DEGREES, LINEARS, Layer, Params, Scope
from karat.check.mistakes.weight_readings import Effective
from karat.check.model.graph import Node
from karat.checkpoint.weights import PLAIN_BYTES

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_MLP = (*_GATE_UP, "mlp.down_proj")
# What a loader takes at once: on a trace of layer outputs each weight by itself would be three mistakes at one place.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "all weights": (*_ATTENTION, *_MLP, "input_layernorm", "post_attention_layernorm"),
    "the attention": _ATTENTION, "q, k and v": _QKV, "the MLP": _MLP, "gate and up": _GATE_UP,
}  # fmt: skip


def other_layers(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    """The same part of the other layers, with its bias if it has one."""
    for other in range(scope.config.num_layers if node.layer is not None else 0):
        if other != node.layer:
            params = scope.graph.by_role[other, node.role].params
            taken = {key: params[key] for key in ("weight", "bias") if params.get(key)}
            yield "layer-prefix", f"the weight of layer {other}", taken


def linears(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    weight, role = node.params["weight"], node.role
    out_features, in_features = scope.weights.shape(weight)
    if node.params.get("bias"):
        yield "bias-missing", "no bias", {"bias_factor": 0}
        for n in (2, 3, *DEGREES[1:]):
            yield "bias-times-tp", f"the bias is added {n} times", {"bias_factor": n}
    for how in ("as columns", "as rows"):
        yield "transposed", f"read {how}", {"effective": Effective("transposed", (weight,), (how,))}
    yield from other_layers(scope, node)
    for n in DEGREES:
        if in_features % n == 0 and out_features % n == 0:
            kind = "row" if role.endswith(("o_proj", "down_proj")) else "column"
            yield "shard-dim", f"over {n} ranks", {"effective": Effective(f"{kind}-shards", (weight,), (n,))}
        if role.endswith(("o_proj", "down_proj")):
            if in_features % n == 0:
                for rank in range(n):
                    yield "reduce-missing", f"only the part of rank {rank} of {n}", {"input_part": (rank, n)}
            bias = " (bias included)" if node.params.get("bias") else ""
            yield "reduce-missing", f"added up {n} times{bias}", {"output_factor": float(n)}
            if bias:
                yield "reduce-missing", f"added up {n} times", {"output_factor": float(n), "bias_factor": 1 / n}
    for how, bug, detail in misreadings(scope, weight):
        yield bug, detail, {"effective": Effective("bits", (weight,), (how,))}
        if len(both := misread(scope, node, how)) == 2:
            yield bug, f"{detail}, the bias too", both
    if role in ("self_attn.q_proj", "self_attn.k_proj"):
        for direction in ("to-pairs", "from-pairs"):
            params: Params = {"effective": Effective("permuted", (weight,), (scope.config.head_dim, direction))}
            yield "gguf-permute", direction, params
            if bias_name := node.params.get("bias"):
                both = {"effective_bias": Effective("permuted", (bias_name,), (scope.config.head_dim, direction))}
                yield "gguf-permute", f"{direction}, the bias too", {**params, **both}


def misread(scope: Scope, node: Node, how: str) -> Params:
    """A linear node whose weight is read in the wrong way `how`, and its bias too if it can be."""
    params: Params = {"effective": Effective("bits", (node.params["weight"],), (how,))}
    bias = node.params.get("bias")
    if bias and how in {known for known, _, _ in misreadings(scope, bias)}:
        params["effective_bias"] = Effective("bits", (bias,), (how,))
    return params


def misreadings(scope: Scope, weight: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(how, bug, detail) of each way to read the bytes wrongly."""
    stored = scope.weights.stored[weight or scope.graph.nodes["lm_head"].params["weight"]].dtype
    if stored not in PLAIN_BYTES:
        yield from mistakes(stored)
        return
    if stored == "F32":
        yield "truncated", "dtype-trunc", "cut to bfloat16"
        yield "rounded bfloat16", "dtype-narrow", "rounded to bfloat16"
        yield "rounded float16", "dtype-narrow", "rounded to float16"
    else:
        yield "misread", "dtype-misread", f"{stored} read as {'bfloat16' if stored == 'F16' else 'float16'}"
    yield "swapped", "byte-order", "big-endian"


def layer_wide(scope: Scope, layer: Layer) -> Iterator[Variant]:
    """What a loader does to several tensors of a layer at once."""
    names = ("q", "k", "v")
    nodes = [layer.node(f"self_attn.{part}_proj") for part in names]
    if nodes[0].params.get("bias"):
        yield Variant("bias-missing", "q, k and v", {node.name: {"bias_factor": 0} for node in nodes})
        for part in (("q", "k"), ("k", "v"), ("q", "v")):
            edits: dict[str, Params] = {
                node.name: {"bias_factor": 0} for name, node in zip(names, nodes, strict=True) if name in part
            }
            yield Variant("bias-missing", " and ".join(part), edits)
    reduced = [layer.node(role) for role in ("self_attn.o_proj", "mlp.down_proj")]
    if all(node.params.get("bias") for node in reduced):
        for n in DEGREES:
            yield Variant("bias-times-tp", f"o_proj and down_proj, {n} times", {
                node.name: {"bias_factor": n} for node in reduced})  # fmt: skip
        yield Variant("bias-missing", "o_proj and down_proj", {node.name: {"bias_factor": 0} for node in reduced})
    weights = tuple(node.params["weight"] for node in nodes)
    biases = tuple(node.params["bias"] for node in nodes if node.params.get("bias"))
    for stored, cut in _cuts():
        edits = {}
        for index, node in enumerate(nodes):
            args = (stored, cut, index, scope.config.head_dim)
            edits[node.name] = {"effective": Effective("fused", weights, args)}
            if biases:
                edits[node.name]["effective_bias"] = Effective("fused", biases, args)
        yield Variant("qkv-split", f"stacked as {_named(stored)}, cut as {_named(cut)}", edits)
    for direction in ("to-pairs", "from-pairs"):
        edits = {}
        for node in nodes[:2]:
            how = (scope.config.head_dim, direction)
            edits[node.name] = {"effective": Effective("permuted", (node.params["weight"],), how)}
            if bias_name := node.params.get("bias"):
                edits[node.name]["effective_bias"] = Effective("permuted", (bias_name,), how)
        yield Variant("gguf-permute", f"q and k, {direction}", edits)
    for other in range(scope.config.num_layers):
        if other != layer.index:
            for what, roles in _GROUPS.items():
                yield Variant("layer-prefix", f"{what} of layer {other}", taken_from(scope, layer, other, roles))
    yield from siblings(scope, layer)


def taken_from(scope: Scope, layer: Layer, other: int, roles: Iterable[str]) -> dict[str, Params]:
    """The layer with what another has in these places, as far as the family has them."""
    edits = {}
    for role in roles:
        if role in layer:
            params = scope.graph.by_role[other, role].params
            edits[layer.node(role).name] = {k: params[k] for k in ("weight", "bias") if params.get(k)}
    return edits


def siblings(scope: Scope, layer: Layer) -> Iterator[Variant]:
    """Weights of the same shape within the layer."""
    for role in LINEARS:
        node = layer.node(role)
        for other_role in LINEARS:
            other = layer.node(other_role)
            same = scope.weights.shape(other.params["weight"]) == scope.weights.shape(node.params["weight"])
            known = {"mlp.gate_proj", "mlp.up_proj"}, {"self_attn.k_proj", "self_attn.v_proj"}
            if role == other_role or not same or {role, other_role} in known:  # they have names of their own
                continue
            params: Params = {"weight": other.params["weight"]}
            yield Variant("weight-swapped", f"{role} has the weight of {other_role}", {node.name: params})
            both = {key: other.params.get(key) for key in ("weight", "bias")}
            if both["bias"] is not None and node.params.get("bias"):
                yield Variant("weight-swapped", f"{role} has weight and bias of {other_role}", {node.name: both})


def overflow() -> Iterator[tuple[str, str, Params]]:
    yield "overflow-fp16", "the result is stored as float16", {"fp16_output": True}
    yield "overflow-fp16", "the sum overflows before the bias", {"fp16_sum": True}


def _cuts() -> Iterator[tuple[Any, Any]]:
    plain = (0, 1, 2)
    for order in permutations(plain):
        if order != plain:
            yield plain, order
    yield plain, "groups"
    yield "groups", plain


def _named(order: Any) -> str:
    return "groups of heads" if order == "groups" else ", ".join("qkv"[i] for i in order)
