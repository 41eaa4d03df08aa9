"""Tensors of a GGUF file that hold one number of the model, once for each element of a head (`GgufForm.repeated`)."""

import re
from typing import Any

import numpy as np

from karat.checkpoint.gguf.form import GgufForm
from karat.checkpoint.gguf.values import shortest
from karat.checkpoint.weights import Weight
from karat.errors import ConfigError

_STORED = re.compile(r"blk\.(?:0|[1-9]\d{0,8})\.(\w+)\.weight", re.ASCII)


def read_repeated(stored: dict[str, Weight], form: GgufForm[Any]) -> dict[str, float]:
    """Takes these tensors from `stored`, and returns their numbers by the keys of config.json.

    Raises ConfigError where a tensor has several numbers, or layers have different ones.
    """
    found: dict[str, float] = {}
    for name in list(stored):
        match = _STORED.fullmatch(name)
        if match is None or match[1] not in form.repeated:
            continue
        values = np.unique(stored.pop(name).to_array(np.dtype(np.float32)))
        number = shortest(float(values[0])) if len(values) == 1 else None
        first = found.setdefault(match[1], number) if number is not None else None
        key = form.repeated[match[1]]
        if number is None or number != (1.0 if key is None else first):
            expected = "1 alone" if key is None else "one number, the same in all layers"
            raise ConfigError(f"{name} has values from {values[0]:g} to {values[-1]:g}; expected {expected}")
    return {key: number for name, number in found.items() if (key := form.repeated[name]) is not None}
