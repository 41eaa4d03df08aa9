"""Ways to get attention wrong: masks, scales, softmax, heads."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import CAPS, Layer, OfLayer, Params, Scope
from karat.check.model.context import Array
from karat.check.model.graph import Node
from karat.check.model.kinds import Op
from karat.check.model.right.attention import (
    Joined,
    Mix,
    Scores,
    Softmax,
    Visible,
    joined,
    kv_head_of,
    mix,
    powers_of,
    scores,
    softmax,
    visible,
)
from karat.check.model.right.rope import turned
from karat.config import RopeConfig

BUGS: Mapping[str, Bug] = {
    "mask-nan": Bug(
        "the mask turns visible scores into NaN (0 × -inf)",
        "build the mask as booleans and fill with it (masked_fill, where); never multiply by -inf",
    ),
    "mask-off-by-one": Bug("the causal mask is off by one", "a token at position p sees keys 0 … p, itself included"),
    "mask-missing": Bug("there is no causal mask", "a token must not see keys after its own position"),
    "mask-misaligned": Bug(
        "the causal mask counts from the start of the chunk, not of the sequence",
        "compare absolute positions: with keys in the cache, row i of a chunk sees start + i + 1 keys",
    ),
    "mask-window": Bug(
        "the sliding window is ignored, off by one, or on the wrong layers",
        "a token sees itself and the window - 1 keys before it, on the layers that config.json names",
    ),
    "scale-missing": Bug("the softmax scale is missing", "multiply scores by head_dim ** -0.5"),
    "scale-twice": Bug(
        "the softmax scale is applied twice", "multiply scores by head_dim ** -0.5 once, or q, not both"
    ),
    "scale-wrong": Bug(
        "the softmax scale is another number", "multiply scores by head_dim ** -0.5 of the config's head_dim"
    ),
    "softmax-axis": Bug("softmax runs over the wrong axis", "normalise over keys, the last axis of the scores"),
    "sinks": Bug(
        "attention sinks are left out or are other numbers",
        "the softmax has one more score for each head, its sink, which is not scaled and whose weight is dropped",
    ),
    "gqa-tile": Bug(
        "query heads read other KV heads than their own (tiled, where they should be interleaved)",
        "query head h reads KV head h // (heads / kv_heads): repeat_interleave, not repeat",
    ),
    "heads-order": Bug(
        "the heads are joined in the wrong order",
        "bring the output to [tokens, heads, head_dim] before flattening it; rows of q, k and v are [heads, head_dim]",
    ),
    "rope-on-v": Bug("RoPE is applied to v", "turn q and k only"),
}

_FLAG = (True,)


@mistake("scores", of=visible, choices=_FLAG)
def late_cache_hidden(visible: Op[Visible], a: Visible, _: bool) -> NDArray[np.bool_]:
    """A step after the first does not see its own keys."""
    tokens = a.tokens
    is_own = (np.arange(tokens.context) >= tokens.step_start[:, None]) & (tokens.steps[:, None] > 0)
    return visible(a) & ~is_own


@mistake("scores", of=visible, choices=("top-left",))
def align(visible: Op[Visible], a: Visible, _: str) -> NDArray[np.bool_]:
    """Rows of the mask count from the start of the step."""
    return visible(replace(a, query=a.tokens.index_in_step, last=a.tokens.index_in_step))


@mistake("scores", of=visible)
def diagonal(visible: Op[Visible], a: Visible, by: int) -> NDArray[np.bool_]:
    """A token sees more keys, by the value of the parameter."""
    return visible(replace(a, last=a.last + by))


@mistake("scores", of=visible, choices=(False,))
def causal(visible: Op[Visible], a: Visible, _: bool) -> NDArray[np.bool_]:
    """A token sees the keys after it too."""
    return visible(replace(a, last=np.full_like(a.last, a.tokens.context)))


@mistake("scores", of=visible, choices=_FLAG)
def alone(visible: Op[Visible], a: Visible, _: bool) -> NDArray[np.bool_]:
    """A token that would see nothing sees itself."""
    seen = visible(a)
    is_itself = np.arange(a.tokens.context) == a.query[:, None]
    return seen | (is_itself & ~seen.any(axis=1, keepdims=True))


@mistake("scores", of=scores, choices=("nan",))
def mask(scores: Op[Scores], a: Scores, _: str) -> Array:
    """0 × -inf is added to the scores of all keys of the step, visible or not."""
    return np.where(a.seen, np.where(a.context.tokens.in_step, np.nan, _unmasked(scores, a)), -np.inf)


@mistake("scores", of=scores)
def score_cap(scores: Op[Scores], a: Scores, cap: float) -> Array:
    return np.where(a.seen, np.tanh(_unmasked(scores, a) / cap) * a.q.dtype.type(cap), -np.inf)


def _unmasked(scores: Op[Scores], a: Scores) -> Array:
    return scores(replace(a, seen=np.ones_like(a.seen)))


@mistake("softmax", of=softmax, choices=(0, -2))
def axis(softmax: Op[Softmax], a: Softmax, axis: int, *, window_cache: bool = False, empty: str = "nan") -> Array:
    """Over heads (0) or queries (-2), within each step and sequence; keys that a step does not have stay 0.

    window_cache: a cache of sliding windows has dropped the keys that no query of the step sees.
    """
    out = np.zeros_like(a.scores)
    for rows in a.tokens.chunks:
        end = int(a.tokens.positions[rows[-1]]) + 1
        part = a.scores[:, rows, :end]
        powers = powers_of(part, axis)
        total = powers.sum(axis=axis, keepdims=True)
        weights = powers / (total if empty == "nan" else np.where(total == 0, 1, total))
        dropped = np.isneginf(part).all(axis=(0, 1)) & window_cache
        out[:, rows, :end] = np.where(dropped, 0, weights)
    return out


@mistake("softmax", of=softmax, choices=("nan", "zero", "uniform"))
def empty(softmax: Op[Softmax], a: Softmax, becomes: str) -> Array:
    """What a row becomes that sees nothing. "uniform": the mask is a large negative number instead of infinity."""
    sees_nothing = np.isneginf(a.scores).all(axis=-1, keepdims=True)
    match becomes:
        case "zero":
            return np.where(sees_nothing, 0, softmax(a))
        case "uniform":
            return np.where(sees_nothing, a.tokens.in_step / a.tokens.step_end[:, None], softmax(a))
        case _:
            return softmax(a)


@mistake("softmax", of=softmax)
def sink_factor(softmax: Op[Softmax], a: Softmax, factor: float) -> Array:
    return softmax(a if a.sinks is None else replace(a, sinks=a.sinks * a.scores.dtype.type(factor)))


@mistake("mix", of=mix)
def rope_v(mix: Op[Mix], a: Mix, rope: RopeConfig) -> Array:
    return mix(replace(a, v=turned(a.v, rope, a.context)))


@mistake("scores", of=scores, name="gqa", choices=("tile", tuple))
def _tiled_k(scores: Op[Scores], a: Scores, how: str | tuple[int, ...]) -> Array:
    return scores(replace(a, kv_head=_read_by(how, a.q.shape[1], a.k.shape[1])))


@mistake("mix", of=mix, name="gqa", choices=("tile", tuple))
def _tiled_v(mix: Op[Mix], a: Mix, how: str | tuple[int, ...]) -> Array:
    return mix(replace(a, kv_head=_read_by(how, len(a.weights), a.v.shape[1])))


def kv_heads_read(node: Node, num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    """[heads]: the KV head that each query head of this node reads."""
    how = node.mistakes.get("gqa")
    return kv_head_of(num_heads, num_kv_heads) if how is None else _read_by(how, num_heads, num_kv_heads)


def _read_by(how: str | tuple[int, ...], num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    """[heads]: tiled KV heads, or the KV head of each query head."""
    return _tiled(num_heads, num_kv_heads) if how == "tile" else np.array(how, np.int64)


def _tiled(num_heads: int, num_kv_heads: int) -> NDArray[np.int64]:
    return np.arange(num_heads) % num_kv_heads


@mistake("mix", of=joined, choices=("dim-major", "untransposed"))
def head_order(joined: Op[Joined], a: Joined, order: str, *, ranks: int = 1) -> Array:
    """[tokens, head_dim, heads], or [heads, tokens, head_dim] of a step flattened as it is ("untransposed").

    ranks: so many ranks join their own heads in this way.
    """
    if ranks > 1:
        own = np.split(a.heads, ranks)
        return np.concatenate([head_order(joined, replace(a, heads=heads), order) for heads in own], axis=1)
    num_heads, num_tokens, head_dim = a.heads.shape
    if order == "dim-major":
        return a.heads.transpose(1, 2, 0).reshape(num_tokens, -1)
    out = np.empty((num_tokens, num_heads * head_dim), a.heads.dtype)
    for rows in a.tokens.chunks:
        out[rows] = a.heads[:, rows].reshape(len(rows), -1)
    return out


def masks(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s, w = "self_attn.scores", "self_attn.weights"
    yield "mask-nan", "0 × -inf", {s: {"mask": "nan"}}
    for empty in ("nan", "zero", "uniform"):
        yield (
            "mask-off-by-one",
            f"a token does not see itself (a row of nothing becomes {empty})",
            {s: {"diagonal": -1}, w: {"empty": empty}},
        )
    yield (
        "mask-off-by-one",
        "a token does not see itself, unless it would see nothing",
        {s: {"diagonal": -1, "alone": True}},
    )
    yield "mask-off-by-one", "a token sees the one after it", {s: {"diagonal": 1}}
    yield "mask-missing", "every key of the step is visible", {s: {"causal": False}}
    if scope.tokens.num_steps > 1:
        yield "mask-misaligned", "rows count from the start of the step", {s: {"align": "top-left"}}
    window = layer.node(s).params["window"]
    others = {shape.window for shape in scope.config.shapes if shape.window is not None}
    if window is not None:
        yield "mask-window", "the window is ignored", {s: {"window": None}}
        others |= {window - 1, window + 1}
    for other in sorted(others - {window, 0}):
        yield "mask-window", f"a window of {other}", {s: {"window": other}}


def scales(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s = "self_attn.scores"
    d, num_heads, config = layer.shape.head_dim, layer.shape.num_heads, scope.config
    yield "scale-missing", "scores are multiplied by 1", {s: {"scale": 1.0}}
    yield "scale-twice", "scores are multiplied by 1 / head_dim", {s: {"scale": 1.0 / d}}
    yield "scale-wrong", "multiplied by sqrt(head_dim)", {s: {"scale": d**0.5}}
    if layer.node(s).params["scale"] != d**-0.5:
        yield "scale-wrong", "head_dim ** -0.5", {s: {"scale": d**-0.5}}
    yield "scale-wrong", "hidden_size ** -0.5", {s: {"scale": config.hidden_size**-0.5}}
    if config.hidden_size // num_heads != d:
        yield (
            "scale-wrong",
            "(hidden_size / heads) ** -0.5",
            {s: {"scale": (config.hidden_size / num_heads) ** -0.5}},
        )
    own = layer.node(s).params["cap"]
    if own is not None:
        yield "softcap", "scores are not capped", {s: {"cap": None}}
    for cap in CAPS:
        if cap != own:
            yield "softcap", f"scores capped at {cap:g}", {s: {"score_cap": cap} if own is None else {"cap": cap}}
    for axis, name in ((-2, "queries"), (0, "heads")):
        yield "softmax-axis", f"over {name}", {"self_attn.weights": {"axis": axis}}
        if any(shape.window is not None for shape in config.shapes):
            yield (
                "softmax-axis",
                f"over {name}, of the keys in a cache of the window",
                {"self_attn.weights": {"axis": axis, "window_cache": True}},
            )


def sinks(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    w, scale = "self_attn.weights", layer.node("self_attn.scores").params["scale"]
    if layer.node(w).params["sinks"] is not None:
        yield "sinks", "left out", {w: {"sinks": None}}
        yield "sinks", "multiplied by the scale of scores", {w: {"sink_factor": scale}}
        yield "sinks", "with the other sign", {w: {"sink_factor": -1.0}}


def heads(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s, a = "self_attn.scores", "self_attn.attention"
    if 1 < layer.shape.num_kv_heads < layer.shape.num_heads:
        tile: Params = {"gqa": "tile"}
        yield "gqa-tile", "K and V", {s: tile, a: tile}
        yield "gqa-tile", "K", {s: tile}
        yield "gqa-tile", "V", {a: tile}
        first = ("KV head 0 for all", (0,) * layer.shape.num_heads)
        for what, kv_heads in (first, *_kv_heads_by_rank(scope, layer)):
            params: Params = {"gqa": kv_heads}
            yield "gqa-tile", what, {s: params, a: params}
    for n in (1, *(n for n in scope.degrees if layer.shape.num_heads % n == 0 and n < layer.shape.num_heads)):
        within, params = (f", by each of {n} ranks", {"ranks": n}) if n > 1 else ("", {})
        yield "heads-order", f"[tokens, head_dim, heads]{within}", {a: {"head_order": "dim-major", **params}}
        flat = f"[heads, tokens, head_dim] flattened as it is{within}"
        yield "heads-order", flat, {a: {"head_order": "untransposed", **params}}
    if layer.shape.rope is not None:
        yield "rope-on-v", "v is turned too", {a: {"rope_v": layer.shape.rope}}


def _kv_heads_by_rank(scope: Scope, layer: Layer) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The KV heads that query heads read where ranks tile their own, or where rank r has KV head r, counted round."""
    num_heads, num_kv = layer.shape.num_heads, layer.shape.num_kv_heads
    heads = np.arange(num_heads)
    seen = [kv_head_of(num_heads, num_kv).tolist(), _tiled(num_heads, num_kv).tolist()]
    for n in (n for n in scope.degrees if num_heads % n == 0):
        each = num_heads // n
        if n >= num_kv:
            what, found = f"rank r of {n} reads KV head r modulo {num_kv}", heads // each % num_kv
        elif num_kv % n == 0:
            what, found = f"tiled by each of {n} ranks", heads // each * (num_kv // n) + heads % each % (num_kv // n)
        else:
            continue
        if found.tolist() not in seen:
            seen.append(found.tolist())
            yield what, tuple(found.tolist())


OF_ATTENTION: Sequence[OfLayer] = (masks, scales, heads, sinks)
