"""Transformers models broken on purpose, one function a bug. Nothing here comes from karat.check: what the diagnosis
names has to be found in numbers that other code made.

A fault gets a subject and a stack that undoes what it patches outside the model; it returns False where the model
cannot have the bug. Models are thrown away afterwards.
"""

import copy
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tools.zoo.attention import patch_attention
from tools.zoo.models import Subject

Fault = Callable[[Subject, ExitStack], bool | None]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the catalogue: the fault, and what a model must be like for it."""

    bug: str
    fault: Fault
    draw: Mapping[str, Any]


def patch_module(subject: Subject, stack: ExitStack, name: str, replacement: Any) -> Any:
    """Replace a function of the model's source file until the stack closes; returns the original."""
    source = sys.modules[type(subject.hf.model).__module__]
    original = getattr(source, name)
    setattr(source, name, replacement)
    stack.callback(setattr, source, name, original)
    return original


def layers(subject: Subject) -> list[Any]:
    """All layers, or one at random."""
    every = list(subject.hf.model.layers)
    return every if subject.rng.random() < 0.6 else [subject.rng.choice(every)]


def linears(layer: Any) -> dict[str, nn.Linear]:
    a, m = layer.self_attn, layer.mlp
    return {"q": a.q_proj, "k": a.k_proj, "v": a.v_proj, "o": a.o_proj, "gate": m.gate_proj, "up": m.up_proj,
            "down": m.down_proj}  # fmt: skip


# --- RoPE


def _rotary(subject: Subject, stack: ExitStack, turn: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    patch_module(subject, stack, "apply_rotary_pos_emb", turn)


def _half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None]


def rope_pairing(subject: Subject, stack: ExitStack) -> None:
    def one(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2).contiguous())
        turn = torch.complex(cos[..., :half], sin[..., :half])[:, None]
        return torch.view_as_real(z * turn).reshape(x.shape)

    _rotary(subject, stack, lambda q, k, cos, sin, **_: (one(q, cos, sin), one(k, cos, sin)))


def rope_missing(subject: Subject, stack: ExitStack) -> None:
    which = subject.rng.choice(["q", "k", "qk"])
    _rotary(subject, stack, lambda q, k, cos, sin, **_: (
        q if "q" in which else _half(q, cos, sin), k if "k" in which else _half(k, cos, sin)))  # fmt: skip


def rope_twice(subject: Subject, stack: ExitStack) -> bool:
    which = subject.rng.choice(["q", "k", "qk"])
    if subject.hf.model.rotary_emb.attention_scaling != 1:
        return False

    def turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **_: Any) -> Any:
        q, k = _half(q, cos, sin), _half(k, cos, sin)
        return (_half(q, cos, sin) if "q" in which else q), (_half(k, cos, sin) if "k" in which else k)

    _rotary(subject, stack, turn)
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
            return torch.cat((_half(x[..., :part], c, s), x[..., part:]), dim=-1)

        _rotary(subject, stack, lambda q, k, cos, sin, **_: (one(q, cos, sin), one(k, cos, sin)))
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
        return torch.cat((_half(x[..., :dim], cos, sin), x[..., dim:]), dim=-1)

    _rotary(subject, stack, lambda q, k, cos, sin, **_: (part_of(q, cos, sin), part_of(k, cos, sin)))
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


# --- linears


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
            out = torch.cat([x @ part.T for part in self.parts], dim=-1)
        else:
            sums = [piece @ part.T for piece, part in zip(x.chunk(len(self.parts), -1), self.parts, strict=True)]
            match self.kind:
                case "first-only":
                    out = sums[0]
                case "last-only":
                    out = sums[-1]
                case "twice":
                    out = len(sums) * sum(sums)
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
    n = subject.rng.choice([2, 4])
    name = subject.rng.choice(["o", "down"])
    kind = subject.rng.choice(["first-only", "last-only", "twice"])
    done = False
    for layer in layers(subject):
        module = linears(layer)[name]
        if module.weight.shape[1] % n == 0:
            replace_linear(layer, name, Sharded(list(module.weight.data.chunk(n, dim=1)), module.bias, kind))
            done = True
    return done


def replace_linear(layer: Any, name: str, module: nn.Module) -> None:
    owner = layer.self_attn if name in "qkvo" else layer.mlp
    setattr(owner, f"{name}_proj", module)


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
    if subject.rng.random() < 0.5:
        into.load_state_dict(taken.state_dict())
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


# --- norms, residuals, embedding, logits


def _norms(subject: Subject) -> list[Any]:
    model = subject.hf.model
    groups = [[layer.input_layernorm for layer in model.layers],
              [layer.post_attention_layernorm for layer in model.layers], [model.norm]]  # fmt: skip
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


def norm_swapped(subject: Subject, stack: ExitStack) -> None:
    for layer in layers(subject):
        a, b = layer.input_layernorm, layer.post_attention_layernorm
        a.weight, b.weight = b.weight, a.weight


def norm_missing(subject: Subject, stack: ExitStack) -> None:
    model = subject.hf.model
    match subject.rng.randrange(3):
        case 0:
            model.norm = nn.Identity()
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
        return q_norm(_half(q, cos, sin)), k_norm(_half(k, cos, sin))

    _rotary(subject, stack, turn)


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


def _residual(*changes: str) -> Fault:
    def fault(subject: Subject, stack: ExitStack) -> None:
        change = subject.rng.choice(changes)
        for layer in layers(subject):
            layer.forward = types.MethodType(_layer_forward(change), layer)

    return fault


def embed_scale(subject: Subject, stack: ExitStack) -> None:
    factor = subject.rng.choice([subject.raw["hidden_size"] ** 0.5, 2.0, 0.5])
    subject.hf.model.embed_tokens.register_forward_hook(lambda _m, _args, out: out * factor)


