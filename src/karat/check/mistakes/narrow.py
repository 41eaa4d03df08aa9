"""Arithmetic in a narrower type inside one op: what an engine rounds there, step by step.

Each is a proposal of karat.check.diagnosis.narrow, which compares value by value: a number near a tie may fall to
either side, so an op with such a rounding is never reproduced in every value.
"""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import DEGREES
from karat.check.model.context import Array, StoredMatrix
from karat.check.model.kinds import Op
from karat.check.model.right.attention import Mix, Scores, Softmax, mix, scores, softmax, with_sinks
from karat.check.model.right.elementwise import GateAndUp, Sum, activated, add
from karat.check.model.right.linear import Biased, Product, biased, product
from karat.check.model.right.norm import Norm, norm, spanned
from karat.check.model.right.rope import Angles, Rotated, angles, rope
from karat.check.model.rounding import rounded
from karat.config import FloatName

BUGS: Mapping[str, Bug] = {
    "narrow-arithmetic": Bug(
        "inside an op it is computed in a narrower type",
        "compute angles, softmax, norms and sums in float32, whatever type weights and results are stored in",
    ),
}

# What may be rounded in an op of each kind, in words.
INSIDE: Mapping[str, tuple[str, ...]] = {
    "norm": (
        "everything",
        "all but the weight",
        "x, the normed row, the weight, the result",
        "x²",
        "x², its mean",
        "x",
        "the result",
    ),
    "linear": (
        "x, the weight, the product",
        "x, the weight, the product, the bias, the result",
        "x, the weight, the bias, the result",
        "x, the weight, the result",
        "x, the weight",
        "x, the product",
        "x",
        "the product",
        "the result",
    ),
    "rope": ("frequencies", "positions", "positions, frequencies, angles", "cos, sin", "everything"),
    "scores": ("q, k, the product", "q, k", "the product", "q, k, the result", "the result"),
    "softmax": ("scores, the result", "scores", "the result", "everything"),
    "mix": ("weights, v, the result", "weights, v", "weights", "the result"),
    **dict.fromkeys(("silu_mul", "gelu_mul"), ("everything", "gate, the activation", "the activation", "the result")),
    "add": ("both, the result", "both", "the result"),
}
# The same in some steps or sequences alone: V of all tokens is rounded where it is cached, which is another mistake.
IN_PART: Mapping[str, tuple[str, ...]] = {"mix": ("v",)}
# What may be rounded in the sum of so many ranks' products.
OF_RANKS: Mapping[str, int] = {
    f"{inputs}the parts of {degree} ranks": degree for inputs in ("", "x, the weight, ") for degree in DEGREES
}
_BY_ROW = ("everything", "all but the weight", "x², its mean")
_UNIT: Mapping[FloatName, float] = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_What = tuple[str, FloatName]  # what is rounded (one of INSIDE), and to what


def _to(dtype: FloatName, like: Array) -> Callable[[Array], Array]:
    return lambda x: rounded(x, dtype).astype(like.dtype, copy=False)


@mistake("norm", of=norm, name="narrow")
def narrow_norm(norm: Op[Norm], a: Norm, what: tuple[str, FloatName, int]) -> Array:
    """The last number: by how many units the one number of each row is moved, which may lie near a tie."""
    return _narrow_rows(norm, replace(a, x=spanned(a.x, a.weight)), what).reshape(a.x.shape)


def _narrow_rows(norm: Op[Norm], a: Norm, what: tuple[str, FloatName, int]) -> Array:
    where, dtype, units = what
    to, beside = _to(dtype, a.x), 1 + 1.5 * _UNIT[dtype] * units  # of a rounded number: the next one
    if where == "x":
        return norm(replace(a, x=to(a.x)))
    if where == "the result":
        return to(norm(a))
    x = to(a.x)
    if where == "x, the normed row, the weight, the result":
        return to(to(norm(replace(a, x=x, weight=np.ones_like(a.weight)))) * to(a.weight))
    square = to(x * x).mean(axis=-1, keepdims=True)
    if where == "x²":
        return a.x / np.sqrt(square + a.eps) * a.weight
    mean = to(square)
    if where == "x², its mean":
        return a.x / np.sqrt(to(mean * beside) + a.eps) * a.weight
    row = to(x * to(to(1 / np.sqrt(to(mean + a.eps))) * beside))
    return row * a.weight if where == "all but the weight" else to(row * to(a.weight))


@mistake("linear", of=product, name="narrow")
def narrow_product(product: Op[Product], a: Product, what: _What) -> Array:
    where, to = what[0], _to(what[1], a.x)
    assert isinstance(a.weight, StoredMatrix)
    x = a.context.read(to(a.given), a.weight.name) if "x" in where.split(", ") else a.x
    if where in OF_RANKS:
        weight = a.weight.weights.array(a.weight.name, a.weight.dtype)
        parts = (
            np.split(each, OF_RANKS[where], axis=-1) for each in (x, to(weight) if "the weight" in where else weight)
        )
        return np.add.reduce([to(of_x @ of_weight.T) for of_x, of_weight in zip(*parts, strict=True)])
    if "the weight" in where:
        y = x @ to(a.weight.weights.array(a.weight.name, a.weight.dtype)).T
    else:
        y = product(replace(a, x=x))
    return to(y) if "the product" in where else y


