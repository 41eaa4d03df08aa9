"""Bugs in recurrent layers, with a delta rule of the zoo's own: token by token, as an engine would write it."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from karat.check.record.hf_modules import mixer_of
from tools.zoo.fault import Fault, layers, patch_module
from tools.zoo.models import Subject

Tensor = torch.Tensor
Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # S, k, v, decay, beta of one token → S


def _delta_nets(subject: Subject) -> list[Any]:
    """The delta nets of all layers, or of one: a model may have layers without."""
    return [layer.linear_attn for layer in layers(subject) if hasattr(layer, "linear_attn")]


def _short_convs(subject: Subject) -> list[Any]:
    """Those of LFM2, of all layers or of one."""
    return [layer.conv for layer in layers(subject) if hasattr(layer, "conv")]


def _add(state: Tensor, k: Tensor, change: Tensor) -> Tensor:
    return state + k[..., None] * change[..., None, :]


def _read(state: Tensor, k: Tensor) -> Tensor:
    return (state * k[..., None]).sum(-2)


def right(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    state = state * decay
    return _add(state, k, (v - _read(state, k)) * beta)


def decay_last(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return _add(state, k, (v - _read(state, k)) * beta) * decay


def undecayed(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return _add(state * decay, k, (v - _read(state, k)) * beta)


def no_beta(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return right(state, k, v, decay, torch.ones_like(beta))


def beta_of_v(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    state = state * decay
    return _add(state, k, v * beta - _read(state, k))


def only_added(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    return _add(state * decay, k, v * beta)


def rule(*, update: Update = right, tiled: bool = False, scaled: bool = True, restarts: int = 0) -> Fault:
    """Every delta net of the model computes its rule in this way. restarts: the state is lost every so many tokens."""

    def fault(subject: Subject, stack: ExitStack) -> bool:
        source = sys.modules[type(subject.hf.model).__module__]

        def walk(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **more: Any) -> Any:
            groups = value.shape[2] // key.shape[2]
            q, k = (source.l2norm(x.transpose(1, 2)) for x in (query, key))
            q, k = (x.repeat(1, groups, 1, 1) if tiled else x.repeat_interleave(groups, dim=1) for x in (q, k))
            q = q * key.shape[-1] ** -0.5 if scaled else q
            v, decay, beta = value.transpose(1, 2), g.exp().transpose(1, 2), beta.transpose(1, 2)
            state, out = more.get("initial_state"), []
            for token in range(v.shape[2]):
                if state is None or (restarts and token % restarts == 0):
                    state = torch.zeros(*v.shape[:2], k.shape[-1], v.shape[-1], dtype=v.dtype)
                by_token = decay[:, :, token, None, None], beta[:, :, token, None]
                state = update(state, k[:, :, token], v[:, :, token], *by_token)
                out.append(_read(state, q[:, :, token]))
            return torch.stack(out, 1), state

        for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
            patch_module(subject, stack, name, walk)
        shape = subject.hf.config
        if tiled and not 1 < shape.linear_num_key_heads < shape.linear_num_value_heads:
            return False
        return any(hasattr(layer, "linear_attn") for layer in subject.hf.model.layers)

    return fault


def conv(subject: Subject, stack: ExitStack) -> bool:
    """Taps in reverse, or every result a token late."""
    kinds = [("linear_attn", "conv1d"), ("conv", "conv")]
    of = layers(subject)
    nets = [getattr(getattr(layer, a), b) for layer in of for a, b in kinds if hasattr(layer, a)]
    if subject.rng.random() < 0.5:
        for net in nets:
            net.weight.data = net.weight.data.flip(-1)
        return bool(nets)
    source = sys.modules[type(subject.hf.model).__module__]
    original = source.causal_conv1d_fn

    def late(x: Tensor, *args: Any, **more: Any) -> Any:
        return original(nn.functional.pad(x, (1, 0))[..., :-1], *args, **more)

    patch_module(subject, stack, "causal_conv1d_fn", late)
    return bool(nets)


def no_activation(subject: Subject, stack: ExitStack) -> bool:
    nets = _delta_nets(subject)
    for net in nets:
        net.activation = None
    return bool(nets)


def activation_added(subject: Subject, stack: ExitStack) -> bool:
    source = sys.modules[type(subject.hf.model).__module__]
    original = source.causal_conv1d_fn
    patch_module(subject, stack, "causal_conv1d_fn", lambda *args, **more: nn.functional.silu(original(*args, **more)))
    return bool(_short_convs(subject))


def bias_missing(subject: Subject, stack: ExitStack) -> bool:
    nets = _short_convs(subject)
    for net in nets:
        net.conv.bias.data = torch.zeros_like(net.conv.bias)
    return bool(nets)


def conv_gates(subject: Subject, stack: ExitStack) -> bool:
    """Thirds of in_proj's rows in another order, or a gate left out."""
    source = sys.modules[type(subject.hf.model).__module__]
    order = subject.rng.choice([(1, 0, 2), (1, 2, 0), (0, 2, 1), (None, 1, 2), (0, None, 2)])

    def forward(net: Any, hidden_states: Tensor, **_: Any) -> Tensor:
        thirds = net.in_proj(hidden_states).transpose(-1, -2).chunk(3, dim=-2)
        before, after, x = (None if place is None else thirds[place] for place in order)
        x = x if before is None else before * x
        x = source.causal_conv1d_fn(x, net.conv.weight.squeeze(1), net.conv.bias)
        x = x if after is None else after * x
        return net.out_proj(x.transpose(-1, -2).contiguous())

    nets = _short_convs(subject)
    for net in nets:
        net.forward = partial(forward, net)
    return bool(nets)


