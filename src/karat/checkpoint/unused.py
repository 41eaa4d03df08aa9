"""Tensors that a model does not use: those of other parts, declared by whoever knows the format, each with its reason.

A tensor that is neither needed nor declared unused stays an error (karat.checkpoint.assign).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from karat.checkpoint.weights import Weight


@dataclass(frozen=True, slots=True)
class OtherPart:
    """A part of models that Karat does not compute, and why an answer is right without it."""

    name: str
    reason: str


VISION = OtherPart("vision", "Karat reads no images")
AUDIO = OtherPart("audio", "Karat reads no sound")
PREDICTION = OtherPart("multi-token prediction", "it proposes tokens, and changes none")

Unused = Mapping[OtherPart, tuple[Weight, ...]]

# Keys of config.json that count what only predicts further tokens.
PREDICTION_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_layers")
_PREDICTION_PREFIXES = ("mtp.", "model.mtp.", "model.mtp_layers.")
_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,8})\.", re.ASCII)


def prediction_in_folder(config: Mapping[str, Any]) -> Callable[[str], OtherPart | None]:
    """Tells of a tensor's name whether a folder of this config.json has it for multi-token prediction alone.

    Such tensors have a prefix of their own, or belong to the `num_nextn_predict_layers` layers after the model's.
    """
    first, count = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    layers = range(first, first + count) if type(first) is int and type(count) is int else range(0)

    def part_of(name: str) -> OtherPart | None:
        layer = _LAYER.match(name)
        predicts = name.startswith(_PREDICTION_PREFIXES) or (layer is not None and int(layer[1]) in layers)
        return PREDICTION if predicts else None

    return part_of


def set_aside(
    weights: Mapping[str, Weight], part_of: Callable[[str], OtherPart | None]
) -> tuple[dict[str, Weight], dict[OtherPart, tuple[Weight, ...]]]:
    """The weights without those that belong to another part, and these by part; `part_of` knows it by the name."""
    by_part: dict[OtherPart | None, dict[str, Weight]] = {None: {}}
    for name, weight in weights.items():
        by_part.setdefault(part_of(name), {})[name] = weight
    return by_part[None], {part: tuple(found.values()) for part, found in by_part.items() if part is not None}


def remarks_on_unused(unused: Unused) -> list[str]:
    """One line for the user; none where every tensor is used."""
    counts = ", ".join(f"{len(weights)} of {part.name} ({part.reason})" for part, weights in unused.items())
    return [f"tensors that are not used: {counts}"] if counts else []
