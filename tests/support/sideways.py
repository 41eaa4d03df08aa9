"""Tensors of experts one by one as gpt-oss' folders have them, by the definitions of transformers' model."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_EXPERT = re.compile(r"(.+\.experts\.)(\d+)\.(gate|up|down)_proj\.(weight|bias)", re.ASCII)


def sideways(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by name: columns of gate and up take turns, and matrices are [experts, columns, rows]."""
    return {
        name: np.ascontiguousarray(array.swapaxes(1, 2)) if ".experts." in name and array.ndim == 3 else array
        for name, array in upright(tensors).items()
    }


def upright(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The same with matrices [experts, rows, columns], in which rows of gate and up take turns."""
    found: dict[str, Array] = {}
    parts: dict[tuple[str, str, str], list[Array]] = {}
    for name, array in tensors.items():
        if (match := _EXPERT.fullmatch(name)) is None:
            found[name] = array
        else:  # experts in order of their numbers
            parts.setdefault((match[1], match[3], match[4]), []).append(array)
    for (place, part, kind), each in parts.items():
        suffix = "_bias" if kind == "bias" else ""
        if part == "down":
            found[f"{place}down_proj{suffix}"] = np.stack(each)
        elif part == "gate":
            both = np.stack([np.stack(each), np.stack(parts[place, "up", kind])], axis=2)  # [experts, rows, 2, …]
            found[f"{place}gate_up_proj{suffix}"] = both.reshape(len(each), -1, *both.shape[3:])
    return found