def gate_first(subject: Subject, stack: ExitStack) -> bool:
    """The gate multiplies before the norm."""
    nets = _delta_nets(subject)
    for net in nets:
        norm = net.norm

        def forward(x: Tensor, gate: Tensor, norm: Any = norm) -> Tensor:
            x = x * nn.functional.silu(gate)
            return norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))

        norm.forward = forward
    return bool(nets)


class _Rates:
    """In place of A_log: its own numbers are taken for the rates."""

    def __init__(self, rates: Tensor) -> None:
        self._rates = rates

    def float(self) -> "_Rates":
        return self

    def exp(self) -> Tensor:
        return -self._rates


def decay(subject: Subject, stack: ExitStack) -> bool:
    """A_log or dt_bias is read wrongly. Rates above 0 would let states grow beyond all numbers."""
    nets = _delta_nets(subject)
    how = subject.rng.choice(["as rates", "ones", "no bias"])
    for net in nets:
        if how == "as rates":
            rates = net.A_log.detach()
            if float(rates.max()) > 0:
                return False
            del net.A_log
            net.A_log = _Rates(rates)
        elif how == "ones":
            net.A_log.data = torch.zeros_like(net.A_log)
        else:
            net.dt_bias.data = torch.zeros_like(net.dt_bias)
    return bool(nets)


def lengths(subject: Subject, stack: ExitStack) -> bool:
    """Without eps, or with it outside the root, of small q and k; or the root mean square."""
    nets = _delta_nets(subject)
    kinds: list[Callable[[Tensor, int], Tensor]] = [
        lambda x, dim: x * torch.rsqrt((x * x).sum(dim, keepdim=True)),
        lambda x, dim: x / ((x * x).sum(dim, keepdim=True).sqrt() + 1e-6),
        lambda x, dim: x * torch.rsqrt((x * x).mean(dim, keepdim=True) + 1e-6),
    ]
    kind = subject.rng.choice(kinds)
    patch_module(subject, stack, "l2norm", lambda x, dim=-1, eps=1e-6: kind(x, dim))
    return bool(nets)


def gate_halves(subject: Subject, stack: ExitStack) -> bool:
    """q and its gate exchanged, or halves of the whole row."""
    original, exchanged = torch.chunk, subject.rng.random() < 0.5

    def cut(x: Tensor, parts: int, dim: int = 0) -> Any:
        if exchanged:
            return original(x, parts, dim)[::-1]
        halves = original(x.flatten(2), parts, -1)
        return tuple(half.reshape(*x.shape[:-1], x.shape[-1] // 2) for half in halves)

    torch.chunk = cut
    stack.callback(setattr, torch, "chunk", original)
    attentions = [layer.self_attn for layer in subject.hf.model.layers if hasattr(layer, "self_attn")]
    return any(exchanged or attention.config.num_attention_heads > 1 for attention in attentions)


def norm_offset(subject: Subject, stack: ExitStack) -> bool:
    """Weight alone where 1 + weight is meant, or 1 + weight in a delta net."""
    if subject.rng.random() < 0.5:
        nets = _delta_nets(subject)
        for net in nets:
            net.norm.weight.data = net.norm.weight.data + 1
        return bool(nets)
    for layer in layers(subject):
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = lambda x, norm=norm: norm._norm(x) * norm.weight
    return True


def states(subject: Subject, stack: ExitStack) -> bool:
    """Steps begin with zeros: the rule's, the convolution's, or both."""
    source = sys.modules[type(subject.hf.model).__module__]
    mixers = [mixer_of(layer) for layer in subject.hf.model.layers]
    what = subject.rng.choice(["rule", "conv", "both"]) if "linear_attn" in mixers else "conv"
    if what != "conv":
        for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
            original = getattr(source, name)

            def forgetful(*args: Any, original: Any = original, **more: Any) -> Any:
                return original(*args, **{**more, "initial_state": None})

            patch_module(subject, stack, name, forgetful)
    if what != "rule":
        chunk, update = source.causal_conv1d_fn, source.causal_conv1d_update

        def of_chunk(x: Tensor, *args: Any, **more: Any) -> Any:
            if x.shape[-1] > forgetting[0]:  # rows of the step before stand first
                x = torch.cat([torch.zeros_like(x[..., : -forgetting[0]]), x[..., -forgetting[0] :]], -1)
            return chunk(x, *args, **more)

        def of_token(x: Tensor, state: Tensor, *args: Any, **more: Any) -> Any:
            kept_state = state.clone()
            out = update(x, torch.zeros_like(state), *args, **more)
            update(x, kept_state, *args, **more)
            state.copy_(kept_state)
            return out

        forgetting = [0]

        def length(_module: Any, args: Any, given: Any) -> None:
            forgetting[0] = (args[0] if args else given["hidden_states"]).shape[1]

        for layer, mixer in zip(subject.hf.model.layers, mixers, strict=True):
            if mixer != "self_attn":
                getattr(layer, mixer).register_forward_pre_hook(length, with_kwargs=True)
        patch_module(subject, stack, "causal_conv1d_fn", of_chunk)
        patch_module(subject, stack, "causal_conv1d_update", of_token)
    return True
