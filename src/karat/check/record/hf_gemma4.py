"""What layers of Gemma 4 have and others do not, in the modules of transformers."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from karat.check.record.hf_modules import part_or_none, scales_itself
from karat.check.record.hf_observers import rows_seen

Keep = Callable[[str, torch.Tensor], None]  # by name, [1, tokens, …]
Hook = Callable[[Any, str], None]  # on a module, whose result or argument has this name
_OUTPUTS = (
    "self_attn.v_norm per_layer_input_gate per_layer_projection post_per_layer_input_norm "
    "post_feedforward_layernorm_1 post_feedforward_layernorm_2"
).split()
_TOP = ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")


def outputs_of(layer: Any) -> list[str]:
    """The modules of a layer, by their names in it, that only layers of Gemma 4 have."""
    return [name for name in _OUTPUTS if part_or_none(layer, name) is not None]


def optional_in(layer: Any) -> frozenset[str]:
    """Of modules that all layers have elsewhere, those that a layer of Gemma 4 may lack."""
    return frozenset(("k_proj", "v_proj")) if hasattr(layer, "layer_scalar") else frozenset()


def hook_layer(layer: Any, number: int, keep: Keep, argument: Hook, stack: ExitStack) -> None:
    """Beside `outputs_of`: what a layer gets of the tokens, its second sum, and experts."""
    if not hasattr(layer, "layer_scalar"):
        return
    prefix = f"model.layers.{number}"

    def given(_module: Any, args: Any) -> None:
        if len(args) > 1 and args[1] is not None:
            keep(f"model.layer_inputs.{number}", args[1])

    stack.callback(layer.register_forward_pre_hook(given).remove)
    if hasattr(layer, "per_layer_input_gate"):
        argument(layer.per_layer_input_gate, f"{prefix}.mlp_residual")
        argument(layer.per_layer_projection, f"{prefix}.per_layer_input_act")
    if not hasattr(layer, "experts"):
        return
    argument(layer.post_feedforward_layernorm, f"{prefix}.mlp_and_experts")

    def flat(name: str) -> Callable[[Any, Any, torch.Tensor], None]:
        return lambda _module, _args, out: keep(f"{prefix}.{name}", out[None])

    for name, module in (
        ("router.proj", layer.router.proj),
        ("pre_feedforward_layernorm_2", layer.pre_feedforward_layernorm_2),
        ("experts", layer.experts),
    ):
        stack.callback(module.register_forward_hook(flat(name)).remove)

    def read(_module: Any, args: Any) -> None:
        keep(f"{prefix}.router.input", args[0][None])

    def chosen(_module: Any, args: Any) -> None:
        _, ids, weights = args
        keep(f"{prefix}.chosen_ids", ids[None].float())
        keep(f"{prefix}.chosen_weights", weights[None])

    stack.callback(layer.router.proj.register_forward_pre_hook(read).remove)
    stack.callback(layer.experts.register_forward_pre_hook(chosen).remove)


def inputs_of(base: Any) -> dict[str, Any]:
    """The modules that make something of the tokens for all layers, by name; most models have none."""
    return {name: getattr(base, name) for name in _TOP if hasattr(base, name)}


def hook_inputs(base: Any, keep: Keep, output: Hook, stack: ExitStack) -> None:
    for name, module in inputs_of(base).items():
        if scales_itself(module):
            stack.enter_context(rows_seen(module, partial(keep, f"model.{name}")))
        output(module, f"model.{name}_scaled" if scales_itself(module) else f"model.{name}")
