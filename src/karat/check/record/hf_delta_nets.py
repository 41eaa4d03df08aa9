"""What transformers' gated delta nets compute, seen through the functions of their source file.

Their rule gives the logarithm of the decay and normalises q and k inside: `decay` is its exponential, `k_normed` what
its own function for lengths gave. A trace has no `q_normed`, as q is scaled afterwards, and no `delta_normed`, which
the norm with the gate keeps to itself.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Keep = Callable[[str, torch.Tensor], None]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class DeltaNets:
    """Watches the delta nets of one model. `keep` is given each result [1, tokens, …] by its part of a name."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._convolved = torch.zeros(0)
        self._lengths: list[torch.Tensor] = []

    @property
    def functions(self) -> Mapping[str, Wrap]:
        """Functions of the model's source file, and what takes their place."""
        return {
            "causal_conv1d_fn": self._conv,
            "causal_conv1d_update": self._conv,
            "l2norm": self._length,
            "torch_chunk_gated_delta_rule": self._rule,
            "torch_recurrent_gated_delta_rule": self._rule,
        }

    def _conv(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._convolved = original(*args, **kwargs)  # [1, channels, tokens], after rows that a cache kept
            return self._convolved

        return watched

    def _length(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._lengths.append(original(*args, **kwargs))
            return self._lengths[-1]

        return watched

    def _rule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            num_tokens, num_heads = key.shape[1:3]
            self._lengths.clear()
            out, state = original(query, key, value, *args, **kwargs)
            self._keep("conv", self._convolved[..., -num_tokens:].transpose(1, 2))
            for name, part in (("q", query), ("k", key), ("v", value)):
                self._keep(name, part)
            _, normed = self._lengths  # of q and of k [1, heads, tokens, dim], repeated for each value head
            self._keep("k_normed", normed[:, :: normed.shape[1] // num_heads].transpose(1, 2))
            self._keep("decay", kwargs["g"].exp())
            self._keep("beta", kwargs["beta"])
            self._keep("delta", out.flatten(2))
            return out, state

        return watched
