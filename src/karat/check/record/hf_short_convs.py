"""What transformers' short convolutions (LFM2) compute, seen through the functions of their source file."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Keep = Callable[[str, torch.Tensor], None]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class ShortConvs:
    """Watches the short convolutions of one model. `keep` is given each result [1, tokens, …] by its part of a name."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._num_tokens = 0

    def begin(self, _module: Any, _args: Any, out: torch.Tensor) -> None:
        """After in_proj: how many tokens there are, before rows that a cache kept are put before them."""
        self._num_tokens = out.shape[1]

    @property
    def functions(self) -> Mapping[str, Wrap]:
        """Functions of the model's source file, and what takes their place."""
        return {"causal_conv1d_fn": self._conv, "causal_conv1d_update": self._conv}

    def _conv(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # [1, channels, tokens]
            self._keep("gated_x", x[..., -self._num_tokens :].transpose(1, 2))
            out = original(x, *args, **kwargs)
            self._keep("conv", out[..., -self._num_tokens :].transpose(1, 2))
            return out

        return watched
