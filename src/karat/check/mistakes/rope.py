"""Ways to turn q and k wrongly."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import Layer, OfLayer, Params, Scope
from karat.check.model.context import Array
from karat.check.model.kinds import Op
from karat.check.model.right.attention import Scores, scores
from karat.check.model.right.norm import Norm, norm
from karat.check.model.right.rope import Angles, Rotated, angles, rope, turned
from karat.check.model.tokens import Tokens
from karat.config import LayerShape, ProportionalRope, RopeConfig
from karat.ops.rope_table import yarn_attention_factor

BUGS: Mapping[str, Bug] = {
    "rope-pairing": Bug(
        "RoPE turns neighbours (2i, 2i+1) where the model pairs (i, i + head_dim/2), or the reverse",
        "use rotate_half for Hugging Face weights; interleaved pairs belong to Meta's original layout",
    ),
    "rope-theta": Bug(
        "RoPE's frequencies are not the model's",
        "take rope_theta and the whole of rope_scaling / rope_parameters from config.json",
    ),
    "rope-position": Bug(
        "RoPE is given the wrong positions", "positions are absolute, count from 0, and go on at decode"
    ),
    "rope-sign": Bug("RoPE turns the wrong way", "x1·cos - x2·sin and x2·cos + x1·sin"),
    "rope-missing-k": Bug("RoPE is not applied", "turn both q and k"),
    "rope-before-bias": Bug("the bias is added after RoPE", "add the bias to the product, and turn their sum"),
    "rope-twice": Bug("RoPE is applied twice", "store k in the cache as it was turned once, and do not turn it again"),
    "rope-extra": Bug(
        "RoPE turns q and k of a layer that has none", "turn nothing in the layers that config.json leaves without RoPE"
    ),
    "rope-partial": Bug(
        "RoPE has the wrong number of dimensions",
        "take head_dim (and partial_rotary_factor) from config.json, not hidden_size / heads",
    ),
}

PositionKind = str | int | tuple[str, int]
_THETAS = (500.0, 1e4, 1e5, 5e5, 1e6, 1e7)
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0)
_OF_STEPS = {
    "restarted": "positions start anew in each step",
    "frozen": "every decode step has the same position",
    "frozen-last": "every decode step has the last position of the prompt",
}
_FLAT = {"flat": "positions go on from one sequence to the next"}
_STATED = {"stated": "the positions that the trace states"}


@mistake("scores", of=scores)
def turned_too(scores: Op[Scores], a: Scores, rope: RopeConfig) -> Array:
    """q and k are turned, as in the layers that have RoPE."""
    q, k = (turned(x, rope, a.context) for x in (a.q, a.k))
    return scores(replace(a, q=q, k=k))


@mistake("rope", of=rope)
def norm_after(rope: Op[Rotated], a: Rotated, weight_and_eps: tuple[str, float]) -> Array:
    """RoPE's result is normalised."""
    name, eps = weight_and_eps
    x = rope(a)
    weight = a.context.weights.array(name, x.dtype)
    return norm(Norm(x, weight, x.dtype.type(eps), a.context))


@mistake("rope", of=rope)
def late_bias(rope: Op[Rotated], a: Rotated, bias_and_how: tuple[str, str]) -> Array:
    """The bias is added behind RoPE; "moved": x has it already, and loses it; "added": x does not have it."""
    name, how = bias_and_how
    bias = a.context.weights.array(name, a.x.dtype).reshape(a.x.shape[1:])
    return rope(replace(a, x=a.x - bias) if how == "moved" else a) + bias


@mistake("rope", of=rope, choices=(True,))
def skip(rope: Op[Rotated], a: Rotated, _: bool) -> Array:
    return a.x


@mistake("rope", of=rope, choices=("interleaved",))
def pairing(rope: Op[Rotated], a: Rotated, _: str) -> Array:
    """Neighbours are turned, (2i, 2i + 1)."""
    cos, sin, size = a.cos, a.sin, 2 * a.cos.shape[-1]
    left, right = a.x[..., 0:size:2], a.x[..., 1:size:2]
    out = a.x.copy()
    out[..., 0:size:2], out[..., 1:size:2] = left * cos - right * sin, right * cos + left * sin
    return out


@mistake("rope", of=angles)
def times(angles: Op[Angles], a: Angles, number: int) -> Array:
    return angles(a) * number


