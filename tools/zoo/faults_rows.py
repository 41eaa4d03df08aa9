"""Rows that are taken for others: of weights, of the embedding, of RoPE's table, of logits; and layers left out."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from tools.zoo.fault import layers
from tools.zoo.models import Subject


def logits_row(subject: Subject, stack: ExitStack) -> None:
    """Each token has the logits of the one before, or of the last one of the step."""
    is_last = subject.rng.random() < 0.5

    def other(_module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (x,) = args
        return (x[:, -1:].expand_as(x) if is_last else torch.cat((x[:, :1], x[:, :-1]), dim=1),)

    subject.hf.lm_head.register_forward_pre_hook(other)


def layer_skipped(subject: Subject, stack: ExitStack) -> bool:
    """The last layer is not computed, or the result of one is not used."""
    model, rng = subject.hf.model, subject.rng
    if len(model.layers) < 2:
        return False
    if rng.random() < 0.5:
        model.layers = nn.ModuleList(list(model.layers)[:-1])
        return True
    number = rng.randrange(len(model.layers) - 1)
    kept: list[torch.Tensor] = []
    model.layers[number].register_forward_pre_hook(lambda _m, args: kept.append(args[0]))
    model.layers[number + 1].register_forward_pre_hook(lambda _m, args: (kept.pop(), *args[1:]))
    return True


def biases_exchanged(subject: Subject, stack: ExitStack) -> bool:
    for layer in layers(subject):
        k, v = layer.self_attn.k_proj, layer.self_attn.v_proj
        if k.bias is None:
            return False
        k.bias.data, v.bias.data = v.bias.data, k.bias.data
    return True


def rows_in_turns(subject: Subject, stack: ExitStack) -> None:
    """gate and up are stacked, and read in turns; or their rows are stacked in turns, and cut in halves."""
    is_read = subject.rng.random() < 0.5
    for layer in layers(subject):
        pair = layer.mlp.gate_proj, layer.mlp.up_proj
        for kind in ("weight", "bias"):
            rows = [getattr(module, kind) for module in pair]
            if rows[0] is None:
                continue
            gate, up = (each.data for each in rows)
            both = torch.cat((gate, up)) if is_read else torch.stack((gate, up), dim=1).flatten(0, 1)
            found = (both[::2], both[1::2]) if is_read else both.chunk(2)
            for each, part in zip(rows, found, strict=True):
                each.data = part.clone()


def heads_of_rows(subject: Subject, stack: ExitStack) -> bool:
    """Rows [heads, head_dim] of q, k or v are taken as [head_dim, heads]."""
    name = subject.rng.choice("qkv")
    for layer in layers(subject):
        module, head_dim = getattr(layer.self_attn, f"{name}_proj"), layer.self_attn.head_dim
        if len(module.weight) == head_dim:
            return False
        for each in (module.weight, module.bias):
            if each is not None:
                each.data = each.data.unflatten(0, (head_dim, -1)).transpose(0, 1).flatten(0, 1).clone()
    return True


def embedding_unmasked(subject: Subject, stack: ExitStack) -> bool:
    """Each of n ranks adds a row for the ids of others."""
    table, rng, vocab = subject.hf.model.embed_tokens, subject.rng, subject.raw["vocab_size"]
    n, is_first = rng.choice([2, 4]), rng.random() < 0.5
    if vocab % n:
        return False
    starts = range(0, vocab, vocab // n)

    def unmasked(_module: Any, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
        (ids,) = args
        for start in starts:
            last = start + vocab // n - 1
            mine = (ids >= start) & (ids <= last)
            theirs = torch.full_like(ids, start) if is_first else ids.clamp(start, last)
            out = out + torch.where(mine[..., None], torch.zeros(()), table.weight[theirs])
        return out

    table.register_forward_hook(unmasked)
    return True


def rope_table_short(subject: Subject, stack: ExitStack) -> bool:
    """Positions behind the end of the table have its last row, or begin anew."""
    rotary, rng = subject.hf.model.rotary_emb, subject.rng
    right, size = rotary.forward, rng.choice([5, 8])
    if len(subject.steps.prompt) < 2 * size:
        return False
    is_clipped = rng.random() < 0.5
    rotary.forward = lambda x, position_ids: right(
        x, position_ids.clamp(max=size - 1) if is_clipped else position_ids % size
    )
    return True
