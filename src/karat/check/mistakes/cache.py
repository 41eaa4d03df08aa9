"""Ways to get the KV cache wrong: what is in its slots, and which of them are seen."""

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
from karat.check.model.right.attention import Mix, Scores, Softmax, mix, scores, softmax
from karat.check.model.right.rope import turned
from karat.check.model.tokens import CACHE_FAULTS, NOBODY, CacheFault, Misplaced, Tokens
from karat.config import FloatName, RopeConfig

BUGS: Mapping[str, Bug] = {
    "mask-empty": Bug(
        "slots of the cache that nobody has written are seen",
        "mask every slot from the length of the sequence on, in the last block too",
    ),
    "kv-stale": Bug(
        "the KV cache is read or written wrongly", "write K and V of each token to its own slot before attention"
    ),
    "kv-dtype": Bug(
        "the KV cache has another type than the trace states",
        "store K and V in the type that is meant, or state kv_dtype as it is",
    ),
}

_FLAG = (True,)
_FAULTS = (*CACHE_FAULTS, Misplaced, tuple)
TYPES: tuple[FloatName, ...] = ("float16", "bfloat16", "float32")
_BLOCKS = (4, 8, 16, 32, 64, 128, 256)  # slots a block


@mistake("scores", of=scores, name="cache", choices=_FAULTS)
def _other_k(scores: Op[Scores], a: Scores, fault: CacheFault) -> Array:
    return scores(replace(a, sources=a.context.tokens.sources(fault)))


@mistake("mix", of=mix, name="cache", choices=_FAULTS)
def _other_v(mix: Op[Mix], a: Mix, fault: CacheFault) -> Array:
    return mix(replace(a, sources=a.context.tokens.sources(fault)))


@mistake("scores", of=scores, name="earlier", choices=_FLAG)
def _earlier_k(scores: Op[Scores], a: Scores, _: bool) -> Array:
    """The keys of earlier steps are those of the last input."""
    return np.where(_is_earlier(a.context.tokens), scores(replace(a, k=a.others[-1])), scores(a))


@mistake("mix", of=mix, name="earlier", choices=_FLAG)
def _earlier_v(mix: Op[Mix], a: Mix, _: bool) -> Array:
    """The values of earlier steps are those of the last input."""
    earlier = _is_earlier(a.context.tokens)
    before = mix(replace(a, weights=np.where(earlier, a.weights, 0), v=a.others[-1]))
    return before + mix(replace(a, weights=np.where(earlier, 0, a.weights)))


def _is_earlier(tokens: Tokens) -> NDArray[np.bool_]:
    """[tokens, context]: whether a key is of a step before the token's."""
    return np.arange(tokens.context) < tokens.step_start[:, None]


@mistake("scores", of=scores)
def turned_again(scores: Op[Scores], a: Scores, rope: RopeConfig, *, of_earlier: bool = False) -> Array:
    """Keys, or those of earlier steps, are turned once more when they are stored."""
    again = scores(replace(a, k=turned(a.k, rope, a.context)))
    return np.where(_is_earlier(a.context.tokens), again, scores(a)) if of_earlier else again


def other_cache_text(dtype: str, stated: str) -> str:
    return f"{dtype}, and the trace states {stated}"


@mistake("scores", of=scores, name="stored_as", choices=TYPES)
def _k_stored_as(scores: Op[Scores], a: Scores, dtype: FloatName) -> Array:
    return scores(replace(a, context=a.context.storing(dtype)))


@mistake("mix", of=mix, name="stored_as", choices=TYPES)
def _v_stored_as(mix: Op[Mix], a: Mix, dtype: FloatName) -> Array:
    return mix(replace(a, context=a.context.storing(dtype)))


@mistake("scores", of=scores, name="blocks", choices=(int,))
def _empty_k(scores: Op[Scores], a: Scores, size: int) -> Array:
    """The slots of the last block that nobody wrote are seen: their keys are zeros."""
    tokens = a.context.tokens
    return np.where(_is_empty(tokens) & (np.arange(tokens.context) < _end_of_block(tokens, size)), 0, scores(a))


@mistake("softmax", of=softmax, name="blocks", choices=(int,))
def _empty_weights(softmax: Op[Softmax], a: Softmax, size: int) -> Array:
    """Slots behind the last key of all are counted too; a trace has no weights of them."""
    behind = np.maximum(_end_of_block(a.tokens, size) - a.tokens.context, 0)
    largest = a.scores.max(axis=-1, keepdims=True)
    largest = np.where(behind > 0, np.maximum(largest, 0), np.where(np.isneginf(largest), 0, largest))
    powers = np.exp(a.scores - largest)
    return powers / (powers.sum(axis=-1, keepdims=True) + behind * np.exp(-largest))