@mistake("rope", of=angles, choices=(-1,))
def direction(angles: Op[Angles], a: Angles, sign: int) -> Array:
    return angles(a) * sign


@mistake("rope", of=angles, choices=(*_OF_STEPS, *_FLAT, *_STATED, int, tuple))
def positions(angles: Op[Angles], a: Angles, kind: PositionKind) -> Array:
    return angles(replace(a, positions=position_map(kind, a.context.tokens)))


@mistake("rope", of=angles)
def rotary_dim(angles: Op[Angles], a: Angles, size: int) -> Array:
    """Only the first dimensions turn, with frequencies of their own number."""
    return angles(replace(a, rotary_dim=size, table_dim=size))


@mistake("rope", of=angles)
def table_dim(angles: Op[Angles], a: Angles, size: int) -> Array:
    """The frequencies are those of another number of dimensions."""
    return angles(replace(a, table_dim=size))


def position_map(kind: PositionKind, tokens: Tokens) -> NDArray[np.int64]:
    """[tokens]: the positions that an engine uses; a number shifts them all. ("clipped", n): at most n; ("wrapped", n):
    from n on they count from 0 again."""
    right = tokens.positions
    if isinstance(kind, int):
        return right + kind
    if isinstance(kind, tuple):
        how, number = kind
        return np.minimum(right, number) if how == "clipped" else right % number
    match kind:
        case "restarted":
            return tokens.index_in_step
        case "frozen":  # every later step repeats the positions that follow the first step
            return _frozen(np.where(tokens.steps == 0, right + 1, 0), tokens)
        case "frozen-last":
            return _frozen(np.where(tokens.steps == 0, right, 0), tokens)
        case "flat":
            return np.arange(len(right), dtype=np.int64)
        case "stated":
            return right if tokens.stated is None else tokens.stated
    raise AssertionError(kind)


def _frozen(first_step: NDArray[np.int64], tokens: Tokens) -> NDArray[np.int64]:
    """Later steps count from the largest number that their sequence has in the first step."""
    start = np.zeros(int(tokens.sequences.max()) + 1, np.int64)
    np.maximum.at(start, tokens.sequences, first_step)
    return np.where(tokens.steps == 0, tokens.positions, start[tokens.sequences] + tokens.index_in_step)


