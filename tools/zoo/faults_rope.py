"""RoPE gone wrong."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from tools.zoo.fault import patch_module
from tools.zoo.models import Subject


def rotary_by(subject: Subject, stack: ExitStack, turn: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    patch_module(subject, stack, "apply_rotary_pos_emb", turn)


def half_turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None]


def rope_pairing(subject: Subject, stack: ExitStack) -> None:
    def one(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2).contiguous())
        turn = torch.complex(cos[..., :half], sin[..., :half])[:, None]
        return torch.view_as_real(z * turn).reshape(x.shape)

    rotary_by(subject, stack, lambda q, k, cos, sin, **_: (one(q, cos, sin), one(k, cos, sin)))


def rope_missing(subject: Subject, stack: ExitStack) -> None:
    which = subject.rng.choice(["q", "k", "qk"])
    rotary_by(
        subject,
        stack,
        lambda q, k, cos, sin, **_: (
            q if "q" in which else half_turned(q, cos, sin),
            k if "k" in which else half_turned(k, cos, sin),
        ),
    )


def rope_twice(subject: Subject, stack: ExitStack) -> bool:
    which = subject.rng.choice(["q", "k", "qk"])
    if subject.hf.model.rotary_emb.attention_scaling != 1:
        return False

    def turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **_: Any) -> Any:
        q, k = half_turned(q, cos, sin), half_turned(k, cos, sin)
        return (half_turned(q, cos, sin) if "q" in which else q), (half_turned(k, cos, sin) if "k" in which else k)

    rotary_by(subject, stack, turn)
    return True


def rope_partial(subject: Subject, stack: ExitStack) -> bool:
    head_dim = subject.hf.model.layers[0].self_attn.head_dim
    kind = subject.rng.choice(["half", "same-frequencies", "other-head-dim"])
    rotary = subject.hf.model.rotary_emb
    if kind == "same-frequencies":
        if head_dim % 4:
            return False
        part = head_dim // 2

        def one(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            c, s = (torch.cat((t[..., : part // 2],) * 2, dim=-1) for t in (cos, sin))
            return torch.cat((half_turned(x[..., :part], c, s), x[..., part:]), dim=-1)

        rotary_by(subject, stack, lambda q, k, cos, sin, **_: (one(q, cos, sin), one(k, cos, sin)))
        return True
    dim = head_dim // 2 if kind == "half" else subject.raw["hidden_size"] // subject.raw["num_attention_heads"]
    if dim % 2 or dim == head_dim or subject.raw["rope_parameters"]["rope_type"] != "default":
        return False
    theta = subject.raw["rope_parameters"]["rope_theta"]
    rotary.inv_freq = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    if dim > head_dim:
        rotary.inv_freq = rotary.inv_freq[: head_dim // 2]
        return True

    def part_of(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return torch.cat((half_turned(x[..., :dim], cos, sin), x[..., dim:]), dim=-1)

    rotary_by(subject, stack, lambda q, k, cos, sin, **_: (part_of(q, cos, sin), part_of(k, cos, sin)))
    return True


def rope_theta(subject: Subject, stack: ExitStack) -> bool:
    rotary, rng = subject.hf.model.rotary_emb, subject.rng
    rope = subject.raw["rope_parameters"]
    dim = subject.hf.model.layers[0].self_attn.head_dim
    if rope["rope_type"] != "default" and rng.random() < 0.5:  # scaling ignored
        rotary.inv_freq = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        rotary.attention_scaling = 1.0
        return True
    if rope["rope_type"] == "yarn" and rotary.attention_scaling != 1 and rng.random() < 0.5:
        rotary.attention_scaling = 1.0
        return True
    if rope["rope_type"] != "default" and rng.random() < 0.4:  # another factor
        other = copy.deepcopy(subject.hf.config)
        factor = rng.choice([2.0, 5.0, 16.0])
        other.rope_parameters = {**other.rope_parameters, "factor": factor}
        made = type(rotary)(other)
        rotary.inv_freq, rotary.attention_scaling = made.inv_freq, made.attention_scaling
        return factor != rope["factor"]
    theta = rng.choice([10000.0, 500000.0, 1000000.0, float(rng.randrange(2000, 90000))])
    changed = copy.deepcopy(subject.hf.config)
    changed.rope_parameters = {**changed.rope_parameters, "rope_theta": theta}
    rotary.inv_freq = type(rotary)(changed).inv_freq
    return theta != rope["rope_theta"]


def rope_position(subject: Subject, stack: ExitStack) -> None:
    rotary, rng = subject.hf.model.rotary_emb, subject.rng
    right = rotary.forward
    several = len(subject.steps.cuts) > 1
    kind = rng.choice(["shift", *(["restart", "frozen"] if several else [])])
    shift = rng.choice([-1, 1, 2, 7])
    first = subject.steps.stop_after(0)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        if kind == "shift":
            return right(x, position_ids + shift)
        if kind == "restart":
            return right(x, position_ids - position_ids[..., :1])
        moved = position_ids - position_ids[..., :1] + first - rng_offset
        return right(x, moved if int(position_ids[0, 0]) >= first else position_ids)

    rng_offset = rng.choice([0, 1])
    rotary.forward = forward


def rope_before_bias(subject: Subject, stack: ExitStack) -> bool:
    parts = subject.rng.choice(["qk", "q", "k"])
    modules = [(layer.self_attn, layer.self_attn.q_proj, layer.self_attn.k_proj) for layer in subject.hf.model.layers]
    if modules[0][1].bias is None or hasattr(modules[0][0], "q_norm"):
        return False
    turn_of, biases = [0], []
    for number, (attention, q, k) in enumerate(modules):
        biases.append({"q": q.bias.data.clone(), "k": k.bias.data.clone()})
        for part, module in (("q", q), ("k", k)):
            if part in parts:
                module.bias.data.zero_()
        attention.register_forward_pre_hook(lambda _m, _args, number=number: turn_of.__setitem__(0, number))

    def late(part: str, x: torch.Tensor) -> torch.Tensor:
        bias = biases[turn_of[0]][part]
        return x + bias.view(1, x.shape[1], 1, x.shape[3]) if part in parts else x

    def turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **_: Any) -> Any:
        return late("q", half_turned(q, cos, sin)), late("k", half_turned(k, cos, sin))

    rotary_by(subject, stack, turn)
    return True


def rope_extra(subject: Subject, stack: ExitStack) -> bool:
    """Layers that have no RoPE turn q and k, as the others do."""
    plain = [layer.self_attn for layer in subject.hf.model.layers if not layer.self_attn.use_rope]
    for attention in plain:
        attention.use_rope = 1
    return bool(plain)
