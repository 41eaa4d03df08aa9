"""Ways to get a recurrent layer wrong: its convolution, its decay, the delta rule, and what a state goes on from."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import Layer, OfLayer, Params, Scope
from karat.check.model.context import Array
from karat.check.model.kinds import Op
from karat.check.model.right.elementwise import Factors, GateAndUp, activated, mul, sigmoid
from karat.check.model.right.norm import EuclidNorm, l2_norm, mean_square, spanned
from karat.check.model.right.recurrence import (
    Convolved,
    Decayed,
    OneToken,
    Recurrence,
    conv,
    decay,
    delta_rule,
    softplus,
    sum_of_taps,
    updated,
)
from karat.check.model.right.rows import PartOf, part
from karat.check.model.tokens import NOBODY, Tokens

BUGS: Mapping[str, Bug] = {
    "key-heads": Bug(
        "value heads read the wrong key heads",
        "value head h reads key head h // (value heads / key heads); in GGUF files, h % key heads",
    ),
    "conv-taps": Bug(
        "the taps of the convolution are in another order or place",
        "the last tap is the token's own, the one before it that of the token before; nothing comes before a text",
    ),
    "conv-activation": Bug(
        "the convolution's activation is left out, or one is added",
        "q, k and v of a delta net are silu of the convolution; a short convolution has none",
    ),
    "conv-gates": Bug(
        "the gates of a short convolution are exchanged or left out",
        "the thirds of in_proj's rows are b, c and x, and the result is c * conv(b * x)",
    ),
    "decay": Bug(
        "the decay is computed wrongly", "exp(-exp(A_log) * softplus(a + dt_bias)); GGUF files store -exp(A_log)"
    ),
    "decay-order": Bug(
        "a state decays at another time than before its update",
        "decay first; then take off what the decayed state gives for k, add the change, and read it with q",
    ),
    "beta": Bug(
        "beta is left out, or multiplies something else", "the change is (v - what the state gives) * sigmoid(b)"
    ),
    "delta-rule": Bug("what a state gives for k is not taken off v", "the change is (v - kᵀ S) * beta"),
    "l2-norm": Bug(
        "q and k are normalised otherwise", "x / sqrt(sum(x²) + 1e-6) by head, then q times key_dim ** -0.5"
    ),
    "state-lost": Bug(
        "a step goes on from another state than the one before it left",
        "write both states, of the convolution and of the rule, after each step, and read them at the next",
    ),
    "state-kept": Bug(
        "a text begins with a state that another one left",
        "clear both states, of the convolution and of the rule, before the first token of a text",
    ),
    "gate-order": Bug(
        "the gate of a delta net multiplies before the norm", "the norm first, by head, and its result times silu(z)"
    ),
    "gate-halves": Bug(
        "q and its gate are cut wrongly out of q_proj", "by head: the rows of q, then those of the gate"
    ),
}

_FLAG = (True,)
_CHUNK = 64  # tokens that implementations of the rule compute at once
Before = NDArray[np.int64]


def _of_steps(tokens: Tokens) -> Before:
    return np.where(tokens.positions == tokens.step_start, NOBODY, tokens.before)


def _of_chunks(tokens: Tokens) -> Before:
    return np.where(tokens.index_in_step % _CHUNK == 0, NOBODY, tokens.before)


def _of_prompts(tokens: Tokens) -> Before:
    """What is computed token by token goes on from the last token of the prompt."""
    found = tokens.before.copy()
    for sequence in np.unique(tokens.sequences):
        rows = np.flatnonzero(tokens.sequences == sequence)
        found[rows[~tokens.is_prefill[rows]]] = rows[tokens.is_prefill[rows]].max()
    return found


def _of_rows(tokens: Tokens) -> Before:
    """The first token of a text goes on from the one that was computed before it, of another text."""
    return np.where(tokens.before == NOBODY, np.arange(tokens.num_tokens) - 1, tokens.before)


# What a token goes on from.
STATES: Mapping[str, Callable[[Tokens], Before]] = {
    "each step begins with zeros": _of_steps,
    f"each {_CHUNK} tokens of a step begin with zeros": _of_chunks,
    "what decode steps leave is lost": _of_prompts,
}
KEPT: Mapping[str, Callable[[Tokens], Before]] = {"that of the token computed before it": _of_rows}
_BEFORE = {**STATES, **KEPT}
# The token that each tap reads, in tokens before its own.
TAPS: Mapping[str, Callable[[int], list[int]]] = {
    "in reverse": lambda taps: list(range(taps)),
    "a token too early": lambda taps: list(range(taps, 0, -1)),
    "in reverse, of the tokens that follow": lambda taps: [-tap for tap in reversed(range(taps))],
    "of the tokens that follow": lambda taps: [-tap for tap in range(taps)],
}
DECAYS: Mapping[str, Callable[[Decayed], Array]] = {
    "rates with the wrong sign": lambda a: decay(replace(a, rate=-a.rate)),
    "rates of 1": lambda a: decay(replace(a, rate=-np.ones_like(a.rate))),
    "dt_bias is left out": lambda a: decay(replace(a, bias=np.zeros_like(a.bias))),
    "softplus is left out": lambda a: np.exp(a.rate * (a.a + a.bias)),
    "the logarithm of the decay": lambda a: a.rate * softplus(a.a + a.bias),
    "of the next head's rate": lambda a: decay(replace(a, rate=np.roll(a.rate, -1))),
}
UPDATES: Mapping[str, tuple[str, Callable[[OneToken], Array]]] = {
    "decay after the update": ("decay-order", lambda a: _changed(a, a.state, a.state) * a.decay[:, None, None]),
    "the change of the state before its decay": ("decay-order", lambda a: _changed(a, _decayed(a), a.state)),
    "of v alone": ("beta", lambda a: _decayed(a) + _outer(a.k, a.v * a.beta[:, None] - _given(a.k, _decayed(a)))),
    "not taken off": ("delta-rule", lambda a: _decayed(a) + _outer(a.k, a.v * a.beta[:, None])),
    "added instead": (
        "delta-rule",
        lambda a: _decayed(a) + _outer(a.k, (a.v + _given(a.k, _decayed(a))) * a.beta[:, None]),
    ),
}
BETAS: Mapping[str, Callable[[Array], Array]] = {
    "b as it is": lambda b: b,
    "twice the sigmoid": lambda b: 2 * sigmoid(b),
    "tanh": np.tanh,
}


def _decayed(a: OneToken) -> Array:
    return a.state * a.decay[:, None, None]


def _given(k: Array, state: Array) -> Array:
    return np.einsum("hi,hij->hj", k, state)


def _outer(k: Array, change: Array) -> Array:
    return k[:, :, None] * change[:, None]


def _changed(a: OneToken, state: Array, read: Array) -> Array:
    """`state` with the change that `read` asks for."""
    return state + _outer(a.k, (a.v - _given(a.k, read)) * a.beta[:, None])


@mistake("conv", of=conv, name="state", choices=_BEFORE)
def _conv_goes_on(conv: Op[Convolved], a: Convolved, name: str) -> Array:
    return conv(replace(a, before=_BEFORE[name](a.tokens)))


@mistake("conv", of=conv, choices=TAPS)
def taps(conv: Op[Convolved], a: Convolved, name: str) -> Array:
    return sum_of_taps(a, TAPS[name](a.weight.shape[1]))


@mistake("decay", of=decay, choices=DECAYS)
def decay_of(decay: Op[Decayed], a: Decayed, name: str) -> Array:
    return DECAYS[name](a)


@mistake("delta_rule", of=delta_rule, name="state", choices=_BEFORE)
def _rule_goes_on(delta_rule: Op[Recurrence], a: Recurrence, name: str) -> Array:
    return delta_rule(replace(a, before=_BEFORE[name](a.tokens)))


@mistake("delta_rule", of=delta_rule, choices=("left out", "of the token before"))
def decays(delta_rule: Op[Recurrence], a: Recurrence, name: str) -> Array:
    """Other decays; those of the token before are what a decay after reading is."""
    earlier = np.where((a.before == NOBODY)[:, None], 1, a.decay[a.before])
    return delta_rule(replace(a, decay=np.ones_like(a.decay) if name == "left out" else earlier))


@mistake("delta_rule", of=delta_rule, choices=_FLAG)
def no_beta(delta_rule: Op[Recurrence], a: Recurrence, _: bool) -> Array:
    return delta_rule(replace(a, beta=np.ones_like(a.beta)))


@mistake("delta_rule", of=updated, choices=UPDATES)
def update(updated: Op[OneToken], a: OneToken, name: str) -> Array:
    return UPDATES[name][1](a)


@mistake("sigmoid", of=sigmoid, choices=BETAS)
def sigmoid_as(sigmoid: Op[Array], b: Array, name: str) -> Array:
    return BETAS[name](b)


@mistake("l2_norm", of=l2_norm, choices=_FLAG)
def no_length(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    return a.x * a.factor


@mistake("l2_norm", of=l2_norm, choices=_FLAG)
def scaled_first(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    return l2_norm(replace(a, x=a.x * a.factor, factor=a.x.dtype.type(1)))


@mistake("l2_norm", of=l2_norm, choices=_FLAG)
def of_mean(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    """The root mean square in place of the length."""
    return a.x / np.sqrt(np.mean(a.x * a.x, axis=-1, keepdims=True) + a.eps) * a.factor


@mistake("l2_norm", of=l2_norm, choices=_FLAG)
def length_eps_outside(l2_norm: Op[EuclidNorm], a: EuclidNorm, _: bool) -> Array:
    return a.x / (np.sqrt(np.sum(a.x * a.x, axis=-1, keepdims=True)) + a.eps) * a.factor


@mistake("part", of=part)
def of_place(part: Op[PartOf], a: PartOf, number: int) -> Array:
    """The columns of another part of as many."""
    shapes = [a.shapes[a.number] if n == number else shape for n, shape in enumerate(a.shapes)]
    return part(replace(a, shapes=tuple(shapes), number=number))


@mistake("mul", of=mul, choices=_FLAG)
def left_out(mul: Op[Factors], a: Factors, _: bool) -> Array:
    """The first factor."""
    return a.y


@mistake("silu_mul", of=activated)
def normed_after(activated: Op[GateAndUp], a: GateAndUp, norm: tuple[tuple[float, ...], float]) -> Array:
    """The product goes through a norm by head: its weight and eps."""
    y, weight = activated(a), np.array(norm[0], a.up.dtype)
    x = spanned(y, weight)
    return (x / np.sqrt(mean_square(x) + y.dtype.type(norm[1])) * weight).reshape(y.shape)


Variants = Iterator[tuple[str, str, dict[str, Params]]]


def convolutions(scope: Scope, layer: Layer) -> Variants:
    for role in layer.roles_of("conv"):
        for name in TAPS:
            yield "conv-taps", name, {role: {"taps": name}}
        if layer.node(role).params["silu"]:
            yield "conv-activation", "silu is left out", {role: {"silu": False}}
        else:
            yield "conv-activation", "silu is added", {role: {"silu": True}}
        if layer.node(role).params["bias"] is not None:
            yield "bias-missing", f"{role}: no bias", {role: {"bias": None}}
    yield from _gates(layer)


def _gates(layer: Layer) -> Variants:
    """Those of a short convolution, which are thirds of in_proj's rows, like x."""
    b, c, x = roles = ("conv.before", "conv.after", "conv.x")
    if any(role not in layer for role in roles):
        return
    yield "conv-gates", "exchanged", {b: {"of_place": 1}, c: {"of_place": 0}}
    yield "conv-gates", "x is cut first", {b: {"of_place": 1}, c: {"of_place": 2}, x: {"of_place": 0}}
    yield "conv-gates", "c and x are exchanged", {c: {"of_place": 2}, x: {"of_place": 1}}
    yield "conv-gates", "b is left out", {"conv.gated_x": {"left_out": True}}
    yield "conv-gates", "c is left out", {"conv.gated": {"left_out": True}}


