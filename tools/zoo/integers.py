"""Linear layers of transformers that read integers, by code of the zoo's own: as docs/determinism.md states them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LIMITS = {"int8": 127, "int16": 32_639, "int24": 8_355_710}


class CutInBlockError(Exception):
    """A fault cuts features inside a block of 32, where no engine that reads integers can cut."""


def rounded(x: torch.Tensor, activations: str) -> torch.Tensor:
    """x [..., features] in blocks of 32, as integers times a power, in float64. Raises CutInBlockError."""
    limit = _LIMITS[activations]
    if x.shape[-1] % 32:
        raise CutInBlockError
    blocks = x.detach().float().unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    if activations != "int16":
        power = (largest / limit).clamp_min(2.0**-102)
        return ((blocks / power).round().double() * power.double()).flatten(-2)
    wide = blocks.double()
    power = torch.full_like(largest, 2.0**-102, dtype=torch.float64)
    while (too_small := (largest.double() / power).round() > limit).any():
        power = torch.where(too_small, 2 * power, power)
    return ((wide / power).round() * power).flatten(-2)


@contextmanager
def reading_integers(activations: str | None) -> Iterator[None]:
    """Inside, every linear layer reads integers of this width; None: no layer does."""
    original = torch.nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = (rounded(x, str(activations)) @ weight.double().T).to(x.dtype)
        return y if bias is None else y + bias

    if activations is not None:
        torch.nn.functional.linear = linear
    try:
        yield
    finally:
        torch.nn.functional.linear = original