def ropes(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    rope = layer.shape.rope
    if rope is None:
        others = {shape.rope for shape in scope.config.shapes if shape.rope is not None} or {scope.config.rope}
        for other in sorted(others, key=repr):
            detail = f"turned by theta {other.theta:g}, as in layers that have RoPE"
            yield "rope-extra", detail, {"self_attn.scores": {"turned_too": other}}
        return
    for detail, roles in (("q and k", ("q", "k")), ("q", ("q",)), ("k", ("k",))):
        for bug, what, params in _rope_params(scope, layer.shape, rope):
            yield bug, f"{what} ({detail})", {f"self_attn.{part}_rope": params for part in roles}
    if layer.shape.growth:
        yield "rope-theta", "q does not grow with the position", {"self_attn.q_rope": {"growth": 0.0}}
        yield "rope-theta", "k grows with the position, too", {"self_attn.k_rope": {"growth": layer.shape.growth}}


def biases(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    """The bias of q and k added behind RoPE, in traces with what goes into RoPE, and with the right projections."""
    if layer.shape.rope is None:
        return
    there = [part for part in "qk" if f"self_attn.{part}_proj" in layer]  # a layer may read another's k
    names = {part: layer.node(f"self_attn.{part}_proj").params.get("bias") for part in there}
    for parts in ("qk", "q", "k") if len(there) == 2 else ("q",):
        if all(names[part] and layer.node(f"self_attn.{part}_rope").inputs[0].endswith("_proj") for part in parts):
            what = " and ".join(parts)
            moved: dict[str, Params] = {
                f"self_attn.{part}_rope": {"late_bias": (names[part], "moved")} for part in parts
            }
            yield "rope-before-bias", what, moved
            added: dict[str, Params] = {f"self_attn.{part}_proj": {"bias_factor": 0} for part in parts}
            added |= {f"self_attn.{part}_rope": {"late_bias": (names[part], "added")} for part in parts}
            yield "rope-before-bias", f"{what}; the projection is without it", added


def _rope_params(scope: Scope, shape: LayerShape, rope: RopeConfig) -> Iterator[tuple[str, str, Params]]:
    d = shape.head_dim
    yield "rope-pairing", "neighbours are turned", {"pairing": "interleaved"}
    yield "rope-missing-k", "not turned", {"skip": True}
    yield "rope-twice", "turned twice", {"times": 2}
    yield "rope-sign", "turned backwards", {"direction": -1}
    for by in (-2, -1, 1, 2):
        yield "rope-position", f"positions shifted by {by:+d}", {"positions": by}
    kinds = (_OF_STEPS if scope.tokens.num_steps > 1 else {}) | ({} if scope.tokens.is_single else _FLAT)
    kinds |= {} if scope.tokens.stated is None else _STATED
    for kind, detail in kinds.items():
        yield "rope-position", detail, {"positions": kind}
    for detail, config in rope_mistakes(rope):
        yield "rope-theta", detail, {"rope": config}
    for rope_of_others in scope.config.other_ropes:
        yield "rope-theta", "the factors of contexts of another length", {"rope": rope_of_others}
    elsewhere = {shape.rope for shape in scope.config.shapes if shape.rope not in (None, rope)}
    for rope_of_layers in sorted(elsewhere, key=repr):
        yield "rope-theta", "the frequencies of layers of the other kind", {"rope": rope_of_layers}
    if isinstance(rope, ProportionalRope):
        size, plain = 2 * rope.turned_pairs(d), RopeConfig(theta=rope.theta)
        taken = {"": plain}
        if rope.factor != 1:
            linear = RopeConfig(theta=rope.theta, rope_type="linear", factor=rope.factor)
            taken = {"": linear, ", without its factor": plain}
        for more, partial in taken.items() if 0 < size < d else ():
            detail = f"the first {size} of {d} dimensions, as where RoPE is partial{more}"
            yield "rope-partial", detail, {"rope": partial, "rotary_dim": size}
            yield "rope-partial", f"{detail}; frequencies of {d}", {"rope": partial, "rotary_dim": size, "table_dim": d}
    for part in (2, 4):
        if d % (2 * part) == 0:
            yield "rope-partial", f"only {d // part} of {d} dimensions", {"rotary_dim": d // part}
            params: Params = {"rotary_dim": d // part, "table_dim": d}
            yield "rope-partial", f"only {d // part} of {d} dimensions, frequencies of {d}", params
    other = scope.config.hidden_size // shape.num_heads
    for size in sorted({other, 2 * d, d // 2} - {d}):
        if size % 2 == 0 and size > 1:
            params = {"rotary_dim": min(size, d), "table_dim": size}
            yield "rope-partial", f"frequencies of head_dim {size}", params


def rope_mistakes(rope: RopeConfig) -> Iterator[tuple[str, RopeConfig]]:
    """Configurations that an engine takes for this one."""
    for theta in _THETAS:
        if theta != rope.theta:
            yield f"theta {theta:g} instead of {rope.theta:g}", replace(rope, theta=theta)
    if rope.rope_type != "default":
        yield f"{rope.rope_type} scaling ignored", RopeConfig(theta=rope.theta)
        for factor in _FACTORS if rope.rope_type not in ("factors", "longrope", "proportional") else ():
            if factor != rope.factor:
                other = replace(rope, factor=factor)
                yield f"factor {factor:g} instead of {rope.factor:g}", other
                if rope.rope_type == "yarn" and (attention := yarn_attention_factor(factor, None, None)):
                    detail = f"factor {factor:g} instead of {rope.factor:g}, and its own attention_factor"
                    yield detail, replace(other, attention_factor=attention)
        if rope.rope_type not in ("linear", "proportional"):
            linear = RopeConfig(theta=rope.theta, rope_type="linear", factor=rope.factor)
            yield f"linear scaling instead of {rope.rope_type}", linear
    if rope.attention_factor != 1:
        yield "attention_factor ignored", replace(rope, attention_factor=1.0)
        yield "attention_factor without scaling", RopeConfig(theta=rope.theta, attention_factor=rope.attention_factor)
    if rope.rope_type == "yarn":
        yield "truncate the other way", replace(rope, truncate=not rope.truncate)
    elif rope.rope_type == "default":
        for factor in (2.0, 4.0, 8.0):
            yield f"linear scaling by {factor:g} added", replace(rope, rope_type="linear", factor=factor)


OF_ATTENTION: Sequence[OfLayer] = (ropes, biases)