def decays_of(scope: Scope, layer: Layer) -> Variants:
    for role in layer.roles_of("decay"):
        if layer.node(role).params["of_log"]:
            yield "decay", "A_log is taken for the rates", {role: {"of_log": False}}
        else:
            yield "decay", "the rates are taken for their logarithms", {role: {"of_log": True}}
        for name in DECAYS:
            yield "decay", name, {role: {"decay_of": name}}


def rules(scope: Scope, layer: Layer) -> Variants:
    for role in layer.roles_of("delta_rule"):
        node = layer.node(role)
        heads: tuple[int, ...] = node.params["key_heads"]
        for detail, other in _other_key_heads(heads):
            yield "key-heads", detail, {role: {"key_heads": other}}
        for name, (bug, _) in UPDATES.items():
            yield bug, name, {role: {"update": name}}
        yield "decay-order", "decay after it is read", {role: {"decays": "of the token before"}}
        yield "decay", "left out of the rule", {role: {"decays": "left out"}}
        yield "beta", "left out", {role: {"no_beta": True}}
        *_, beta = (layer.graph.nodes[name] for name in node.inputs)
        for name in BETAS if beta.kind == "sigmoid" else ():
            yield "beta", name, {beta.role: {"sigmoid_as": name}}
        yield from _lengths(layer, node.inputs[:2])


