"""Experts as gpt-oss' folders store them: rows of gate and up take turns, and matrices lie on their side.

    gate_up_proj        [experts, hidden, 2 * inner]      column 2 i is row i of gate, column 2 i + 1 is row i of up
    gate_up_proj_bias   [experts, 2 * inner]
    down_proj           [experts, inner, hidden]          a column is a row of down
    down_proj_bias      [experts, hidden]

In MXFP4 the matrices stand upright, as blocks of 32 columns in two tensors:

    gate_up_proj_blocks [experts, 2 * inner, hidden / 32, 16]    a byte has columns 2 j (low) and 2 j + 1 (high)
    gate_up_proj_scales [experts, 2 * inner, hidden / 32]        the exponents; so has down_proj

A file has these names where the model's experts have biases. Their weights are made when they are loaded, one by one.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import PLAIN_BYTES, Weight, WeightSpec
from karat.quant import FORMATS

MXFP4_PARTS = ("_blocks", "_scales")
_NAMES = re.compile(r"(.+\.experts\.)(gate_up_proj|down_proj)(_bias|_blocks|_scales)?", re.ASCII)
_EACH: Mapping[str, tuple[str, ...]] = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_BLOCK = FORMATS["MXFP4"].block_size

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Sideways:
    """`specs` are the tensors that the files have; `parts` are those of the model: each expert's, one after the other.

    `num_each` parts are of one expert.
    """

    specs: tuple[WeightSpec, ...]
    parts: tuple[WeightSpec, ...]
    num_each: int

    def parted(self, stored: Mapping[str, Weight]) -> dict[str, Weight]:
        """The parts' weights, which are not made yet."""
        found = {}
        for number, part in enumerate(self.parts):
            expert, first = divmod(number, self.num_each)
            own = [stored[spec.source].rows(expert, expert + 1) for spec in self.specs]
            weight = replace(own[0], name=part.source, shape=part.shape, whole_shape=None)
            if len(own) == 2:
                made = partial(_blocks, own[0], own[1], first, self.num_each)
                found[part.source] = replace(weight, dtype="MXFP4", made=made)
            else:
                found[part.source] = replace(weight, made=partial(_turned, own[0], first, self.num_each))
        return found


def sideways_of(name: str, needed: Mapping[str, WeightSpec], stored: Collection[str]) -> list[Sideways] | None:
    """The join of a stored tensor of these names; none of scales, which are joined with their blocks.

    None for other names, and for models whose experts have no biases.
    """
    if (match := _NAMES.fullmatch(name)) is None or f"{match[1]}0.down_proj.bias" not in needed:
        return None
    experts, which, kind = match[1], match[2], match[3]
    if kind == "_scales" and f"{experts}{which}_blocks" in stored:
        return []
    each, suffix = _EACH[which], ".bias" if kind == "_bias" else ".weight"
    parts = parts_of(experts, each, suffix, needed)
    count, rows = len(parts) // len(each), len(each) * parts[0].shape[0]
    columns = 0 if kind == "_bias" else parts[0].shape[1]
    shapes: dict[str | None, tuple[int, ...]] = {
        None: (count, columns, rows),
        "_bias": (count, rows),
        "_blocks": (count, rows, columns // _BLOCK, _BLOCK // 2),
        "_scales": (count, rows, columns // _BLOCK),
    }
    kinds = MXFP4_PARTS if kind in MXFP4_PARTS else (kind,)
    specs = tuple(WeightSpec(f"{experts}{which}{kind or ''}", shapes[kind]) for kind in kinds)
    return [Sideways(specs, parts, len(each))]


def parts_of(
    experts: str, each: Sequence[str], suffix: str, needed: Mapping[str, WeightSpec]
) -> tuple[WeightSpec, ...]:
    """What the model needs of `each`: that of expert 0, then that of expert 1, and so on."""
    parts: list[WeightSpec] = []
    while True:
        expert, which = divmod(len(parts), len(each))
        if (spec := needed.get(f"{experts}{expert}.{each[which]}{suffix}")) is None:
            return tuple(parts)
        parts.append(spec)


def _turned(expert: Weight, first: int, step: int) -> Bytes:
    """Columns first, first + step, … of a matrix [1, columns, rows] as rows, or these numbers of a bias [1, rows]."""
    values = expert.data.view(f"<u{PLAIN_BYTES[expert.dtype]}").reshape(expert.shape[1:])
    return np.ascontiguousarray(values.T[first::step]).view(np.uint8).reshape(-1)


def _blocks(blocks: Weight, scales: Weight, first: int, step: int) -> Bytes:
    """Rows first, first + step, … as GGUF has them: the scale's byte, then columns j (low) and j + 16 (high)."""
    pairs = blocks.data.reshape(blocks.shape[1:])[first::step]
    columns = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:2], _BLOCK)
    exponents = scales.data.reshape(scales.shape[1:])[first::step, :, None]
    packed = columns[..., : _BLOCK // 2] | columns[..., _BLOCK // 2 :] << 4
    return np.concatenate([exponents, packed], axis=-1).reshape(-1)
