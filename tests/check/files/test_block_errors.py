"""Blocks beside their originals: no quantiser's own rounding is strange, and one wrong number, scale or block is.

Covers: karat.check.files.block_levels, karat.check.files.quantised.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.check.files.block_errors import judges_values, strange_block
from karat.check.files.block_levels import LAYOUTS, step_sizes
from karat.check.files.quantised import distances
from karat.check.model.checked import open_model
from karat.checkpoint.weights import Weight
from karat.quant import FORMATS
from tests.quant.ggml import SHAPES, Ggml
from tests.support import seed
from tools.peers.models import make_folder
from tools.peers.recorded import DATA, STORED

SEED = int(seed.SEED)
WRITTEN = [name for name, format_ in FORMATS.items() if format_.pack is not None]
Floats = NDArray[np.float32]
Blocks = NDArray[np.uint8]

EXTREME: dict[str, Callable[[np.random.Generator], NDArray[np.float64]]] = {
    **SHAPES,
    "six magnitudes in a block": lambda rng: rng.standard_normal(256) * 10.0 ** rng.uniform(-6, 0, 256),
    "one outlier": lambda rng: rng.standard_normal(256) * np.where(np.arange(256) == rng.integers(256), 1000, 1),
    "far from zero": lambda rng: 100 + 1e-3 * rng.standard_normal(256),
    "sparse": lambda rng: rng.standard_normal(256) * (rng.random(256) < 0.02),
    "uniform": lambda rng: rng.uniform(-1, 1, 256),
    "groups of zeros": lambda rng: rng.standard_normal(256) * np.repeat(rng.random(16) < 0.5, 16),
    "zeros": lambda rng: np.zeros(256),
}


def drawn(rng: np.random.Generator, shape: str = "normal", deviation: float = 0.02, rows: int = 12) -> Floats:
    """Rows of 512 values."""
    return np.array([np.concatenate([EXTREME[shape](rng) for _ in range(2)]) for _ in range(rows)], np.float32) * (
        np.float32(deviation)
    )


def in_blocks(stored: str, values: Floats) -> Blocks:
    return FORMATS[stored].quantize(values.reshape(-1, FORMATS[stored].block_size))


def judged(stored: str, blocks: Blocks, values: Floats, *, weighed: bool = False) -> str | None:
    weight = Weight("w", stored, values.shape, blocks.reshape(-1), Path("x"))
    original = Weight("w", "F32", values.shape, values.reshape(-1).view(np.uint8), Path("x"))
    return strange_block(weight, original, weighed=weighed)


@pytest.mark.parametrize("shape", EXTREME)
@pytest.mark.parametrize("stored", WRITTEN)
def test_what_karat_writes_is_not_strange(stored: str, shape: str) -> None:
    rng = np.random.default_rng(SEED)
    for deviation in (1e-8, 1e-6, 1e-4, 0.02, 5.0):  # the first makes float16 scales of zero, or one or two units
        values = drawn(rng, shape, deviation)
        for weighed in (False, True):
            assert judged(stored, in_blocks(stored, values), values, weighed=weighed) is None, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize(("family", "mix"), [(family, mix) for family, mixes in STORED.items() for mix in mixes])
def test_what_llama_cpp_writes_is_not_strange(family: str, mix: str, tmp_path: Path) -> None:
    found = distances(
        open_model(str(DATA / f"{family}-{mix}.gguf")), open_model(str(make_folder(tmp_path / "m", family)))
    )
    assert not found.faults


@pytest.mark.peers
@pytest.mark.parametrize("shape", ["normal", "heavy tails", "uniform", "positive", "groups of very different sizes"])
@pytest.mark.parametrize("stored", [name for name in FORMATS if name not in ("NVFP4", "E4M3")])
def test_what_llama_cpp_writes_with_an_importance_matrix_is_not_strange(stored: str, shape: str) -> None:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    rng, ggml = np.random.default_rng(SEED), Ggml()
    for deviation in (1e-6, 0.02):
        values = drawn(rng, shape, deviation)
        for spread in (0.3, 1.0, 2.0) if judges_values(stored) else (0.3, 1.0):
            blocks = ggml.quantize(
                FORMATS[stored], values, np.exp(spread * rng.standard_normal(512)).astype(np.float32)
            )
            for weighed in (False, True) if spread < 2 else (True,):
                assert judged(stored, blocks, values, weighed=weighed) is None, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize("stored", [name for name in WRITTEN if LAYOUTS[name].chosen == "fitted"])
def test_scales_fitted_after_the_numbers_are_not_strange(stored: str) -> None:
    """As an importance matrix makes them: one value near zero (or two neighbours) counts far more than the rest."""
    rng = np.random.default_rng(SEED)
    values = drawn(rng, rows=60)
    blocks, x = in_blocks(stored, values), values.reshape(-1, 32).astype(np.float64)
    has_minimum = stored.endswith("_1")
    num_halves = 2 if has_minimum else 1
    halves = blocks[:, : 2 * num_halves].copy().view("<f2").astype(np.float64)
    y = FORMATS[stored].dequantize(blocks).astype(np.float64)
    numbers = np.rint((y - (halves[:, 1:] if has_minimum else 0)) / halves[:, :1])
    for i, row in enumerate(numbers):
        if has_minimum:
            first = 12 + int(np.diff(np.sort(row)[12:24]).argmax())
            weight = 1 + 50 * np.isin(np.arange(32), np.argsort(row, kind="stable")[first : first + 2])
        else:
            weight = 1 + 1e4 * (np.arange(32) == np.where(row == 0, 99, np.abs(row)).argmin())
        columns = np.stack([row, np.ones(32)][:num_halves], axis=1) * np.sqrt(weight)[:, None]
        fit = np.linalg.lstsq(columns, x[i] * np.sqrt(weight), rcond=None)[0]
        blocks[i, : 2 * num_halves] = fit.astype("<f2").view(np.uint8)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float64)
    far = np.abs(FORMATS[stored].dequantize(blocks) - x).max(axis=1) / np.abs(scales[:, 0])
    assert far.max() > (0.6 if has_minimum else 1.25), "more than rounding to nearest makes"
    assert judged(stored, blocks, values) is None and judged(stored, blocks, values, weighed=True) is None
    place = int(rng.integers(len(x)))
    blocks[place] = blocks[(place + 7) % len(x)]
    told = str(judged(stored, blocks, values))
    assert f"row {place // 16}, columns {place % 16 * 32} to " in told, f"KARAT_SEED={SEED} {told}"


def test_numbers_that_are_cut_and_not_rounded_are_not_strange() -> None:
    values = drawn(np.random.default_rng(SEED), rows=40)
    blocks = in_blocks("Q8_0", values)
    scales = blocks[:, :2].view("<f2").astype(np.float32)
    blocks[:, 2:] = np.trunc(values.reshape(-1, 32) / scales).astype(np.int8).view(np.uint8)
    assert judged("Q8_0", blocks, values) is None
    blocks[3, 9] ^= 0x20
    assert "row 0, columns 96 to 127: element [0, 103] is " in str(judged("Q8_0", blocks, values))


@pytest.mark.parametrize("between", ["F16", "Q4_0", "Q6_K"])
@pytest.mark.parametrize("stored", WRITTEN)
def test_a_type_on_the_way_is_not_strange(stored: str, between: str) -> None:
    """F16: the file was made by way of it. Else what it is compared with is rounded itself."""
    rng = np.random.default_rng(SEED)
    if between == "F16":
        values = drawn(rng, deviation=float(10.0 ** rng.uniform(-6, 0)), rows=40)
        assert judged(stored, in_blocks(stored, values.astype(np.float16).astype(np.float32)), values) is None
        return
    values = drawn(rng, rows=40)
    weight = Weight("w", stored, values.shape, in_blocks(stored, values).reshape(-1), Path("x"))
    other = Weight("w", between, values.shape, in_blocks(between, values).reshape(-1), Path("x"))
    assert strange_block(weight, other, weighed=False) is None, f"KARAT_SEED={SEED}"


def changed(stored: str, block: Blocks, others: Blocks, how: str, rng: np.random.Generator) -> Blocks:
    """One block with a wrong number, scale, or all of it, that no quantiser makes of what the right one stands for.

    Originals that the new levels do not reach do not count: a quantiser may have cut an outlier off.
    """
    format_ = FORMATS[stored]
    layout = LAYOUTS[stored]
    right, step = format_.dequantize(block[None])[0], step_sizes(stored, block[None])[0]
    for _ in range(1000):
        new = block.copy()
        if how == "number":
            new[rng.integers(*layout.numbers)] ^= np.uint8(1 << rng.integers(8))
        elif how == "scale" and stored == "MXFP4":  # an exponent, in a byte
            new[0] += rng.choice([2, 3, 4, 5])
        elif how == "scale":
            at = layout.halves[0][0] if layout.halves else 0
            new[at : at + 2] = (new[at : at + 2].view("<f2") * rng.choice([-1, 0, 0.5, 2])).astype("<f2").view(np.uint8)
        else:
            new = others[rng.integers(len(others))].copy() if rng.random() < 0.8 else np.zeros_like(block)
        ends = []
        for fill in (layout.lowest, layout.highest):
            end = new.copy()
            end[slice(*layout.numbers)] = fill
            ends.append(format_.dequantize(end[None])[0])
        values, new_step = format_.dequantize(new[None])[0], step_sizes(stored, new[None])[0]
        # The original is up to half a step from the right value. A value of a fitted scale has 1.25 steps of room.
        off = np.abs(values - np.clip(right, np.minimum(*ends), np.maximum(*ends))) - step / 2
        has_one_level = not new_step.any() and bool((np.abs(right) > step).any())
        if np.isfinite(values).all() and (has_one_level or (off > 1.3 * new_step)[new_step > 0].any()):
            return new
    raise AssertionError("nothing was changed")


@pytest.mark.parametrize("how", ["number", "scale", "block"])
@pytest.mark.parametrize("stored", WRITTEN)
def test_one_wrong_number_scale_or_block_is_named(stored: str, how: str) -> None:
    rng = np.random.default_rng([SEED, len(how)])
    for shape in ("normal", "heavy tails", "positive"):
        values = drawn(rng, shape, float(10.0 ** rng.uniform(-3, 1)), rows=24)
        blocks = in_blocks(stored, values)
        index = int(rng.integers(len(blocks)))
        blocks[index] = changed(stored, blocks[index], np.delete(blocks, index, axis=0), how, rng)
        told = str(judged(stored, blocks, values))
        size = FORMATS[stored].block_size
        row, column = divmod(index * size, 512)
        assert told.startswith(f"row {row}, columns {column} to {column + size - 1}: element [{row}, "), (
            f"KARAT_SEED={SEED} {shape}: {told}"
        )
        assert "blocks are so" not in told


def test_blocks_of_codebooks_are_judged_as_a_whole() -> None:
    rng = np.random.default_rng(SEED)
    blocks = rng.integers(0, 256, (40, 82), np.uint8)
    blocks[:, :2], blocks[:, 74:] = np.float16(0.01).reshape(1).view(np.uint8), 0x77  # all scales alike
    right = FORMATS["IQ2_S"].dequantize(blocks)
    noise = rng.standard_normal(right.shape).astype(np.float32) * np.sqrt((right**2).mean(axis=1, keepdims=True))
    values = (right + np.float32(0.35) * noise).astype(np.float32).reshape(20, 512)
    assert not judges_values("IQ2_S") and judged("IQ2_S", blocks, values, weighed=True) is None
    # Of 40 blocks drawn at random one can be like another by chance: the one in the middle of all distances is not.
    distances = np.square(right - right[33]).sum(axis=1)
    for wrong in (blocks[np.argsort(distances)[20]], np.zeros(82, np.uint8)):
        broken = blocks.copy()
        broken[33] = wrong
        told = str(judged("IQ2_S", broken, values, weighed=True))
        assert told.startswith("row 16, columns 256 to 511: ") and "of its size away" in told, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize("stored", LAYOUTS)
def test_the_levels_are_those_that_are_read(stored: str) -> None:
    """Whatever the numbers of a block are, they are read as levels of its first and last one."""
    rng = np.random.default_rng(SEED)
    format_, layout = FORMATS[stored], LAYOUTS[stored]
    blocks = rng.integers(0, 256, (200, format_.block_bytes), np.uint8)
    ends = []
    for fill in (layout.lowest, layout.highest):
        blocks_of_one = blocks.copy()
        blocks_of_one[:, slice(*layout.numbers)] = fill
        ends.append(format_.dequantize(blocks_of_one).astype(np.float64))
    with np.errstate(all="ignore"):
        place = (format_.dequantize(blocks) - ends[0]) / (ends[1] - ends[0]) * np.ptp(layout.levels) + layout.levels[0]
    with np.errstate(all="ignore"):  # of levels that differ in few digits nothing is known
        known = np.isfinite(place) & (np.abs(ends[1] - ends[0]) > 1e-3 * np.maximum(*np.abs(ends)))
    nearest = np.abs(place[known][:, None] - layout.levels).min(axis=1)
    assert known.mean() > 0.5 and np.quantile(nearest, 0.9) < 0.01 and len(np.unique(np.rint(place[known]))) > 2
