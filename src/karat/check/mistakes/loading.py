"""Mistakes of a loader in several tensors of a layer, or with one tensor in place of another."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any

from karat.check.mistakes.catalogue import Bug, Variant
from karat.check.mistakes.scope import DEGREES, LINEARS, Layer, Params, Scope
from karat.check.mistakes.weight_readings import Effective
from karat.check.model.graph import Node

BUGS: Mapping[str, Bug] = {
    "qkv-split": Bug(
        "fused q, k, v are cut at the wrong places", "cut in the order and the sizes in which they were stacked"
    ),
    "gate-up-split": Bug(
        "fused gate and up are cut at the wrong places",
        "cut gate and up for the ranks, each by itself, then stack them",
    ),
    "layer-prefix": Bug("the weight of another layer is used", "match tensor names whole: layers.1. is not layers.10."),
    "weight-swapped": Bug("the weight of another part of the layer is used", "check the mapping of tensor names"),
    "gguf-permute": Bug(
        "rows of q and k are permuted as in Llama's GGUF files",
        "undo the permutation for Llama, and for no other family",
    ),
}

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm")
_DELTA_NET = tuple(
    f"linear_attn.{part}"
    for part in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv", "delta_normed", "out_proj")
)
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_MLP = (*_GATE_UP, "mlp.down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
# Weights that a loader takes together. On a trace of layer outputs they are one mistake, and not one for each weight.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "all weights": (*_ATTENTION, *_DELTA_NET, *_MLP, *_NORMS),
    "the attention": _ATTENTION,
    "the delta net": _DELTA_NET,
    "q, k and v": _QKV,
    "the MLP": _MLP,
    "gate and up": _GATE_UP,
}


_TURNS = {"cut": "stacked, and rows read in turns", "stacked": "rows stacked in turns, and cut in halves"}


def layer_wide(scope: Scope, layer: Layer) -> Iterator[Variant]:
    """All mistakes of a loader in one layer."""
    nodes = [layer.node(role) for role in _QKV if role in layer]
    yield from _biases(layer, nodes)
    yield from _fused(nodes)
    yield from _by_ranks(scope, layer, nodes)
    yield from _permuted(nodes[:2])
    for other in range(scope.config.num_layers):
        if other != layer.index:
            for what, roles in _GROUPS.items():
                yield Variant("layer-prefix", f"{what} of layer {other}", taken_from(scope, layer, other, roles))
    yield from siblings(scope, layer)
    for what, roles in _GROUPS.items():
        edits: dict[str, Params] = {}
        for role in (role for role in roles if role in layer and role in LINEARS):
            weight = layer.node(role).params["weight"]
            edits[layer.node(role).name] = {"effective": Effective("transposed", (weight,), ("as columns",))}
        yield Variant("transposed", f"{what}: read as columns", edits)


def _biases(layer: Layer, nodes: Sequence[Node]) -> Iterator[Variant]:
    """Biases that are missing, or added once a rank, in several projections."""
    names = ("q", "k", "v")
    if nodes and nodes[0].params.get("bias"):
        yield Variant("bias-missing", "q, k and v", {node.name: {"bias_factor": 0} for node in nodes})
        for part in (("q", "k"), ("k", "v"), ("q", "v")):
            edits: dict[str, Params] = {
                node.name: {"bias_factor": 0} for name, node in zip(names, nodes, strict=False) if name in part
            }
            yield Variant("bias-missing", " and ".join(part), edits)
    reduced = [layer.node(role) for role in ("self_attn.o_proj", "mlp.down_proj") if role in layer]
    if all(node.params.get("bias") for node in reduced):
        for n in DEGREES:
            yield Variant(
                "bias-times-tp", f"o_proj and down_proj, {n} times", {node.name: {"bias_factor": n} for node in reduced}
            )
        yield Variant("bias-missing", "o_proj and down_proj", {node.name: {"bias_factor": 0} for node in reduced})


def _fused(nodes: Sequence[Node], ranks: int = 1) -> Iterator[Variant]:
    """q, k and v stacked in one order and cut in another; by each of several ranks on its own."""
    within, more = (f" by each of {ranks} ranks", (ranks,)) if ranks > 1 else ("", ())
    if len(nodes) < len(_QKV):  # v may be k, or K and V another layer's
        return
    for stored, cut in _cuts() if ranks == 1 else ((own, cut) for own, cut in _cuts() if "groups" not in (own, cut)):

        def args(index: int, node: Node, stored: Any = stored, cut: Any = cut) -> tuple[Any, ...]:
            return (stored, cut, index, node.params["head_dim"], *more)

        edits = _read(nodes, "fused", args)
        yield Variant("qkv-split", f"stacked as {_named(stored)}, cut as {_named(cut)}{within}", edits)


def _by_ranks(scope: Scope, layer: Layer, nodes: Sequence[Node]) -> Iterator[Variant]:
    """Fused weights that are cut for ranks without regard to their parts, or whose parts each rank cuts wrongly."""
    gate_up = [layer.node(role) for role in _GATE_UP if role in layer]
    for n in (1, *(n for n in scope.degrees if layer.shape.inner_size % n == 0)) if gate_up else ():
        within = f" by each of {n} ranks" if n > 1 else ""
        for how, detail in _TURNS.items():
            edits = _read(gate_up, "turns", partial(_of_turns, how, n))
            yield Variant("gate-up-split", f"{detail}{within}", edits)
    for n in scope.degrees:
        if nodes and layer.shape.num_kv_heads % n == 0:
            yield Variant("qkv-split", f"cut into {n} equal pieces, one for each rank", _naive(nodes, n))
            yield from _fused(nodes, n)
        if gate_up and layer.shape.inner_size % n == 0:
            yield Variant("gate-up-split", f"cut into {n} equal pieces, one for each rank", _naive(gate_up, n))


def _of_turns(how: str, n: int, index: int, node: Node) -> tuple[Any, ...]:
    return how, index, n


def _naive(nodes: Sequence[Node], n: int) -> dict[str, Params]:
    return _read(nodes, "naive", lambda index, node: (n, index))


def _read(nodes: Sequence[Node], kind: str, args: Callable[[int, Node], tuple[Any, ...]]) -> dict[str, Params]:
    """Each of these nodes with a weight, and a bias if they have one, made of those of all."""
    weights = tuple(node.params["weight"] for node in nodes)
    biases = tuple(node.params["bias"] for node in nodes if node.params.get("bias"))
    edits: dict[str, Params] = {}
    for index, node in enumerate(nodes):
        edits[node.name] = {"effective": Effective(kind, weights, args(index, node))}
        if biases:
            edits[node.name]["effective_bias"] = Effective(kind, biases, args(index, node))
    return edits


def _permuted(nodes: Sequence[Node]) -> Iterator[Variant]:
    """Rows of q and k in the order of Llama's GGUF files."""
    for direction in ("to-pairs", "from-pairs") if nodes else ():
        edits: dict[str, Params] = {}
        for node in nodes:
            how = (node.params["head_dim"], direction)
            edits[node.name] = {"effective": Effective("permuted", (node.params["weight"],), how)}
            if bias_name := node.params.get("bias"):
                edits[node.name]["effective_bias"] = Effective("permuted", (bias_name,), how)
        yield Variant("gguf-permute", f"q and k, {direction}", edits)


