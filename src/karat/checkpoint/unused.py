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
SHARED_KEYS = OtherPart("K and V of layers that have none", "they read those of an earlier layer")

Unused = Mapping[OtherPart, tuple[Weight, ...]]

# Keys of config.json that count what only predicts further tokens.
PREDICTION_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_layers")
_PREDICTION_PREFIXES = ("mtp.", "model.mtp.", "model.mtp_layers.")
_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,8})\.(self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\.)?", re.ASCII)


def unused_in_folder(config: Mapping[str, Any]) -> Callable[[str], OtherPart | None]:
    """Tells of a tensor's name the part of it that a model of this config.json does not use; None of others.

    Tensors for multi-token prediction have a prefix of their own, or belong to the `num_nextn_predict_layers` layers
    after the model's. K and V of the last `num_kv_shared_layers` layers are in some files, and nothing reads them.
    """
    first, count, shared = (
        number if type(number := config.get(key)) is int else 0
        for key in ("num_hidden_layers", "num_nextn_predict_layers", "num_kv_shared_layers")
    )
    layers, without_keys = range(first, first + count) if first else range(0), range(first - shared, first)

    def part_of(name: str) -> OtherPart | None:
        layer = _LAYER.match(name)
        if name.startswith(_PREDICTION_PREFIXES) or (layer is not None and int(layer[1]) in layers):
            return PREDICTION
        return SHARED_KEYS if layer is not None and layer[2] and int(layer[1]) in without_keys else None

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
