"""Bugs in mixtures of experts: what a router chooses, how experts are weighted, and what each computes with."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from tools.zoo.fault import Fault, layers
from tools.zoo.models import Subject

Tensor = torch.Tensor


def _mixtures(subject: Subject) -> list[Any]:
    """The mixtures of all layers, or of one: a model may have layers without."""
    return [layer.mlp for layer in layers(subject) if hasattr(layer.mlp, "experts")]


def routed(change: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> Fault:
    """`change` gets the ids and weights [rows, chosen] of the experts that are computed, and how many there are."""

    def fault(subject: Subject, stack: ExitStack) -> bool:
        mixtures = _mixtures(subject)
        for mlp in mixtures:
            count = mlp.experts.num_experts

            def before(_: Any, args: tuple[Tensor, Tensor, Tensor], count: int = count) -> tuple[Tensor, ...]:
                return (args[0], *change(args[1], args[2], count))

            mlp.experts.register_forward_pre_hook(before)
        return bool(mixtures) and subject.raw.get("num_experts_per_tok", 0) > 1

    return fault


def sums_otherwise(subject: Subject, stack: ExitStack) -> bool:
    """Weights add up to 1 where they should not, or do not where they should."""
    mixtures = _mixtures(subject)
    for mlp in mixtures:
        mlp.gate.norm_topk_prob = not mlp.gate.norm_topk_prob
    return bool(mixtures)


def scores_of_all(subject: Subject, stack: ExitStack) -> bool:
    """gpt-oss' softmax before its top-k: weights are scores among all experts."""
    mixtures = _mixtures(subject)
    for mlp in mixtures:

        def after(router: Any, args: tuple[Tensor], out: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
            logits, _, ids = out
            return logits, torch.gather(torch.softmax(logits, -1), 1, ids), ids

        mlp.router.register_forward_hook(after)
    return bool(mixtures)


def router_bias(subject: Subject, stack: ExitStack) -> bool:
    """gpt-oss' router without its bias."""
    mixtures = _mixtures(subject)
    for mlp in mixtures:
        mlp.router.bias.data.zero_()
    return bool(mixtures)


def biased_weights(subject: Subject, stack: ExitStack) -> bool:
    """LFM2's bias, which is for choosing only, in the weights."""
    routers = [layer.feed_forward for layer in layers(subject) if hasattr(layer.feed_forward, "experts")]
    for mlp in routers:
        if not mlp.use_expert_bias:
            return False

        def after(router: Any, args: tuple[Tensor, Tensor], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            logits, _, ids = out
            by = torch.gather(torch.sigmoid(logits) + args[1], 1, ids)
            by = by / (by.sum(-1, keepdim=True) + 1e-6) if router.norm_topk_prob else by
            return logits, by * router.routed_scaling_factor, ids

        mlp.gate.register_forward_hook(after)
    return bool(routers)


def shared_left_out(subject: Subject, stack: ExitStack) -> bool:
    """The expert that all tokens share gives nothing."""
    mixtures = _mixtures(subject)
    for mlp in mixtures:
        mlp.shared_expert.register_forward_hook(lambda mlp, args, out: torch.zeros_like(out))
    return bool(mixtures)


def turned(subject: Subject, stack: ExitStack) -> bool:
    """Experts have matrices of the next one."""
    mixtures, parts = _mixtures(subject), subject.rng.choice([("gate_up_proj", "down_proj"), ("down_proj",)])
    for mlp in mixtures:
        for part in parts:
            weight = getattr(mlp.experts, part)
            weight.data = weight.data.roll(-1, 0)
    return bool(mixtures)


def _rows(order: Callable[[Tensor], Tensor]) -> Fault:
    """The rows of gate and up of each expert in another order: order(gate above up)."""

    def fault(subject: Subject, stack: ExitStack) -> bool:
        mixtures = _mixtures(subject)
        for mlp in mixtures:
            weight = mlp.experts.gate_up_proj
            weight.data = order(weight.data)
        return bool(mixtures)

    return fault


exchanged = _rows(lambda both: both.roll(both.shape[1] // 2, 1))
in_turns = _rows(lambda both: torch.cat([both[:, ::2], both[:, 1::2]], 1))


def sinks(change: Callable[[Tensor, float], Tensor]) -> Fault:
    """`change` gets a layer's sinks and the scale of its scores."""

    def fault(subject: Subject, stack: ExitStack) -> None:
        for layer in layers(subject):
            attention = layer.self_attn
            attention.sinks.data = change(attention.sinks.data, attention.scaling)

    return fault


def clamp(subject: Subject, stack: ExitStack) -> None:
    """No limits, or another constant, in gpt-oss' activation."""
    name, value = subject.rng.choice([("limit", 1e9), ("alpha", 1.0)])
    for layer in layers(subject):
        setattr(layer.mlp.experts, name, value)