def taken_from(scope: Scope, layer: Layer, other: int, roles: Iterable[str]) -> dict[str, Params]:
    """The layer with another layer's weights and biases in these roles, where the family has them."""
    edits = {}
    for role in roles:
        if role in layer and (found := scope.same_part(layer.node(role), other)):
            edits[layer.node(role).name] = {k: found.params[k] for k in ("weight", "bias") if found.params.get(k)}
    return edits


def siblings(scope: Scope, layer: Layer) -> Iterator[Variant]:
    """Weights of the same shape within the layer, and biases."""
    for together in (_QKV, _GATE_UP):
        nodes = [layer.node(role) for role in together if role in layer]
        yield from _other_biases(scope, [node for node in nodes if node.params.get("bias")])
    roles = [role for role in LINEARS if role in layer]
    for role in roles:
        node = layer.node(role)
        for other_role in roles:
            other = layer.node(other_role)
            same = scope.weights.shape(other.params["weight"]) == scope.weights.shape(node.params["weight"])
            known = {"mlp.gate_proj", "mlp.up_proj"}, {"self_attn.k_proj", "self_attn.v_proj"}
            if role == other_role or not same or {role, other_role} in known:  # `known` have bugs of their own
                continue
            params: Params = {"weight": other.params["weight"]}
            yield Variant("weight-swapped", f"{role} has the weight of {other_role}", {node.name: params})
            both = {key: other.params.get(key) for key in ("weight", "bias")}
            if both["bias"] is not None and node.params.get("bias"):
                yield Variant("weight-swapped", f"{role} has weight and bias of {other_role}", {node.name: both})


def _other_biases(scope: Scope, nodes: Sequence[Node]) -> Iterator[Variant]:
    for one, other in permutations(nodes, 2):
        if scope.weights.shape(one.params["bias"]) == scope.weights.shape(other.params["bias"]):
            taken: Params = {"bias": other.params["bias"]}
            yield Variant("weight-swapped", f"{one.role} has the bias of {other.role}", {one.name: taken})
            if one.name < other.name:
                both = {one.name: taken, other.name: {"bias": one.params["bias"]}}
                yield Variant("weight-swapped", f"{one.role} and {other.role} have each other's bias", both)


def _cuts() -> Iterator[tuple[Any, Any]]:
    plain = (0, 1, 2)
    for order in permutations(plain):
        if order != plain:
            yield plain, order
    yield plain, "groups"
    yield "groups", plain


def _named(order: Any) -> str:
    return "groups of heads" if order == "groups" else ", ".join("qkv"[i] for i in order)
