"""The layers of a GGUF file: how many the model has, which only predict further tokens, and numbers stated for each."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from karat.checkpoint.gguf.header import MAX_TENSORS
from karat.checkpoint.gguf.values import NUMBERS, GgufArray, Metadata, Value, shortest
from karat.checkpoint.unused import PREDICTION, OtherPart
from karat.checkpoint.wording import listed
from karat.errors import ConfigError

_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(nextn\.)?", re.ASCII)
_NUMBERS = frozenset(name for name, _ in NUMBERS.values())


@dataclass(frozen=True, slots=True)
class Layers:
    """The model computes layers 0 … count - 1. The next `predicting` ones predict further tokens, and are not used."""

    count: int
    predicting: int

    def part_of(self, stored: str) -> OtherPart | None:
        """PREDICTION for a tensor of a layer that predicts further tokens, else None."""
        match = _LAYER.match(stored)
        return PREDICTION if match and self.count <= int(match[1]) < self.count + self.predicting else None

    def check(self, stored: Iterable[str], arch: str) -> None:
        """Raises ConfigError unless each layer that is said to predict has the tensors that only such a layer has."""
        own = {int(match[1]) for name in stored if (match := _LAYER.match(name)) and match[2]}
        if self.predicting > len(own) or not own >= {*range(self.count, self.count + self.predicting)}:
            raise ConfigError(
                f"{arch}.nextn_predict_layers={self.predicting} is not supported: expected that many layers with "
                "tensors of the name nextn after the layers of the model"
            )


def read_layers(metadata: Metadata, arch: str) -> Layers:
    """The layers that the metadata state. Raises ConfigError where none is left for the model."""
    blocks, predicting = metadata.get(int, f"{arch}.block_count"), metadata.get(int, f"{arch}.nextn_predict_layers", 0)
    if predicting and not 0 < predicting < blocks:
        raise ConfigError(
            f"{arch}.nextn_predict_layers={predicting} is not supported: expected fewer than all {blocks} layers"
        )
    return Layers(blocks - predicting, predicting)


def one_for_all_layers(
    metadata: Metadata, keys: Collection[str], layers: Layers, by_layer: Mapping[str, str]
) -> tuple[Metadata, dict[str, list[Value]]]:
    """The metadata with one number for each of `keys` for which the file has an array of them, one a layer.

    Where layers of the model differ, the number is the largest, and the second result has all of them by the name that
    `by_layer` gives the key. Raises ConfigError for a key that is not in it, and for an array that is shorter or longer
    than can be.
    """
    found: dict[str, Value] = {}
    different: dict[str, list[Value]] = {}
    for key in keys:
        array = metadata.values.get(key)
        if not isinstance(array, GgufArray) or array.kind not in _NUMBERS:
            continue
        if not layers.count + layers.predicting <= array.len <= MAX_TENSORS:
            raise ConfigError(
                f"{key} has {array.len} numbers; expected one number for all layers, or one for each of "
                f"{layers.count + layers.predicting}"
            )
        of_model = np.delete(array.numbers(), slice(layers.count, layers.count + layers.predicting))
        numbers = np.unique(of_model).tolist()
        if len(numbers) != 1 and key not in by_layer:
            some = listed([str(number) for number in numbers[:9]], 5)
            raise ConfigError(f"{key} is {some}; expected one number for all layers")
        exact = shortest if array.kind == "FLOAT32" else _as_it_is
        if len(numbers) != 1:
            different[by_layer[key]] = [exact(number) for number in of_model.tolist()]
        found[key] = exact(numbers[-1])
    return metadata.with_values(found), different


def _as_it_is(number: Value) -> Value:
    return number
