"""What happens to weights between the file and the executor."""

import logging
from collections.abc import Callable

from karat.checkpoint import Weight, requantize
from karat.quant import FORMATS, Format

_log = logging.getLogger(__name__)


def preparation(quantize: str | None) -> Callable[[Weight], Weight]:
    """What is done to each weight: nothing, or quantising to the format of that name."""
    return _Quantizer(FORMATS[quantize.upper()]) if quantize else _as_stored


def _as_stored(weight: Weight) -> Weight:
    return weight


class _Quantizer:
    """Quantises matrices on their way to the executor; says which stay as they are."""

    def __init__(self, format_: Format) -> None:
        self._format = format_

    def __call__(self, weight: Weight) -> Weight:
        done = requantize(weight, self._format)
        if done.kept_because and len(weight.shape) > 1:
            _log.warning("%s", done.kept_because)
        return done.weight