def embed_row(subject: Subject, stack: ExitStack) -> None:
    table, rng = subject.hf.model.embed_tokens, subject.rng
    shift, start = rng.choice([-1, 1, 3]), rng.choice([0, subject.raw["vocab_size"] // 2])
    vocab = subject.raw["vocab_size"]
    table.register_forward_pre_hook(
        lambda _m, args: (torch.where(args[0] >= start, (args[0] + shift) % vocab, args[0]),)
    )


def softcap(subject: Subject, stack: ExitStack) -> None:
    cap = subject.rng.choice([30.0, 50.0])
    if subject.rng.random() < 0.5:
        subject.hf.lm_head.register_forward_hook(lambda _m, _args, out: torch.tanh(out / cap) * cap)
    else:
        patch_attention(subject, stack, cap=cap)


def logit_scale(subject: Subject, stack: ExitStack) -> None:
    factor = subject.rng.choice([subject.raw["hidden_size"] ** -0.5, 0.0625, 1.7])
    subject.hf.lm_head.register_forward_hook(lambda _m, _args, out: out * factor)


# --- bytes


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


def _attention(**options: Any) -> Fault:
    return lambda subject, stack: patch_attention(subject, stack, **options)


def _one_of(*faults: Fault) -> Fault:
    return lambda subject, stack: subject.rng.choice(faults)(subject, stack)


def scale(value: Callable[[float], float]) -> Fault:
    def fault(subject: Subject, stack: ExitStack) -> None:
        for layer in layers(subject):
            layer.self_attn.scaling = value(layer.self_attn.scaling)

    return fault


def kv_stale(subject: Subject, stack: ExitStack) -> None:
    pass  # the runner takes a faulty cache from tools.zoo.caches


_WHOLE = {"steps": "whole"}
_NO_WINDOW = {"changes": {"sliding_window": None, "use_sliding_window": False}}
_WINDOW = {"family": "mistral", "changes": {"sliding_window": 7}, "steps": "whole"}
_BIASED = {"family": "llama", "changes": {"attention_bias": True, "mlp_bias": True}}
_SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48}
_GROUPED = {"changes": {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 72}}

ROWS: tuple[Row, ...] = (
    Row("mask-nan", _attention(mask="nan"), {}),
    Row("mask-off-by-one", _one_of(_attention(diagonal=-1), _attention(diagonal=-1, hidden="min"),
                                   _attention(diagonal=1)), {}),
    Row("mask-missing", _attention(mask="none"), _WHOLE),
    Row("mask-misaligned", _attention(mask="top-left"), {"steps": "chunks", **_NO_WINDOW}),
    Row("mask-window", _one_of(_attention(window=None), _attention(window=6), _attention(window=8)), _WINDOW),
    Row("scale-missing", scale(lambda s: 1.0), {}),
    Row("scale-twice", scale(lambda s: s * s), {}),
    Row("softmax-axis", _one_of(_attention(axis=-2), _attention(axis=1)), {}),
    Row("gqa-tile", _attention(tile=True), _GROUPED),
    Row("kv-stale", kv_stale, {"steps": "decode", **_NO_WINDOW}),
    Row("heads-order", _attention(order=True), {}),
    Row("rope-pairing", rope_pairing, {}),
    Row("rope-theta", rope_theta, {}),
    Row("rope-position", rope_position, {}),
    Row("rope-missing-k", rope_missing, {}),
    Row("rope-on-v", _attention(rope_v=True), _WHOLE),
    Row("rope-twice", rope_twice, {}),
    Row("rope-partial", rope_partial, {}),
    Row("qk-norm-missing", qk_norm_missing, {"family": "qwen3"}),
    Row("bias-missing", bias_missing, {}),
    Row("bias-times-tp", bias_times_tp, _BIASED),
    Row("shard-dim", shard_dim, {"changes": {"intermediate_size": 64}}),
    Row("reduce-missing", reduce_missing, {"changes": {"intermediate_size": 64}}),
    Row("qkv-split", qkv_split, {}),
    Row("gate-up-swapped", gate_up_swapped, {}),
    Row("activation", activation, {}),
    Row("transposed", transposed, {}),
    Row("tie-ignored", tie_ignored, {"changes": {"tie_word_embeddings": True, **_SMALL}, "lengths": (90, 130)}),
    Row("tie-wrong", tie_wrong, {"changes": {"tie_word_embeddings": False}}),
    Row("norm-eps", norm_eps, {}),
    Row("norm-eps-outside", norm_eps_outside, {"changes": {"rms_norm_eps": 1e-3}}),
    Row("norm-offset", norm_offset, {}),
    Row("norm-swapped", norm_swapped, {}),
    Row("norm-missing", norm_missing, {}),
    Row("residual-missing", _residual("attention-missing", "attention-after-norm", "mlp-missing", "mlp-from-input",
                                      "mlp-after-norm", "mlp-reads-input"), {}),
    Row("residual-twice", _residual("attention-twice", "attention-output-twice", "mlp-twice"), {}),
    Row("embed-scale", embed_scale, {}),
    Row("embed-row", embed_row, {}),
    Row("layer-prefix", layer_prefix, {"changes": {"num_hidden_layers": 3}}),
    Row("dtype-trunc", dtype_trunc, {}),
    Row("dtype-misread", dtype_misread, {"stored": "F16"}),
    Row("byte-order", byte_order, {"stored": "BF16"}),
    Row("overflow-fp16", overflow, {"dtype": torch.float16, "gain": 400.0}),
    Row("gguf-permute", gguf_permute, {}),
    Row("softcap", softcap, {}),
    Row("logit-scale", logit_scale, {}),
)  # fmt: skip
