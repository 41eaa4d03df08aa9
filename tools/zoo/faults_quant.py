"""Quantised weights read wrongly, by readers of the zoo's own: nothing of karat.quant or karat.check is used here."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tools.zoo.fault import Fault, linears
from tools.zoo.models import Subject

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]


def _half(blocks: Blocks, at: int) -> Values:
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _fours(packed: Blocks, order: str) -> NDArray[np.float32]:
    low, high = packed & 15, packed >> 4
    match order:
        case "halves":
            q = np.concatenate((low, high), axis=1)
        case "high first":
            q = np.concatenate((high, low), axis=1)
        case _:
            q = np.stack((low, high), axis=2).reshape(len(packed), -1)
    return q.astype(np.float32)


def q4_0(b: Blocks, order: str = "halves", offset: float = 8, shift: int = 0) -> Values:
    return (_fours(b[:, 2:18], order) - np.float32(offset)) * np.roll(_half(b, 0), shift, axis=0)


def q4_1(b: Blocks, order: str = "halves", sign: float = 1, shift: int = 0) -> Values:
    d, m = (np.roll(_half(b, at), shift, axis=0) for at in (0, 2))
    return _fours(b[:, 4:20], order) * d + np.float32(sign) * m


def q8_0(b: Blocks, signed: bool = True, shift: int = 0) -> Values:
    q = b[:, 2:].view(np.int8) if signed else b[:, 2:]
    return q.astype(np.float32) * np.roll(_half(b, 0), shift, axis=0)


def q4_k(b: Blocks, order: str = "halves", sign: float = 1, shift: int = 0, whole: bool = True) -> Values:
    """Eight sub-blocks of 32; sub-blocks 2j and 2j + 1 are the low and the high nibbles of 32 bytes."""
    d, low = (np.roll(_half(b, at), shift, axis=0)[:, 0] for at in (0, 2))
    packed = b[:, 4:16].astype(np.int64)
    out = np.empty((len(b), 256), np.float32)
    for j in range(8):
        if j < 4:
            scale, least = packed[:, j] & 63, packed[:, j + 4] & 63
        else:
            scale, least = packed[:, j + 4] & 15, packed[:, j + 4] >> 4
            if whole:
                scale, least = scale | packed[:, j - 4] >> 6 << 4, least | packed[:, j] >> 6 << 4
        run = b[:, 16 + 32 * (j // 2) : 48 + 32 * (j // 2)]
        q = _fours(run, order)[:, 32 * (j % 2) : 32 * (j % 2) + 32]
        out[:, 32 * j : 32 * j + 32] = (d * scale)[:, None] * q - np.float32(sign) * (low * least)[:, None]
    return out


def q6_k(b: Blocks, offset: float = 32, shift: int = 0, sub_shift: int = 0) -> Values:
    """Sixteen sub-blocks of 16, each with a signed byte as scale."""
    d = np.roll(_half(b, 208), shift, axis=0)
    scales = np.roll(b[:, 192:208].view(np.int8), sub_shift, axis=1).astype(np.float32)
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32)
    parts = []
    for half in range(2):
        ql, qh = low[:, half], high[:, half]
        for part in range(4):
            nibble = ql[:, 32 * (part % 2) : 32 * (part % 2) + 32]
            nibble = nibble >> 4 if part > 1 else nibble & 15
            parts.append(nibble | (((qh >> (2 * part)) & 3) << 4))
    q = np.concatenate(parts, axis=1).astype(np.float32) - np.float32(offset)
    return q * np.repeat(d * scales, 16, axis=1)


_READERS: dict[str, Callable[..., Values]] = {"Q4_0": q4_0, "Q4_1": q4_1, "Q8_0": q8_0, "Q4_K": q4_k, "Q6_K": q6_k}


def read_as(stored: str, blocks: Blocks, **mistake: Any) -> Values:
    """Values [n, block size] of blocks of a type that this file can read."""
    return _READERS[stored](blocks, **mistake)


def quant(mistakes: dict[str, list[dict[str, Any]]]) -> Fault:
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
                blocks = weight.data.reshape(module.weight.numel() // _SIZES[stored], -1)
                values = read_as(stored, blocks, **mistake)
                module.weight.data = torch.from_numpy(values.reshape(tuple(module.weight.shape)).copy())

    return fault


_SIZES = {"Q4_0": 32, "Q4_1": 32, "Q8_0": 32, "Q4_K": 256, "Q6_K": 256}
_ORDERS = [{"order": "high first"}, {"order": "in turn"}]
_SHIFTS = [{"shift": 1}, {"shift": -1}]
NIBBLES = {"Q4_0": _ORDERS, "Q4_1": _ORDERS, "Q4_K": _ORDERS}
ZERO = {"Q4_0": [{"offset": 0}, {"offset": 7}], "Q8_0": [{"signed": False}], "Q6_K": [{"offset": 0}, {"offset": 31}]}
MINIMA = {"Q4_1": [{"sign": -1}, {"sign": 0}], "Q4_K": [{"sign": -1}, {"sign": 0}]}
SCALES = {"Q4_0": _SHIFTS, "Q4_1": _SHIFTS, "Q8_0": _SHIFTS, "Q4_K": [*_SHIFTS, {"whole": False}, {"whole": False}],
          "Q6_K": [*_SHIFTS, {"sub_shift": 1}, {"sub_shift": -1}]}  # fmt: skip
