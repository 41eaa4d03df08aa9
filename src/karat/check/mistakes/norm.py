"""Ways to normalise wrongly."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.linear import other_layers
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import Layer, OfLayer, Params, Scope
from karat.check.model.context import Array
from karat.check.model.graph import Node
from karat.check.model.kinds import Op
from karat.check.model.right.norm import EuclidNorm, Norm, l2_norm, mean_square, norm, spanned
from karat.check.model.right.rope import turned
from karat.config import RopeConfig

BUGS: Mapping[str, Bug] = {
    "v-norm": Bug(
        "v is not normalised, or is made of k after its norm",
        "normalise each head of v, without a weight; where there is no v_proj, of what k_proj gives, before k_norm",
    ),
    "qk-norm-missing": Bug(
        "q or k is not normalised, or only after RoPE", "apply q_norm and k_norm per head, before RoPE"
    ),
    "qk-norm-heads": Bug(
        "q and k are normalised head by head where it should be all heads together, or the reverse",
        "the weight's length says it: that of a head (Qwen3, Gemma 3), or of all (OLMo 2 and 3, OLMoE); without a "
        "weight it is a head (Muse Glimmer)",
    ),
    "norm-eps": Bug("the norm has another eps", "take rms_norm_eps from config.json"),
    "norm-eps-outside": Bug("the norm adds eps outside the root", "x / sqrt(mean(x²) + eps)"),
    "norm-offset": Bug(
        "the norm multiplies by 1 too much, or too little",
        "Gemma's norms and Qwen3.5's store weight - 1, but not in GGUF files, and not that of a delta net",
    ),
    "norm-mean": Bug("the norm takes the mean off (LayerNorm)", "RMSNorm: x / sqrt(mean(x²) + eps) · weight, no mean"),
    "norm-weight": Bug("the norm's weight is not applied", "multiply by the weight"),
    "norm-swapped": Bug(
        "the norm has the weight of another norm", "check which of the norms goes before attention, MLP and head"
    ),
    "norm-missing": Bug("a norm is skipped", "apply it"),
}

_INNER = ("self_attn.q_norm", "self_attn.k_norm", "linear_attn.delta_normed")
_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)


@mistake("norm", of=norm, choices=(True,))
def skip(norm: Op[Norm], a: Norm, _: bool) -> Array:
    return a.x


@mistake("l2_norm", of=l2_norm, choices=(True,))
def as_it_is(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    return a.x


@mistake("l2_norm", of=l2_norm, choices=(True,))
def unnormed(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    """x is multiplied, and not normalised."""
    return a.x * (a.factor / np.sqrt(a.x.dtype.type(a.x.shape[-1])))


@mistake("l2_norm", of=l2_norm, choices=(True,))
def together(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    """All heads of a row as if they were one."""
    row, heads = a.x.reshape(len(a.x), -1), a.x.dtype.type(a.x.shape[-2])
    return l2_norm(EuclidNorm(row, a.eps * heads, a.factor * np.sqrt(heads))).reshape(a.x.shape)


@mistake("norm", of=norm)
def rope_first(norm: Op[Norm], a: Norm, rope: RopeConfig) -> Array:
    """x is turned before it is normalised."""
    return norm(replace(a, x=turned(a.x, rope, a.context)))


@mistake("norm", of=norm)
def offset(norm: Op[Norm], a: Norm, number: float) -> Array:
    return norm(replace(a, weight=a.weight + a.weight.dtype.type(number)))


@mistake("norm", of=norm)
def elements(norm: Op[Norm], a: Norm, changes: Sequence[tuple[int, float]]) -> Array:
    """Some elements of the weight are other numbers: (column, by how much)."""
    weight = a.weight.copy()
    for column, change in changes:
        weight[column] += weight.dtype.type(change)
    return norm(replace(a, weight=weight))


@mistake("norm", of=norm, choices=(True,))
def no_weight(norm: Op[Norm], a: Norm, _: bool) -> Array:
    return norm(replace(a, weight=np.ones_like(a.weight)))


@mistake("norm", of=norm, choices=(int,))
def spans(norm: Op[Norm], a: Norm, size: int) -> Array:
    """The mean square is that of so many numbers."""
    x = a.x.reshape(len(a.x), -1, size)
    normed = (x / np.sqrt(mean_square(x) + a.eps)).reshape(len(a.x), -1, a.weight.size)
    return (normed * a.weight).reshape(a.x.shape)


@mistake("norm", of=norm, choices=(True,))
def eps_outside(norm: Op[Norm], a: Norm, _: bool) -> Array:
    x = spanned(a.x, a.weight)
    return (x / (np.sqrt(mean_square(x)) + a.eps) * a.weight).reshape(a.x.shape)


@mistake("norm", of=norm, choices=("LayerNorm", "variance", "mean"))
def about_mean(norm: Op[Norm], a: Norm, what: str) -> Array:
    """The mean is taken off: x's own (mean), that of the square only (variance), or both (LayerNorm)."""
    plain = spanned(a.x, a.weight)
    middle = plain.mean(axis=-1, keepdims=True)
    x = plain if what == "variance" else plain - middle
    square = mean_square(plain if what == "mean" else plain - middle)
    return (x / np.sqrt(square + a.eps) * a.weight).reshape(a.x.shape)


