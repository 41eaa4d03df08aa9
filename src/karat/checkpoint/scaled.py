"""Weights that folders store as narrow floats, with their scales in tensors beside them.

    X [rows, columns], E4M3, is   weight_scale_inv or weight_scale beside it
    128 x 128 blocks              [ceil(rows / 128), ceil(columns / 128)]
    rows                          [rows, 1] or [rows]
    one scale                     [], [1] or [1, 1]

    Two E2M1 numbers a byte [rows, columns / 2], low bits first, in groups of 16 columns:
    weight                        weight_scale [rows, columns / 16] E4M3, weight_scale_2: a value is the product
    weight_packed                 weight_scale,                           weight_global_scale: … divided by this

A stack of experts has an axis more in front of each. The weights are made when they are loaded: E4M3 as blocks of that
format (karat.quant.e4m3), a scale in each; other rows than whole blocks of 128 columns, and all of NVFP4, as float32.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.quantization import Narrow, Nvfp4
from karat.checkpoint.unused import OtherPart
from karat.checkpoint.weights import BYTES, NARROW, PLAIN_BYTES, Weight
from karat.checkpoint.wording import shown
from karat.errors import CheckpointError
from karat.quant import FORMATS
from karat.quant.e4m3 import NUMBERS
from karat.quant.mxfp4 import TWICE

INPUT_SCALES = OtherPart(
    "scales of FP8 activations and caches", "activations stay float32, and --kv-dtype is the cache's"
)
_INPUT_NAMES = (".input_scale", ".activation_scale", ".input_global_scale", ".k_scale", ".v_scale", ".output_scale")
_SCALE_NAMES = ("_scale_inv", "_scale")
_PACKED = "_packed"
_FORMAT = FORMATS["E4M3"]
_PIECE = 1 << 20  # numbers that are made at a time: intermediate arrays stay small

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def part_of(name: str) -> OtherPart | None:
    """What a tensor belongs to that only other engines' arithmetic has; None for all others."""
    return INPUT_SCALES if name.endswith(_INPUT_NAMES) else None


def joined(weights: Mapping[str, Weight], kind: Narrow | Nvfp4) -> dict[str, Weight]:
    """The weights of a folder with those that have scales instead of their parts. CheckpointError for parts alone."""
    left = dict(weights)
    found: dict[str, Weight] = {}
    for name, weight in weights.items():
        if isinstance(kind, Narrow) and weight.dtype == NARROW:
            scale = _taken(left, name, *(name + ending for ending in _SCALE_NAMES))
            found[name] = _narrow(weight, scale, kind.block)
        elif isinstance(kind, Nvfp4) and weight.dtype == BYTES:
            own = name.removesuffix(_PACKED) if kind.divides else name
            groups = _taken(left, name, f"{own}_scale")
            whole = _taken(left, name, f"{own}_global_scale" if kind.divides else f"{own}_scale_2")
            found[own] = _nvfp4(replace(weight, name=own), groups, whole, divides=kind.divides)
            if own != name:
                del left[name]
    joined = {name: found.pop(name, weight) for name, weight in left.items()} | found
    for name, weight in joined.items():
        if weight.dtype in (BYTES, NARROW):
            raise CheckpointError(f"{weight.file}: tensor {shown(name)} is {weight.dtype}, and is no weight's part")
    return joined


def remarks_on_scaled(weights: Collection[Weight], kind: Narrow | Nvfp4) -> list[str]:
    """For the user, of what `joined` returned: what is computed otherwise than the folder's author may expect."""
    narrow = [weight.name for weight in weights if weight.dtype == _FORMAT.name]
    held = [weight.name for weight in weights if weight.dtype == "F32" and weight.made is not None]
    what = "NVFP4" if isinstance(kind, Nvfp4) else f"FP8 whose rows are no multiple of {_FORMAT.block_size}"
    return [
        *([f"{len(narrow)} matrices are FP8: computed on as stored, with activations in float32"] if narrow else []),
        *([f"{len(held)} matrices are held as float32, with activations in float32: {what}"] if held else []),
    ]


def _taken(left: dict[str, Weight], name: str, *parts: str) -> Weight:
    """The first of these tensors that is there, which is then no tensor of the folder any more."""
    for part in parts:
        if part in left:
            return left.pop(part)
    weight = left[name]
    raise CheckpointError(
        f"{weight.file}: {shown(name)} is {weight.dtype} and there is no {shown(parts[-1])}, by which it is "
        "multiplied; download the model again"
    )


