"""Bugs of what few families have: norms of 1 + weight, caps, GELU, multipliers, and RoPE by kind of layer."""

import types
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from tools.zoo.fault import layers, patch_module
from tools.zoo.faults_rope import half_turned
from tools.zoo.models import Subject


def norm_offset(subject: Subject, stack: ExitStack) -> None:
    """The weight alone, as an engine multiplies by it that does not know of the 1, or 2 + weight."""
    model = subject.hf.model
    names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    groups = [[getattr(layer, f"{name}_layernorm") for layer in model.layers] for name in names]
    every = [norm for group in groups for norm in group]
    if type(model.norm) is type(every[0]):  # Muse Glimmer's last norm has its weight as it is
        groups.append([model.norm])
        every.append(model.norm)
    groups.append(every)
    if hasattr(model.layers[0].self_attn, "q_norm"):
        groups.append([norm for layer in model.layers for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm)])
    is_alone = subject.rng.choice([True, False])
    for norm in subject.rng.choice(groups):
        if is_alone:
            norm.forward = types.MethodType(_by_weight_alone, norm)
        else:
            norm.weight.data += 1


def _by_weight_alone(norm: Any, x: torch.Tensor) -> Any:
    return norm._norm(x.float()) * norm.weight.float()


def cap_of_logits(subject: Subject, stack: ExitStack) -> bool:
    """Left out, or another."""
    config = subject.hf.config
    none = 0.0 if config.model_type.startswith("muse") else None
    own, config.final_logit_softcapping = config.final_logit_softcapping, subject.rng.choice([none, 50.0])
    return own is not None


def cap_of_scores(subject: Subject, stack: ExitStack) -> bool:
    other = subject.rng.choice([None, 50.0])
    own = None
    for layer in layers(subject):
        own, layer.self_attn.attn_logit_softcapping = layer.self_attn.attn_logit_softcapping, other
    return own is not None


def window(subject: Subject, stack: ExitStack) -> bool:
    """One token more, or one less; the engine of transformers makes its masks of the config."""
    subject.hf.config.sliding_window += subject.rng.choice([-1, 1])
    return any(kind == "sliding_attention" for kind in subject.hf.config.layer_types)


def rope_of_the_other_kind(subject: Subject, stack: ExitStack) -> bool:
    """Layers with a window turn by the table of those without."""
    rotary, kinds = subject.hf.model.rotary_emb, set(subject.hf.config.layer_types)
    if len(kinds) < 2:
        return False
    rotary.sliding_attention_inv_freq.copy_(rotary.full_attention_inv_freq)
    rotary.sliding_attention_attention_scaling = rotary.full_attention_attention_scaling
    return True


def activation(subject: Subject, stack: ExitStack) -> None:
    """Another GELU, or none."""
    gelu: Any = nn.functional.gelu
    other = subject.rng.choice([gelu, nn.functional.silu, lambda x: x * torch.sigmoid(1.702 * x)])
    for layer in layers(subject):
        del layer.mlp.act_fn
        layer.mlp.act_fn = other


def multiplier(subject: Subject, stack: ExitStack) -> bool:
    """One of Granite's left out: of the embedding, of what branches add, or of logits."""
    model, config = subject.hf.model, subject.hf.config
    match subject.rng.choice(["embedding", "branches", "logits"]):
        case "embedding":
            own, model.embedding_multiplier = model.embedding_multiplier, 1.0
        case "branches":
            for layer in layers(subject):
                own, layer.residual_multiplier = layer.residual_multiplier, 1.0
        case _:
            own, config.logits_scaling = config.logits_scaling, 1.0
    return own != 1


def embedding_unscaled(subject: Subject, stack: ExitStack) -> None:
    subject.hf.model.embed_tokens.embed_scale.fill_(1.0)


def layer_unscaled(subject: Subject, stack: ExitStack) -> None:
    """Gemma 4's number of a layer left out."""
    for layer in layers(subject):
        layer.layer_scalar.fill_(1.0)


def v_of_normed_k(subject: Subject, stack: ExitStack) -> bool:
    """Where V is K: K after its norm, and not what k_proj gives."""
    shared = [each.self_attn for each in layers(subject) if getattr(each.self_attn, "v_proj", True) is None]
    for attention in shared:
        normed: list[torch.Tensor] = []
        attention.k_norm.register_forward_hook(lambda _m, _args, out, normed=normed: normed.append(out))
        attention.v_norm.register_forward_pre_hook(lambda _m, _args, normed=normed: (normed.pop(),))
    return bool(shared)


def proportional_as_partial(subject: Subject, stack: ExitStack) -> bool:
    """The share of a head is turned as if it were a head: pairs within it, and frequencies of its size."""
    rope = subject.raw["rope_parameters"]["full_attention"]
    size = int(subject.raw["global_head_dim"] * rope["partial_rotary_factor"]) // 2 * 2
    factor = subject.rng.choice([1.0, rope.get("factor", 1.0)])
    frequencies = 1.0 / rope["rope_theta"] ** (torch.arange(0, size, 2).float() / size) / factor
    at: list[torch.Tensor | None] = [None]  # the positions of the tokens, in a layer that sees all keys

    def enter(layer: Any, _args: Any, given: Any) -> None:
        at[0] = None if layer.self_attn.is_sliding else given["position_ids"]

    for layer in subject.hf.model.layers:
        layer.register_forward_pre_hook(enter, with_kwargs=True)

    def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        if at[0] is None:
            return right(x, cos, sin, unsqueeze_dim=unsqueeze_dim)
        angles = (at[0][..., None].float() * frequencies).repeat(1, 1, 2)
        part, rest = x[..., :size].transpose(1, 2), x[..., size:]
        turned = half_turned(part, angles.cos().to(x.dtype), angles.sin().to(x.dtype)).transpose(1, 2)
        return torch.cat((turned, rest), dim=-1)

    right = patch_module(subject, stack, "apply_rotary_pos_emb", turn)
    return size > 0


def multiplier_of_muse(subject: Subject, stack: ExitStack) -> bool:
    """Muse Glimmer's of q, or of logits, left out."""
    if subject.rng.random() < 0.5:
        subject.hf.config.output_multiplier = 1.0
    else:
        for layer in layers(subject):
            layer.self_attn.qk_scale_factor = 1.0
    return True


def unit_norms_together(subject: Subject, stack: ExitStack) -> bool:
    """q and k are normalised over all their heads; they have no weights that would say how many numbers that are."""

    def forward(norm: Any, x: torch.Tensor) -> torch.Tensor:  # [1, heads, tokens, head_dim]
        return x * torch.rsqrt(x.pow(2).mean((1, 3), keepdim=True) + norm.eps)

    for layer in layers(subject):
        layer.self_attn.qk_norm.forward = types.MethodType(forward, layer.self_attn.qk_norm)
    return bool(subject.hf.config.num_attention_heads > 1)


def unit_norms_missing(subject: Subject, stack: ExitStack) -> None:
    for layer in layers(subject):
        layer.self_attn.qk_norm = nn.Identity()


def embedding_unnormed(subject: Subject, stack: ExitStack) -> None:
    subject.hf.model.embed_tokens.embed_norm = nn.Identity()


def rope_where_none_is(subject: Subject, stack: ExitStack) -> bool:
    """Layers of Muse Glimmer without RoPE turn q and k, as the others do."""
    config = subject.hf.model.config
    plain, config.layer_rope_theta = config.layer_rope_theta, [1.0] * len(config.layer_rope_theta)
    return not all(plain)
