"""Linear layers gone wrong: biases, shards, order, layout, layers."""

import types
from contextlib import ExitStack

import torch
from torch import nn

from tools.zoo.fault import layers, linears, replace_linear
from tools.zoo.models import Subject


def bias_missing(subject: Subject, stack: ExitStack) -> bool:
    kinds = [name for name, module in linears(subject.hf.model.layers[0]).items() if module.bias is not None]
    if not kinds:
        return False
    chosen = ["q", "k", "v"] if "q" in kinds and subject.rng.random() < 0.4 else [subject.rng.choice(kinds)]
    for layer in layers(subject):
        for name in chosen:
            linears(layer)[name].bias.data.zero_()
    return True


def bias_times_tp(subject: Subject, stack: ExitStack) -> bool:
    n = subject.rng.choice([2, 4, 8])
    done = False
    for layer in subject.hf.model.layers:
        for name in ("o", "down"):
            module = linears(layer)[name]
            if module.bias is not None:
                parts = torch.full((n,), 1.0)
                module.bias.data = sum(p * module.bias.data for p in parts)  # every rank adds it
                done = True
    return done


class Sharded(nn.Module):
    """A linear computed by n ranks, each with its part of the weight."""

    def __init__(self, parts: list[torch.Tensor], bias: torch.Tensor | None, kind: str) -> None:
        super().__init__()
        self.parts, self.bias_value, self.kind = parts, bias, kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "column":
            out = torch.cat([nn.functional.linear(x, part) for part in self.parts], dim=-1)
        else:
            pieces = zip(x.chunk(len(self.parts), -1), self.parts, strict=True)
            sums = [nn.functional.linear(piece, part) for piece, part in pieces]
            match self.kind:
                case "first-only":
                    out = sums[0]
                case "last-only":
                    out = sums[-1]
                case "twice":
                    out = len(sums) * sum(sums)
                case "mean":
                    out = sum(sums) / len(sums)
                case _:
                    out = sum(sums)
        return out if self.bias_value is None else out + self.bias_value