def norms(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    for role in (*layer.norms, *_INNER):
        if role in layer:
            for bug, detail, params in of_node(scope, layer.node(role)):
                if bug != "norm-missing" or ".self_attn." not in layer.node(role).name:  # qk-norm-missing
                    yield bug, f"{role}: {detail}", {role: params}
    for first, second in pairwise(layer.norms):
        both = "both norms of the layer" if len(layer.norms) == 2 else f"{first} and {second}"
        others = {(bug, detail): params for bug, detail, params in of_node(scope, layer.node(second))}
        for bug, detail, params in of_node(scope, layer.node(first)):
            if bug != "layer-prefix" and (bug, detail) in others:
                yield bug, f"{both}: {detail}", {first: params, second: others[bug, detail]}
        names = [layer.node(role).params["weight"] for role in (first, second)]
        yield (
            "norm-swapped",
            f"{both.replace('both', 'the two')} are exchanged",
            {first: {"weight": names[1]}, second: {"weight": names[0]}},
        )
    for role in layer.norms:
        yield "norm-swapped", f"{role} has the weight of model.norm", {role: {"weight": "model.norm.weight"}}
    if "self_attn.q_norm" in layer and "self_attn.k_norm" in layer:
        q, k = (layer.node(f"self_attn.{part}_norm").params["weight"] for part in "qk")
        if scope.weights.shape(q) == scope.weights.shape(k):
            exchanged = {"self_attn.q_norm": {"weight": k}, "self_attn.k_norm": {"weight": q}}
            yield "norm-swapped", "q_norm and k_norm are exchanged", exchanged
    for role in layer.norms:
        node = layer.node(role)
        yield "norm-missing", f"{role}'s result is not used", layer.instead(node.name, node.inputs[0])


def of_node(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    eps = node.params["eps"]
    yield "norm-missing", "skipped", {"skip": True}
    if node.params["plus_one"]:
        yield "norm-offset", "weight without 1", {"plus_one": False}
        yield "norm-offset", "2 + weight", {"offset": 1.0}
    else:
        yield "norm-offset", "1 + weight", {"offset": 1.0}
    yield "norm-weight", "no weight", {"no_weight": True}
    yield "norm-eps-outside", "eps outside the root", {"eps_outside": True}
    yield "norm-mean", "a LayerNorm: the mean is taken off x", {"about_mean": "LayerNorm"}
    yield "norm-mean", "the variance about the mean instead of the mean square", {"about_mean": "variance"}
    yield "norm-mean", "the mean is taken off x, and the mean square is that of x", {"about_mean": "mean"}
    for other in sorted({*_EPS, float(f"{10 * eps:g}"), float(f"{eps / 10:g}")}):
        if other != eps:
            yield "norm-eps", f"eps {other:g} instead of {eps:g}", {"eps": other}
    yield from other_layers(scope, node)


def qk_norms(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    if "self_attn.q_norm" not in layer:
        return
    q, k = "self_attn.q_norm", "self_attn.k_norm"
    for detail, roles in (("q and k", (q, k)), ("q", (q,)), ("k", (k,))):
        yield "qk-norm-missing", f"{detail} not normalised", {role: {"skip": True} for role in roles}
    shape = layer.shape
    wrong: dict[str, Params] = {}
    for role, heads in ((q, shape.num_heads), (k, shape.num_kv_heads)):
        if role not in layer:  # k may be another layer's
            continue
        (length,) = scope.weights.shape(layer.node(role).params["weight"])
        size = shape.head_dim if length != shape.head_dim else heads * shape.head_dim
        wrong |= {role: {"spans": size}} if size != length else {}
    if wrong:
        together = any(params["spans"] != shape.head_dim for params in wrong.values())
        yield "qk-norm-heads", "all heads together" if together else "each head alone", wrong
    rope = shape.rope
    if rope is None or k not in layer:
        return
    inputs = {part: (layer.node(f"self_attn.{part}_proj").name,) for part in "qk"}
    normed = tuple(layer.node(role).name for role in (q, k))
    edits: dict[str, Params] = {"self_attn.scores": {"inputs": normed}}
    for part, role in (("q", q), ("k", k)):
        edits[role] = {"rope_first": rope}
        edits[f"self_attn.{part}_rope"] = {"inputs": inputs[part]}
    yield "qk-norm-missing", "normalised after RoPE", edits
    late: dict[str, Params] = {}
    for part, role in (("q", q), ("k", k)):
        params = layer.node(role).params
        weight_and_eps = (params["weight"], params["eps"])
        late[f"self_attn.{part}_rope"] = {"inputs": inputs[part], "norm_after": weight_and_eps}
    yield "qk-norm-missing", "RoPE's result is normalised", late


def unit_norms(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    """Those of q and k that have no weights. Of q also what it is multiplied by."""
    q, k = "self_attn.q_normed", "self_attn.k_normed"
    if q not in layer:
        return
    for detail, roles in (("q and k", (q, k)), ("q", (q,)), ("k", (k,))):
        yield "qk-norm-missing", f"{detail} not normalised", {role: {"unnormed": True} for role in roles}
        if layer.shape.num_heads > 1:
            yield "qk-norm-heads", f"{detail}: all heads together", {role: {"together": True} for role in roles}
    unit = layer.shape.head_dim**0.5
    factor = layer.node(q).params["factor"] / unit
    if factor == 1:
        return
    yield "qk-norm-missing", "q neither normalised nor multiplied", {q: {"as_it_is": True}}
    yield "multiplier", "q is not multiplied", {q: {"factor": unit}}
    yield "multiplier", "q is multiplied twice", {q: {"factor": unit * factor**2}}
    yield "multiplier", "q is divided", {q: {"factor": unit / factor}}
    yield "multiplier", "k is multiplied, too", {k: {"factor": unit * factor}}


def v_norms(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    v = "self_attn.v_norm"
    if v not in layer:
        return
    yield "v-norm", "not normalised", {v: {"as_it_is": True}}
    if layer.node(v).inputs != (layer.node("self_attn.k_proj").name,):
        return
    for role in ("self_attn.k_norm", "self_attn.k_rope"):
        if role in layer:
            name = layer.node(role).name
            yield "v-norm", f"v is made of {role}", {v: {"inputs": (name,)}}
            yield "v-norm", f"v is {role}", {v: {"inputs": (name,), "as_it_is": True}}


OF_LAYER: Sequence[OfLayer] = (qk_norms, unit_norms, v_norms, norms)
