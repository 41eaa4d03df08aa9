"""Tensors that a model does not use: declared by whoever knows the format, each with the part it belongs to.

A tensor that is neither needed nor declared unused stays an error (karat.checkpoint.assign).
"""

from collections.abc import Callable, Mapping

from karat.checkpoint.weights import Weight

Unused = Mapping[str, tuple[Weight, ...]]  # by the part of the model that they belong to, like "vision"


def set_aside(
    weights: Mapping[str, Weight], part_of: Callable[[str], str | None]
) -> tuple[dict[str, Weight], dict[str, tuple[Weight, ...]]]:
    """The weights without those that belong to another part, and these by part; `part_of` knows it by the name."""
    by_part: dict[str | None, dict[str, Weight]] = {None: {}}
    for name, weight in weights.items():
        by_part.setdefault(part_of(name), {})[name] = weight
    return by_part[None], {part: tuple(found.values()) for part, found in by_part.items() if part is not None}


def remarks_on_unused(unused: Unused) -> list[str]:
    """One line for the user; none where every tensor is used."""
    counts = ", ".join(f"{len(weights)} of {part}" for part, weights in unused.items())
    return [f"tensors that are not used: {counts}"] if counts else []