def shard_dim(subject: Subject, stack: ExitStack) -> bool:
    n = subject.rng.choice([2, 4])
    done = False
    name = subject.rng.choice(["q", "o", "gate", "down"])
    for layer in layers(subject):
        module = linears(layer)[name]
        out, inner = module.weight.shape
        if out % n or inner % n:
            continue
        w = module.weight.data
        if name in ("o", "down"):
            parts = [p.reshape(out, inner // n) for p in w.chunk(n, dim=0)]
            new = Sharded(parts, module.bias, "row")
        else:
            parts = [p.reshape(out // n, inner) for p in w.chunk(n, dim=1)]
            new = Sharded(parts, module.bias, "column")
        replace_linear(layer, name, new)
        done = True
    return done


def reduce_missing(subject: Subject, stack: ExitStack) -> bool:
    return _reduced(subject, subject.rng.choice(["first-only", "last-only", "twice"]))


def weight_missing(subject: Subject, stack: ExitStack) -> None:
    """A matrix that nobody filled, in all layers."""
    name = subject.rng.choice(["q", "k", "v", "o", "gate", "up", "down"])
    for layer in layers(subject):
        linears(layer)[name].weight.data.zero_()


def reduce_mean(subject: Subject, stack: ExitStack) -> bool:
    return _reduced(subject, "mean")


def _reduced(subject: Subject, kind: str) -> bool:
    n = subject.rng.choice([2, 4])
    name = subject.rng.choice(["o", "down"])
    done = False
    for layer in layers(subject):
        module = linears(layer)[name]
        if module.weight.shape[1] % n == 0:
            replace_linear(layer, name, Sharded(list(module.weight.data.chunk(n, dim=1)), module.bias, kind))
            done = True
    return done


def qkv_split(subject: Subject, stack: ExitStack) -> bool:
    a = subject.hf.model.layers[0].self_attn
    sizes = [m.weight.shape[0] for m in (a.q_proj, a.k_proj, a.v_proj)]
    groups = subject.rng.random() < 0.4 and sizes[1] > a.head_dim
    order = subject.rng.choice([(0, 2, 1), (1, 2, 0), (2, 0, 1), (2, 1, 0), (1, 0, 2)])

    def cut(fused: torch.Tensor) -> list[torch.Tensor]:
        if groups:
            by_group = fused.view(sizes[1] // a.head_dim, -1, a.head_dim, *fused.shape[1:])
            per = by_group.shape[1] - 2
            parts = [by_group[:, :per], by_group[:, per], by_group[:, per + 1]]
            return [p.reshape(-1, *fused.shape[1:]) for p in parts]
        pieces = fused.split([sizes[i] for i in order])
        return [pieces[order.index(i)] for i in range(3)]

    for layer in layers(subject):
        modules = [linears(layer)[name] for name in "qkv"]
        weights = cut(torch.cat([m.weight.data for m in modules]))
        biases = cut(torch.cat([m.bias.data for m in modules])) if modules[0].bias is not None else [None] * 3
        for module, weight, bias in zip(modules, weights, biases, strict=True):
            module.weight.data = weight.clone()
            if bias is not None:
                module.bias.data = bias.clone()
    return True


def gate_up_swapped(subject: Subject, stack: ExitStack) -> None:
    in_forward = subject.rng.random() < 0.5
    for layer in layers(subject):
        m = layer.mlp
        if in_forward:
            m.forward = types.MethodType(
                lambda self, x: self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x)), m
            )
        else:
            m.gate_proj.weight.data, m.up_proj.weight.data = m.up_proj.weight.data, m.gate_proj.weight.data
            if m.gate_proj.bias is not None:
                m.gate_proj.bias.data, m.up_proj.bias.data = m.up_proj.bias.data, m.gate_proj.bias.data


def activation(subject: Subject, stack: ExitStack) -> None:
    f = nn.functional
    other = subject.rng.choice(
        [f.gelu, lambda x: f.gelu(x, approximate="tanh"), f.relu, lambda x: x * torch.sigmoid(1.702 * x)]
    )
    for layer in layers(subject):
        del layer.mlp.act_fn
        layer.mlp.act_fn = other


def transposed(subject: Subject, stack: ExitStack) -> None:
    rng = subject.rng
    name = rng.choice(["lm_head", "q", "o", "down", "up"])
    modules = [subject.hf.lm_head] if name == "lm_head" else [linears(layer)[name] for layer in layers(subject)]
    for module in modules:
        w = module.weight.data
        out, inner = w.shape
        strided = torch.as_strided(w.contiguous(), (out, inner), (1, out)).clone()  # row-major read as column-major
        module.weight = nn.Parameter(strided)


def gguf_permute(subject: Subject, stack: ExitStack) -> None:
    both = subject.rng.random() < 0.7
    for layer in subject.hf.model.layers:
        d = layer.self_attn.head_dim
        for module in (layer.self_attn.q_proj, *([layer.self_attn.k_proj] if both else [])):
            for tensor in (module.weight, module.bias):
                if tensor is not None:
                    heads = tensor.data.shape[0] // d
                    tensor.data = (
                        tensor.data.view(heads, 2, d // 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
                    ).clone()


def layer_prefix(subject: Subject, stack: ExitStack) -> bool:
    every = list(subject.hf.model.layers)
    if len(every) < 2:
        return False
    into, taken = subject.rng.sample(every, 2)
    if (what := subject.rng.choice(("layer", "attention", "mlp", "one", "one", "one"))) != "one":
        parts = {"layer": (into, taken), "attention": (into.self_attn, taken.self_attn), "mlp": (into.mlp, taken.mlp)}
        target, source = parts[what]
        target.load_state_dict(source.state_dict())
    else:
        name = subject.rng.choice(list(linears(into)))
        linears(into)[name].load_state_dict(linears(taken)[name].state_dict())
    return True


def tie_ignored(subject: Subject, stack: ExitStack) -> None:
    w = subject.hf.lm_head.weight
    zero = subject.rng.random() < 0.5
    noise = torch.randn(w.shape, generator=torch.Generator().manual_seed(subject.rng.randrange(2**31)))
    subject.hf.lm_head.weight = nn.Parameter(torch.zeros_like(w) if zero else noise / w.shape[1] ** 0.5)


def tie_wrong(subject: Subject, stack: ExitStack) -> None:
    subject.hf.lm_head.weight = nn.Parameter(subject.hf.model.embed_tokens.weight.data.clone())


def head_other(subject: Subject, stack: ExitStack) -> None:
    w = subject.hf.lm_head.weight
    noise = torch.randn(w.shape, generator=torch.Generator().manual_seed(subject.rng.randrange(2**31)))
    subject.hf.lm_head.weight = nn.Parameter(noise / w.shape[1] ** 0.5)
