"""Bytes and types gone wrong."""

from contextlib import ExitStack

import torch

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
