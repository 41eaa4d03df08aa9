"""Quantised weights read wrongly, by readers of the zoo's own (tools.zoo.quant_readers)."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from tools.zoo.fault import Fault, linears
from tools.zoo.models import Subject
from tools.zoo.quant_readers import READERS, SIZES

Mistakes = Mapping[str, Sequence[Mapping[str, Any]]]


def quant(mistakes: Mistakes) -> Fault:
    """Linear weights of some or all kinds are read with one of the mistakes that their type can have."""

    def fault(subject: Subject, stack: ExitStack) -> None:
        names = list(linears(subject.hf.model.layers[0]))
        chosen = names if subject.rng.random() < 0.5 else [subject.rng.choice(names)]
        stored = subject.weights.stored["model.layers.0.mlp.up_proj.weight"].dtype
        mistake = subject.rng.choice(mistakes[stored])
        for index, layer in enumerate(subject.hf.model.layers):
            for name in chosen:
                owner = "self_attn" if name in "qkvo" else "mlp"
                weight = subject.weights.stored[f"model.layers.{index}.{owner}.{name}_proj.weight"]
                module = linears(layer)[name]
                blocks = weight.data.reshape(module.weight.numel() // SIZES[stored], -1)
                values = READERS[stored](blocks, **mistake)
                module.weight.data = torch.from_numpy(values.reshape(tuple(module.weight.shape)).copy())

    return fault


_ORDERS = [{"order": "high first"}, {"order": "in turn"}]
_UPPER = [{"upper": False}]
_SHIFTS = [{"shift": 1}, {"shift": -1}]
_SUB_SHIFTS = [{"sub_shift": 1}, {"sub_shift": -1}]
_SIGNS = [{"sign": -1}, {"sign": 0}]
_CUT = [{"whole": False}]
_UNPACKED = [*_CUT, {"less": 0}]

NIBBLES: Mistakes = {
    "Q4_0": _ORDERS,
    "Q4_1": _ORDERS,
    "Q5_0": _ORDERS + _UPPER,
    "Q5_1": _ORDERS + _UPPER,
    "IQ4_NL": _ORDERS,
    "IQ4_XS": _ORDERS,
    "MXFP4": _ORDERS,
    "Q3_K": _UPPER,
    "Q4_K": _ORDERS,
    "Q5_K": _ORDERS + _UPPER,
    "Q6_K": _UPPER,
}
ZERO: Mistakes = {
    "Q4_0": [{"offset": 0}, {"offset": 7}],
    "Q5_0": [{"offset": 0}, {"offset": 15}],
    "Q8_0": [{"signed": False}],
    "Q3_K": [{"offset": 0}, {"offset": 3}],
    "Q6_K": [{"offset": 0}, {"offset": 31}],
}
MINIMA: Mistakes = dict.fromkeys(("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"), _SIGNS)
SCALES: Mistakes = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), _SHIFTS),
    "Q2_K": [*_SHIFTS, *_SUB_SHIFTS],
    **dict.fromkeys(("Q3_K", "IQ4_XS"), _SHIFTS + _SUB_SHIFTS + _UNPACKED),
    **dict.fromkeys(("Q4_K", "Q5_K"), _SHIFTS + _SUB_SHIFTS + _CUT),
    "Q6_K": [*_SHIFTS, *_SUB_SHIFTS, {"signed": False}],
}
