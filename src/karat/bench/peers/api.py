"""The model that a peer is given, and what a peer does beyond a side of the measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from karat.bench.sides import Side
from karat.checkpoint import Weight, requantize
from karat.config import ModelConfig
from karat.quant import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """A model for a peer: its config.json, and its weights by Hugging Face name, to be quantised as `quantize` says.

    A tied head is not among the weights.
    """

    raw_config: Mapping[str, Any]
    config: ModelConfig
    weights: Mapping[str, Weight]
    quantize: str | None
    num_threads: int

    def stored(self, name: str) -> Weight:
        """A weight as both engines compute on it; quantising takes memory for it until it is dropped."""
        weight = self.weights[name]
        return weight if self.quantize is None else requantize(weight, FORMATS[self.quantize.upper()]).weight


class Peer(Side, Protocol):
    def logits(self, prompt: Sequence[int]) -> NDArray[np.float32] | None:
        """Logits [vocab] after the last token, to see that it is the same model; None if the peer shows no logits."""