def _other_key_heads(heads: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    keys, count = max(heads) + 1, len(heads)
    ways = {
        "tiled: h % key heads": tuple(h % keys for h in range(count)),
        "grouped: h // (value heads / key heads)": tuple(h * keys // count for h in range(count)),
        "the next one": tuple((key + 1) % keys for key in heads),
        "key head 0 for all": (0,) * count,
    }
    seen = {heads}
    for detail, other in ways.items():
        if other not in seen:
            seen.add(other)
            yield detail, other


def _lengths(layer: Layer, names: Sequence[str]) -> Variants:
    q, k = (layer.graph.nodes[name] for name in names)
    if q.kind != "l2_norm" or k.kind != "l2_norm":
        return
    ways: list[tuple[str, Params]] = [
        ("without eps", {"eps": 0.0}),
        ("eps outside the root", {"length_eps_outside": True}),
        ("the mean square instead of the sum", {"of_mean": True}),
        ("left out", {"no_length": True}),
        *((f"eps {eps:g}", {"eps": eps}) for eps in (1e-12, 1e-8, 1e-5) if eps != q.params["eps"]),
    ]
    for detail, params in ways:
        yield "l2-norm", f"q and k: {detail}", {q.role: params, k.role: params}
        yield "l2-norm", f"q: {detail}", {q.role: params}
        yield "l2-norm", f"k: {detail}", {k.role: params}
    yield "l2-norm", "q is not scaled", {q.role: {"factor": 1.0}}
    yield "l2-norm", "q is scaled before, and so not at all", {q.role: {"scaled_first": True}}
    yield "l2-norm", "k is scaled, too", {k.role: {"factor": q.params["factor"]}}


def states(scope: Scope, layer: Layer) -> Variants:
    convs, own = layer.roles_of("conv"), layer.roles_of("delta_rule")
    right = scope.tokens.before
    for name, before in _BEFORE.items():
        if np.array_equal(before(scope.tokens), right):
            continue
        params: Params = {"state": name}
        bug = "state-kept" if name in KEPT else "state-lost"
        yield bug, name, dict.fromkeys((*convs, *own), params)
        if convs and own:
            yield bug, f"{name}, that of the convolution", dict.fromkeys(convs, params)
            yield bug, f"{name}, that of the rule", dict.fromkeys(own, params)


def gate_order(scope: Scope, layer: Layer) -> Variants:
    normed, gated = "linear_attn.delta_normed", "linear_attn.norm"
    if normed in layer and gated in layer:
        params = layer.node(normed).params
        weight = tuple(scope.weights.array(params["weight"], np.dtype(np.float64)).tolist())
        after: Params = {"normed_after": (weight, params["eps"])}
        yield "gate-order", "silu(z), then the norm", {normed: {"skip": True}, gated: after}


def halves(scope: Scope, layer: Layer) -> Variants:
    """Of q and its gate; and of q, k and v after a convolution."""
    if "self_attn.q" in layer and "self_attn.gate" in layer:
        q, gate = "self_attn.q", "self_attn.gate"
        yield "gate-halves", "exchanged", {q: {"of_place": 1}, gate: {"of_place": 0}}
        yield "gate-halves", "halves of the whole row", {q: {"groups": 1}, gate: {"groups": 1}}
    names = ("linear_attn.q", "linear_attn.k", "linear_attn.v")
    if all(name in layer for name in names):
        q, k, _ = names
        yield "qkv-split", "q and k are exchanged", {q: {"of_place": 1}, k: {"of_place": 0}}
        shapes = layer.node(q).params["shapes"]
        order = [2, 0, 1]  # v first
        moved = tuple(shapes[n] for n in order)
        yield (
            "qkv-split",
            "v is cut first",
            {name: {"shapes": moved, "number": order.index(n)} for n, name in enumerate(names)},
        )


OF_LAYER: Sequence[OfLayer] = (convolutions, decays_of, rules, states, gate_order, halves)
