"""Bytes and types gone wrong."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from tools.zoo.fault import layers, linears
from tools.zoo.models import Subject


def dtype_trunc(subject: Subject, stack: ExitStack) -> None:
    for name, parameter in subject.hf.named_parameters():
        if "norm" not in name:
            parameter.data = (parameter.data.view(torch.int32) & -65536).view(torch.float32)


def dtype_misread(subject: Subject, stack: ExitStack) -> None:
    chosen = subject.rng.choice(["self_attn.q_proj.weight", "mlp.down_proj.weight", "self_attn.o_proj.weight"])
    stored = next(iter(subject.weights.stored.values())).dtype
    right, wrong = (torch.float16, torch.bfloat16) if stored == "F16" else (torch.bfloat16, torch.float16)
    for name, parameter in subject.hf.named_parameters():
        if name.endswith(chosen):
            parameter.data = parameter.data.to(right).view(wrong).float()


def byte_order(subject: Subject, stack: ExitStack) -> None:
    chosen = subject.rng.choice(["self_attn.q_proj.weight", "mlp.down_proj.weight", "embed_tokens.weight"])
    for name, parameter in subject.hf.named_parameters():
        if name.endswith(chosen):
            data = parameter.data.to(torch.bfloat16).contiguous().view(torch.uint8).view(-1, 2).flip(1).contiguous()
            parameter.data = data.view(torch.bfloat16).view(parameter.shape).float()


def overflow(subject: Subject, stack: ExitStack) -> None:
    pass  # the subject is drawn in float16 with activations beyond its range


def narrow(subject: Subject, stack: ExitStack) -> None:
    """One kind of op computes in bfloat16 or float16; what it is given, and what it gives, stays float32."""
    kind = subject.rng.choice([torch.bfloat16, torch.float16])
    match subject.rng.choice(["rope", "norm", "linear", "activation"]):
        case "rope":
            rotary = subject.hf.model.rotary_emb
            right = rotary.forward

            def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
                return tuple(table.to(kind).float() for table in right(x, position_ids))

            rotary.forward = forward
        case "norm":
            for layer in layers(subject):
                layer.input_layernorm.forward = _inside(layer.input_layernorm, kind)
        case "linear":
            name = subject.rng.choice(["q", "o", "gate", "down"])
            for layer in layers(subject):
                linears(layer)[name].forward = _inside(linears(layer)[name], kind)
        case _:
            for layer in layers(subject):
                del layer.mlp.act_fn
                layer.mlp.act_fn = lambda x: nn.functional.silu(x.to(kind)).float()


def _inside(module: nn.Module, kind: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else module.bias.to(kind)
            return nn.functional.linear(x.to(kind), module.weight.to(kind), bias).float()
        x = x.to(kind)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)  # type: ignore[operator]
        return (x * scale * module.weight.to(kind)).float()  # type: ignore[operator]

    return forward