def _narrow(weight: Weight, scale: Weight, block: tuple[int, int] | None) -> Weight:
    if len(weight.shape) not in (2, 3):
        raise CheckpointError(
            f"{weight.file}: {weight.name} is {weight.dtype} {list(weight.shape)}; expected a matrix, or one of each "
            "expert"
        )
    *stack, rows, columns = weight.shape
    if block is None:
        fitting = [[], [1], stack, [*stack, 1], [*stack, 1, 1], [*stack, rows], [*stack, rows, 1]]
        expected = "one, or one for each row"
    else:
        fitting = [[*stack, -(-rows // block[0]), -(-columns // block[1])]]
        expected = f"one for each block of {list(block)}"
    if [*scale.shape] not in fitting or scale.dtype not in PLAIN_BYTES:
        raise CheckpointError(
            f"{weight.file}: {scale.name} is {scale.dtype} {list(scale.shape)} for a weight of {list(weight.shape)}; "
            f"expected {expected}, in F32 or BF16: download the model again, or use another form of it"
        )
    if columns % _FORMAT.block_size == 0:
        return replace(weight, dtype=_FORMAT.name, made=partial(_blocks, weight, scale, block))
    return replace(weight, dtype="F32", made=partial(_multiplied, weight, scale, block))


def _scales(weight: Weight, scale: Weight, block: tuple[int, int] | None, size: int) -> Floats:
    """Those of `size` columns of each row: [all rows, columns / size]."""
    *stack, rows, columns = weight.shape
    scales = scale.to_array(np.dtype(np.float32))
    if block is None:
        count = prod(stack)
        by_row = scales.reshape(-1) if scales.size == count * rows else np.repeat(_for_each(scales, count), rows)
        return np.repeat(by_row[:, None], columns // size, axis=1)
    in_blocks = np.repeat(scales, block[0], axis=-2)[..., :rows, :].reshape(prod(stack) * rows, -1)
    return np.repeat(in_blocks, block[1] // size, axis=1)[:, : columns // size]


def _for_each(scales: Floats, count: int) -> Floats:
    return np.broadcast_to(scales.reshape(-1), (count,))


def _pieces(rows: int, columns: int) -> list[slice]:
    step = max(1, _PIECE // columns)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _blocks(weight: Weight, scale: Weight, block: tuple[int, int] | None) -> Bytes:
    """Blocks of E4M3: the scale, and then the numbers as they are."""
    size = _FORMAT.block_size
    numbers = weight.data.reshape(-1, weight.shape[-1] // size, size)
    scales = _scales(weight, scale, block, size)
    made = np.empty((*numbers.shape[:2], _FORMAT.block_bytes), np.uint8)
    for piece in _pieces(len(numbers), weight.shape[-1]):
        made[piece, :, 4:] = numbers[piece]
        is_nan = ((numbers[piece] & 0x7F) == 0x7F).any(axis=2)
        own = np.where(is_nan, np.float32(np.nan), scales[piece])
        made[piece, :, :4] = own.astype("<f4")[..., None].view(np.uint8)
    return made.reshape(-1)


def _multiplied(weight: Weight, scale: Weight, block: tuple[int, int] | None) -> Bytes:
    """Products of numbers and their scales, in float32."""
    numbers = weight.data.reshape(-1, weight.shape[-1])
    values = NUMBERS[numbers] * _scales(weight, scale, block, 1)
    values[(numbers & 0x7F) == 0x7F] = np.nan
    made: Bytes = values.astype("<f4", copy=False).reshape(-1).view(np.uint8)
    return made


def _nvfp4(weight: Weight, groups: Weight, whole: Weight, *, divides: bool) -> Weight:
    *stack, rows, half = weight.shape
    shape = (*stack, rows, 2 * half)
    if groups.dtype != NARROW or groups.shape != (*stack, rows, 2 * half // 16) or 2 * half % 16:
        raise CheckpointError(
            f"{weight.file}: {groups.name} is {groups.dtype} {list(groups.shape)} for {list(weight.shape)} bytes of "
            "NVFP4; expected E4M3, one for each 16 columns: download the model again"
        )
    if [*whole.shape] not in ([], [1], [*stack], [*stack, 1], [*stack, 1, 1]):
        raise CheckpointError(
            f"{weight.file}: {whole.name} is {list(whole.shape)} for {list(weight.shape)}; expected one number for "
            "each matrix: download the model again"
        )
    return replace(weight, dtype="F32", shape=shape, made=partial(_of_halves, weight, groups, whole, divides))


def _of_halves(weight: Weight, groups: Weight, whole: Weight, divides: bool) -> Bytes:
    """Number, group's scale and the matrix' scale multiplied; the first product is exact, so one rounding a value."""
    pairs = weight.data.reshape(-1, weight.shape[-1])
    of_groups = NUMBERS[groups.data].reshape(len(pairs), -1, 1)
    numbers = np.stack([TWICE[pairs & 15], TWICE[pairs >> 4]], axis=-1).reshape(len(pairs), of_groups.shape[1], 16)
    count = prod(weight.shape[:-2])
    by_matrix = _for_each(whole.to_array(np.dtype(np.float32)), count).astype(np.float64)
    scale = np.repeat(by_matrix, len(pairs) // count)[:, None, None]
    exact = numbers.astype(np.float64) / 2 * of_groups
    made: Bytes = (exact / scale if divides else exact * scale).astype("<f4").reshape(-1).view(np.uint8)
    return made
