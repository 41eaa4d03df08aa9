"""Bugs in a part of a run: on one rank of several, inside each rank, in some steps."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from tools.zoo.attention import patch_attention
from tools.zoo.fault import Fault, layers, linears
from tools.zoo.models import Subject


def _shares(subject: Subject, size: int) -> tuple[int, list[slice]]:
    """A number of ranks that divides `size`, and the slice of each of them."""
    n = subject.rng.choice([n for n in (2, 2, 4) if size % n == 0] or [1])
    return n, [slice(r * size // n, (r + 1) * size // n) for r in range(n)]


def _units(subject: Subject, name: str) -> tuple[int, int]:
    """How many heads or features of a linear layer ranks share out, and the rows of each."""
    raw, layer = subject.raw, subject.hf.model.layers[0]
    if name in "qo":
        return raw["num_attention_heads"], layer.self_attn.head_dim
    if name in "kv":
        return raw["num_key_value_heads"], layer.self_attn.head_dim
    return raw["intermediate_size"], 1


def _rows(subject: Subject, name: str) -> tuple[int, list[slice]]:
    count, each = _units(subject, name)
    n, shares = _shares(subject, count)
    return n, [slice(s.start * each, s.stop * each) for s in shares]


def _one(subject: Subject, shares: list[slice]) -> slice:
    return subject.rng.choice(shares)


def bias_missing(subject: Subject, stack: ExitStack) -> bool:
    names = [name for name, module in linears(subject.hf.model.layers[0]).items() if module.bias is not None]
    names = [name for name in names if name not in ("o", "down")]
    if not names:
        return False
    name = subject.rng.choice(names)
    n, shares = _rows(subject, name)
    mine = _one(subject, shares)
    for layer in layers(subject):
        linears(layer)[name].bias.data[mine] = 0
    return n > 1


def gate_up_swapped(subject: Subject, stack: ExitStack) -> bool:
    n, shares = _rows(subject, "gate")
    mine = _one(subject, shares)
    for layer in layers(subject):
        gate, up = layer.mlp.gate_proj, layer.mlp.up_proj
        for a, b in ((gate.weight, up.weight), (gate.bias, up.bias)):
            if a is not None:
                a.data[mine], b.data[mine] = b.data[mine].clone(), a.data[mine].clone()
    return n > 1


def transposed(subject: Subject, stack: ExitStack) -> bool:
    """One rank's slice of the weight, or that of each, is read as columns."""
    name = subject.rng.choice(["q", "k", "v", "gate", "up"])
    n, shares = _rows(subject, name)
    if subject.rng.random() < 0.5:
        shares = [_one(subject, shares)]
    for layer in layers(subject):
        weight = linears(layer)[name].weight.data
        for mine in shares:
            part = weight[mine].contiguous()
            weight[mine] = torch.as_strided(part, part.shape, (1, len(part))).clone()
    return n > 1


def layer_prefix(subject: Subject, stack: ExitStack) -> bool:
    every = list(subject.hf.model.layers)
    if len(every) < 2:
        return False
    into, taken = subject.rng.sample(every, 2)
    name = subject.rng.choice(["q", "k", "v", "o", "gate", "up", "down"])
    n, shares = _rows(subject, name)
    mine = _one(subject, shares)
    a, b = linears(into)[name], linears(taken)[name]
    if name in ("o", "down"):
        if subject.checkpoint.is_quantised and (mine.stop - mine.start) % 32:
            return False  # no engine cuts inside a block
        a.weight.data[:, mine] = b.weight.data[:, mine]
        return n > 1
    a.weight.data[mine] = b.weight.data[mine]
    if a.bias is not None:
        a.bias.data[mine] = b.bias.data[mine]
    return n > 1


def shard_order(subject: Subject, stack: ExitStack) -> bool:
    """Two ranks have each other's slices, or one has another's."""
    name = subject.rng.choice(["lm_head", "q", "o", "down", "down", "gate"])
    if name == "lm_head":
        if subject.raw["tie_word_embeddings"]:
            return False
        n, shares = _shares(subject, subject.raw["vocab_size"])
    else:
        n, shares = _rows(subject, name)
    if n == 1:
        return False
    first, second = subject.rng.sample(shares, 2)
    both = subject.rng.random() < 0.5
    modules = [subject.hf.lm_head] if name == "lm_head" else [linears(layer)[name] for layer in layers(subject)]
    for module in modules:
        w = module.weight.data
        w = w.T if name in ("o", "down") else w
        a, b = w[first].clone(), w[second].clone()
        w[first] = b
        if both:
            w[second] = a
        if module.bias is not None and name not in ("o", "down"):
            bias = module.bias.data
            x, y = bias[first].clone(), bias[second].clone()
            bias[first] = y
            if both:
                bias[second] = x
    return True


def qkv_split(subject: Subject, stack: ExitStack) -> bool:
    """Fused q, k and v are cut into as many equal pieces as there are ranks, and each piece into q, k and v."""
    modules = [linears(layer) for layer in subject.hf.model.layers]
    kv_heads = subject.raw["num_key_value_heads"]
    n = subject.rng.choice(
        [n for n in (2, 4) if kv_heads % n == 0 and subject.raw["num_attention_heads"] % n == 0] or [1]
    )
    for each in modules:
        _cut_naively([each[name] for name in "qkv"], n)
    return n > 1


def gate_up_split(subject: Subject, stack: ExitStack) -> bool:
    n, _ = _rows(subject, "gate")
    for layer in layers(subject):
        _cut_naively([layer.mlp.gate_proj, layer.mlp.up_proj], n)
    return n > 1


def _cut_naively(modules: list[nn.Linear], n: int) -> None:
    for kind in ("weight", "bias"):
        tensors = [getattr(module, kind) for module in modules]
        if tensors[0] is None:
            continue
        pieces = torch.cat([t.data for t in tensors]).chunk(n)
        cut = [piece.split([len(t) // n for t in tensors]) for piece in pieces]
        for index, tensor in enumerate(tensors):
            tensor.data = torch.cat([parts[index] for parts in cut]).clone()


def heads_order(subject: Subject, stack: ExitStack) -> bool:
    n, _ = _shares(subject, subject.raw["num_attention_heads"])
    if subject.raw["num_attention_heads"] == n:
        return False
    patch_attention(subject, stack, order=n)
    return n > 1


def gqa(subject: Subject, stack: ExitStack) -> bool:
    """Each of n ranks reads the KV head of its number, counted round."""
    heads, kv_heads = subject.raw["num_attention_heads"], subject.raw["num_key_value_heads"]
    found = [n for n in (2, 4) if heads % n == 0 and n > kv_heads > 1 and heads > n]
    if not found:
        return False
    n = subject.rng.choice(found)
    patch_attention(subject, stack, kv_head=[(h // (heads // n)) % kv_heads for h in range(heads)])
    return True


def mask_in_later_chunks(**options: Any) -> Fault:
    return lambda subject, stack: patch_attention(
        subject, stack, **options, when=lambda num_q, num_k: num_q > 1 and num_k > num_q
    )


def rope_position(subject: Subject, stack: ExitStack) -> bool:
    """Positions that restart in each chunk of the prompt, or are one too high in decode."""
    rotary = subject.hf.model.rotary_emb
    right = rotary.forward
    kind = subject.rng.choice(["chunks", "decode"])
    by = subject.rng.choice([-1, 1, 3])

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        is_decode = position_ids.shape[-1] == 1
        if kind == "decode":
            return right(x, position_ids + by * is_decode)
        return right(x, position_ids if is_decode else position_ids - position_ids[..., :1])

    rotary.forward = forward
    return True