@mistake("mix", of=mix, name="blocks", choices=(int,))
def _empty_v(mix: Op[Mix], a: Mix, size: int) -> Array:
    tokens = a.context.tokens
    return mix(replace(a, sources=np.where(_is_empty(tokens), NOBODY, tokens.sources())))


def _is_empty(tokens: Tokens) -> NDArray[np.bool_]:
    """[tokens, context]: slots that nobody has written when a token is computed."""
    return ~tokens.in_step


def _end_of_block(tokens: Tokens, size: int) -> NDArray[np.int64]:
    """[tokens, 1]: the slot behind the last block, when a token is computed."""
    return -(-tokens.step_end[:, None] // size) * size


def caches(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    s, a = "self_attn.scores", "self_attn.attention"
    for fault, detail in _faults(scope.tokens).items():
        found: Params = {"cache": fault}
        yield "kv-stale", detail, {s: found, a: found}
        yield "kv-stale", _of_one("K", detail), {s: found}
        yield "kv-stale", _of_one("V", detail), {a: found}
    if scope.tokens.num_steps > 1:
        yield (
            "kv-stale",
            "a step does not see its own keys",
            {s: {"late_cache_hidden": True}, "self_attn.weights": {"empty": "zero"}},
        )
    yield from _of_others(scope, layer)
    for size in _BLOCKS:
        if (scope.tokens.step_end % size).any():
            blocks: Params = {"blocks": size}
            detail = f"the whole last block of {size} slots is seen"
            yield "mask-empty", detail, {s: blocks, "self_attn.weights": blocks, a: blocks}


def _of_one(what: str, detail: str) -> str:
    both = "K and V"
    return detail.replace(both, what) if detail.startswith(both) else f"{what}: {detail}"


def _faults(tokens: Tokens) -> Mapping[str, str]:
    """The faults that differ from each other over these tokens."""
    if tokens.num_steps == 1:
        return {fault: detail for fault, detail in CACHE_FAULTS.items() if fault.startswith("slot")}
    by_step = np.array_equal(tokens.is_prefill, tokens.steps == 0)  # each prompt in one step, the first
    same = {"decode-lost", "decode-frozen"} if by_step else set()
    same |= {fault for fault in CACHE_FAULTS if fault.startswith("decode-") and tokens.is_prefill.all()}
    return {fault: detail for fault, detail in CACHE_FAULTS.items() if fault not in same}


def _of_others(scope: Scope, layer: Layer) -> Iterator[tuple[str, str, dict[str, Params]]]:
    """Slots that hold other results than k as it was turned, and v; all of them, or those of earlier steps only.

    An engine may attend to what it has just computed, and take only what is older from its cache.
    """
    s, a = "self_attn.scores", "self_attn.attention"
    (q, k), (weights, v) = layer.node(s).inputs, layer.node(a).inputs
    found: list[tuple[str, str, str | None]] = []
    if (rope := layer.graph.nodes[k]).kind == "rope":
        found.append(("K is stored as it was before RoPE", rope.inputs[0], None))
        again: Params = {"turned_again": rope.params["rope"]}
        yield "rope-twice", "K is turned once more when it is stored", {s: again}
        if scope.tokens.num_steps > 1:
            yield "rope-twice", "K of earlier steps is turned once more", {s: {**again, "of_earlier": True}}
    found.append(("K and V are exchanged", v, k))
    last = scope.config.num_layers - 1
    for other in sorted({layer.index - 1, layer.index + 1, 0, last} & {*range(last + 1)} - {layer.index}):
        theirs = Layer(layer.graph, other)
        if theirs.has_attention and scope.config.shape(other) == layer.shape:
            their_k, their_v = (theirs.node(role).inputs[1] for role in (s, a))
            found.append((f"K and V are those of layer {other}", their_k, their_v))
    for detail, other_k, other_v in found:
        read: dict[str, Params] = {s: {"inputs": (q, other_k)}}
        kept: dict[str, Params] = {s: {"inputs": (q, k, other_k), "earlier": True}}
        if other_v is not None:
            read[a] = {"inputs": (weights, other_v)}
            kept[a] = {"inputs": (weights, v, other_v), "earlier": True}
        yield "kv-stale", f"the cache: {detail}", read
        if scope.tokens.num_steps > 1:
            yield "kv-stale", f"the cache, in earlier steps: {detail}", kept


OF_ATTENTION: Sequence[OfLayer] = (caches,)
