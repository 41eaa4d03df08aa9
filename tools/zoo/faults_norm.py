"""Norms, residuals, embedding and logits gone wrong."""

import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from tools.zoo.attention import patch_attention
from tools.zoo.fault import Fault, layers
from tools.zoo.faults_rope import half_turned, rotary_by
from tools.zoo.models import Subject


def _norms(subject: Subject) -> list[Any]:
    model = subject.hf.model
    groups = [
        [layer.input_layernorm for layer in model.layers],
        [layer.post_attention_layernorm for layer in model.layers],
        [model.norm],
    ]
    return groups[subject.rng.randrange(3)]


def norm_eps(subject: Subject, stack: ExitStack) -> bool:
    eps = subject.rng.choice([1e-5, 1e-6, 1e-3, 0.03, 3e-4])
    for norm in _norms(subject):
        norm.variance_epsilon = eps
    return eps != subject.raw["rms_norm_eps"]


def norm_eps_outside(subject: Subject, stack: ExitStack) -> None:
    for norm in _norms(subject):
        norm.forward = types.MethodType(
            lambda self, x: self.weight * (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)), norm
        )


def norm_offset(subject: Subject, stack: ExitStack) -> None:
    for norm in _norms(subject):
        norm.weight.data += 1


def norm_mean(subject: Subject, stack: ExitStack) -> None:
    kind = subject.rng.choice(["layernorm", "variance"])

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if kind == "layernorm":
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, None, self.variance_epsilon)
        return self.weight * x * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + self.variance_epsilon)

    for norm in _norms(subject):
        norm.forward = types.MethodType(forward, norm)


def norm_swapped(subject: Subject, stack: ExitStack) -> None:
    for layer in layers(subject):
        a, b = layer.input_layernorm, layer.post_attention_layernorm
        a.weight, b.weight = b.weight, a.weight


def norm_missing(subject: Subject, stack: ExitStack) -> None:
    model = subject.hf.model
    match subject.rng.randrange(4):
        case 0:
            model.norm = nn.Identity()
        case 3:  # computed, and not used
            before: list[torch.Tensor] = []
            model.norm.register_forward_pre_hook(lambda _m, args: before.append(args[0]))
            subject.hf.lm_head.register_forward_pre_hook(lambda _m, args: (before.pop()[:, -args[0].shape[1] :],))
        case 1:
            for layer in layers(subject):
                layer.post_attention_layernorm = nn.Identity()
        case _:
            for layer in layers(subject):
                layer.input_layernorm = nn.Identity()


def qk_norm_missing(subject: Subject, stack: ExitStack) -> None:
    kind = subject.rng.choice(["q", "k", "qk", "after"])
    if kind != "after":
        for layer in subject.hf.model.layers:
            for part in kind:
                setattr(layer.self_attn, f"{part}_norm", nn.Identity())
        return
    kept: list[tuple[Any, Any]] = []
    turn_of: list[int] = [0]
    for number, layer in enumerate(subject.hf.model.layers):
        kept.append((layer.self_attn.q_norm, layer.self_attn.k_norm))
        layer.self_attn.q_norm, layer.self_attn.k_norm = nn.Identity(), nn.Identity()
        layer.self_attn.register_forward_pre_hook(lambda _m, _args, number=number: turn_of.__setitem__(0, number))

    def turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **_: Any) -> Any:
        q_norm, k_norm = kept[turn_of[0]]
        return q_norm(half_turned(q, cos, sin)), k_norm(half_turned(k, cos, sin))

    rotary_by(subject, stack, turn)


def _layer_forward(change: str) -> Callable[..., torch.Tensor]:
    def forward(self: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        x = hidden_states
        normed = self.input_layernorm(x)
        h, _ = self.self_attn(hidden_states=normed, **kwargs)
        match change:
            case "attention-missing":
                y = h
            case "attention-twice":
                y = x + x + h
            case "attention-output-twice":
                y = x + h + h
            case "attention-after-norm":
                y = normed + h
            case _:
                y = x + h
        normed = self.post_attention_layernorm(x if change == "mlp-reads-input" else y)
        h = self.mlp(normed)
        match change:
            case "mlp-missing":
                return h
            case "mlp-twice":
                return y + y + h
            case "mlp-from-input":
                return x + h
            case "mlp-after-norm":
                return normed + h
        return y + h

    return forward


def residual(*changes: str) -> Fault:
    def fault(subject: Subject, stack: ExitStack) -> None:
        change = subject.rng.choice(changes)
        for layer in layers(subject):
            layer.forward = types.MethodType(_layer_forward(change), layer)

    return fault


def embed_scale(subject: Subject, stack: ExitStack) -> None:
    factor = subject.rng.choice([subject.raw["hidden_size"] ** 0.5, 2.0, 0.5])
    subject.hf.model.embed_tokens.register_forward_hook(lambda _m, _args, out: out * factor)


def embed_row(subject: Subject, stack: ExitStack) -> bool:
    table, rng = subject.hf.model.embed_tokens, subject.rng
    shift, start = rng.choice([-1, 1, 3]), rng.choice([0, subject.raw["vocab_size"] // 2])
    vocab = subject.raw["vocab_size"]
    if rng.random() < 0.3:  # the last row of a rank is zeros, or the first one of the next
        edge = vocab // rng.choice([2, 4]) - 1
        if edge not in subject.steps.prompt:
            return False
        table.weight.data = table.weight.data.clone()
        table.weight.data[edge] = rng.choice([0.0, table.weight.data[edge + 1].clone()])
        return True
    table.register_forward_pre_hook(
        lambda _m, args: (torch.where(args[0] >= start, (args[0] + shift) % vocab, args[0]),)
    )
    return True


def softcap(subject: Subject, stack: ExitStack) -> None:
    cap = subject.rng.choice([30.0, 50.0])
    if subject.rng.random() < 0.5:
        subject.hf.lm_head.register_forward_hook(lambda _m, _args, out: torch.tanh(out / cap) * cap)
    else:
        patch_attention(subject, stack, cap=cap)


def logit_scale(subject: Subject, stack: ExitStack) -> None:
    factor = subject.rng.choice([subject.raw["hidden_size"] ** -0.5, 0.0625, 1.7])
    subject.hf.lm_head.register_forward_hook(lambda _m, _args, out: out * factor)


def qk_norm_heads(subject: Subject, stack: ExitStack) -> bool:
    """The norms of q and k span one head where they should span all, or the reverse."""
    found = False
    for layer in layers(subject):
        attention = layer.self_attn
        for norm in (attention.q_norm, attention.k_norm):
            by_head = norm.weight.numel() == attention.head_dim

            def forward(self: Any, x: torch.Tensor, by_head: bool = by_head, dim: int = attention.head_dim) -> Any:
                if by_head and x.ndim == 3:  # all heads in a row, which are one
                    return type(self).forward(self, x)
                axes = (-2, -1) if by_head else (-1,)  # x is [1, tokens, heads, head_dim], or all heads in a row
                parts = x if by_head else x.unflatten(-1, (-1, dim))
                square = parts.pow(2).mean(axes, keepdim=True)
                return self.weight * (parts * torch.rsqrt(square + self.variance_epsilon)).reshape(x.shape)

            norm.forward = types.MethodType(forward, norm)
        found |= attention.config.num_attention_heads > 1
    return found
