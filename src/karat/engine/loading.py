"""What happens to weights between the file and the executor."""

import logging

from karat.checkpoint import Weight, requantize, requantized_type
from karat.quant import FORMATS

_log = logging.getLogger(__name__)


class Preparation:
    """What is done to each weight on its way: nothing, or quantising matrices to the format of that name.

    Says which matrices stay as they are.
    """

    def __init__(self, quantize: str | None) -> None:
        self._format = FORMATS[quantize.upper()] if quantize else None

    def __call__(self, weight: Weight) -> Weight:
        if self._format is None:
            return weight
        done = requantize(weight, self._format)
        if done.kept_because and len(weight.shape) > 1:
            _log.warning("%s", done.kept_because)
        return done.weight

    def stored_type(self, weight: Weight) -> str:
        """The type that the weight will have; nothing is read."""
        return weight.dtype if self._format is None else requantized_type(weight, self._format)
