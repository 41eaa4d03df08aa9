"""What transformers' attention computes, seen through the functions of its source file.

k after RoPE comes from the model's own `apply_rotary_pos_emb`, q from what its eager attention is given, as it may grow
after RoPE. Scores and weights are the argument and the result of the softmax there.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from karat.check.record.hf_modules import is_gated, part_or_none
from karat.check.record.hf_observers import SoftmaxObserver

Keep = Callable[[str, torch.Tensor], None]  # by name, [1, tokens, …]
Hook = Callable[[Any, str], None]  # on a module, whose result has this name
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Attentions:
    """Watches the attention of one model. `keep` is given each result by its part of a name; `num_computed` says how
    many tokens are computed when the step is done."""

    def __init__(self, keep: Keep, num_computed: Callable[[], int]) -> None:
        self._keep, self._num_computed = keep, num_computed
        self._unturned: list[torch.Tensor] = []  # what RoPE was given in this layer: q, and k [1, heads, tokens, dim]
        self._normed = torch.zeros(0)  # what a norm of q and of k gave last

    @property
    def functions(self) -> Mapping[str, Wrap]:
        """Functions of the model's source file, and what takes their place."""
        return {"apply_rotary_pos_emb": self._rotary, "eager_attention_forward": self._attention}

    def hook(self, layer: Any, prefix: str, output: Hook, stack: ExitStack) -> None:
        """What an attention has that few have: a gate with a matrix of its own, one norm for q and k."""
        if (gate := part_or_none(layer, "self_attn.gate_proj")) is not None:
            output(gate, f"{prefix}.self_attn.gate_proj")
        if (norm := part_or_none(layer, "self_attn.qk_norm")) is not None:
            stack.callback(norm.register_forward_hook(self._see_normed).remove)

    def _see_normed(self, _module: Any, _args: Any, out: torch.Tensor) -> None:
        self._normed = out

    def _rotary(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            turned = original(*args, **kwargs)
            has_both = isinstance(turned, tuple)
            if has_both or self._unturned:  # q came before
                self._keep("k_rope", turned[1].transpose(1, 2) if has_both else turned)
            self._unturned += args[:2] if has_both else args[:1]
            return turned

        return watched

    def _attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if hasattr(module, "qk_norm"):  # q is multiplied after it; k is the last that it normalised
                for part, x in zip("qk", self._unturned or (query, self._normed), strict=True):
                    self._keep(f"{part}_normed", x.transpose(1, 2))
            if self._unturned:
                self._keep("q_rope", query.transpose(1, 2))
            self._unturned.clear()
            keep = partial(self._keep_keys, "scores", empty=-torch.inf)
            with SoftmaxObserver(keep, has_sinks=hasattr(module, "sinks")):
                output, weights = original(module, query, *args, **kwargs)
            if weights is not None:
                self._keep_keys("weights", weights, 0.0)
            if is_gated(module):
                self._keep("attention", output.flatten(2))
            return output, weights

        return watched

    def _keep_keys(self, name: str, value: torch.Tensor, empty: float) -> None:
        """Keys by absolute position: the cache of a layer with a window holds only the last ones."""
        dropped = max(0, self._num_computed() - value.shape[-1])
        self._keep(name, torch.nn.functional.pad(value, (dropped, 0), value=empty))