@mistake("linear", of=biased, name="narrow_sum")
def narrow_biased(biased: Op[Biased], a: Biased, what: _What) -> Array:
    """Product and bias are added, and the sum is rounded."""
    where, to = what[0], _to(what[1], a.y)
    if "the bias" in where and a.bias is not None:
        a = replace(a, bias=to(a.bias))
    return to(biased(a))


@mistake("rope", of=angles, name="narrow")
def narrow_angles(angles: Op[Angles], a: Angles, what: _What) -> Array:
    where, to = what[0], _to(what[1], np.zeros(0))
    if where not in ("frequencies", "positions", "positions, frequencies, angles"):
        return angles(a)
    frequencies: Array = a.context.frequencies(a.rope, a.table_dim).astype(np.float64)[: a.rotary_dim // 2]
    positions: Array = a.positions.astype(np.float64)[:, None]
    if "frequencies" in where:
        frequencies = to(frequencies)
    if "positions" in where:
        positions = to(positions)
    by = (positions.astype(np.float32) * frequencies.astype(np.float32)).astype(np.float64)
    return to(by) if "angles" in where else by


@mistake("rope", of=rope, name="narrow_turn")
def narrow_rope(rope: Op[Rotated], a: Rotated, what: _What) -> Array:
    where, to = what[0], _to(what[1], a.x)
    cos, sin = to(a.cos), to(a.sin)
    if where == "cos, sin":
        return rope(replace(a, cos=cos, sin=sin))
    x, half = to(a.x), cos.shape[-1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (to(to(left * cos) - to(right * sin)), to(to(right * cos) + to(left * sin)), rest)
    return np.concatenate(turned, axis=-1)


@mistake("scores", of=scores, name="narrow")
def narrow_scores(scores: Op[Scores], a: Scores, what: _What) -> Array:
    where, to = what[0], _to(what[1], a.q)
    if "q, k" in where:
        a = replace(a, q=to(a.q), k=to(a.k))
    if "the product" in where:
        return to(scores(replace(a, scale=a.q.dtype.type(1)))) * a.scale
    return to(scores(a)) if "the result" in where else scores(a)


@mistake("softmax", of=softmax, name="narrow")
def narrow_softmax(softmax: Op[Softmax], a: Softmax, what: tuple[str, FloatName, int | None]) -> Array:
    """The last number: by how many units each row's sum is moved, which is added up in the narrow type; None: it is
    added up key by key, each sum rounded.
    """
    where, dtype, units = what
    to = _to(dtype, a.scores)
    if where == "everything":
        scores = to(with_sinks(a))
        largest = scores.max(axis=-1, keepdims=True)
        powers = to(np.exp(to(scores - np.where(np.isneginf(largest), 0, largest))))
        if units is None:
            total = np.zeros_like(powers[..., :1])
            for key in range(powers.shape[-1]):
                total = to(total + powers[..., key : key + 1])
        else:
            total = to(to(powers.sum(axis=-1, keepdims=True)) * (1 + 1.5 * _UNIT[dtype] * units))
        return to(powers / total)[..., : a.scores.shape[-1]]
    weights = softmax(replace(a, scores=to(a.scores)) if "scores" in where else a)
    return to(weights) if "the result" in where else weights


@mistake("mix", of=mix, name="narrow")
def narrow_mix(mix: Op[Mix], a: Mix, what: _What) -> Array:
    where, to = what[0], _to(what[1], a.v)
    if "weights" in where:
        a = replace(a, weights=to(a.weights))
    if "v" in where.split(", "):
        a = replace(a, v=to(a.v))
    return to(mix(a)) if "the result" in where else mix(a)


@mistake("silu_mul", "gelu_mul", of=activated, name="narrow")
def narrow_activated(activated: Op[GateAndUp], a: GateAndUp, what: _What) -> Array:
    where, to = what[0], _to(what[1], a.gate)
    if where == "the result":
        return to(activated(a))
    gate = a.gate if where == "the activation" else to(a.gate)
    activation = to(a.activation(gate))
    return to(activation * to(a.up)) if where == "everything" else activation * a.up


@mistake("add", of=add, name="narrow")
def narrow_add(add: Op[Sum], a: Sum, what: _What) -> Array:
    where, to = what[0], _to(what[1], a.x)
    if "both" in where:
        a = replace(a, x=to(a.x), y=to(a.y))
    return to(add(a)) if "the result" in where else add(a)


def edits(kind: str, where: str, dtype: FloatName) -> Sequence[Mapping[str, object]]:
    """The parameters of a node of this kind in which `where`, one of INSIDE, is rounded to `dtype`.

    Where one number decides a whole row, and may be another one by a few units, all of its values.
    """
    if kind in ("norm", "softmax"):
        moves: tuple[int | None, ...] = (0, 1, -1, 2, -2) if where in _BY_ROW else (0,)
        moves += (None,) if kind == "softmax" and where in _BY_ROW else ()
        return [{"narrow": (where, dtype, units)} for units in moves]
    if kind == "linear" and "the result" in where:
        return [{"narrow": (where, dtype), "narrow_sum": (where, dtype)}]
    if kind == "rope" and where in ("cos, sin", "everything"):
        return [{"narrow_turn": (where, dtype)}]
    return [{"narrow": (where, dtype)}]
