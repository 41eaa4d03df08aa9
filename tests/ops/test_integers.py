"""Numeric contract 5's definition, against exact rational numbers that are rounded where the contract rounds."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.ops import integers
from karat.ops.integers import WIDTHS, CodedMatrix, coded, digits_of, linear, quantise
from karat.ops.leaves import leaf_ends
from karat.quant import CODINGS
from tests.support.activations import KINDS, block_of
from tests.support.drawn import examples
from tests.support.exact import nearest_float32
from tests.support.integer_digests import NAMES, activations, digest, matrix, stated
from tests.support.weights import random_blocks

F32 = NDArray[np.float32]
CONTRACT = [WIDTHS[name] for name in NAMES]
SEEDS = st.integers(0, 2**32 - 1)


def exact_block(block: F32, width: integers.Width) -> tuple[list[int], float]:
    """The integers and the power of a block by fractions; NaN for a block that has none."""
    if not np.isfinite(block).all():
        return [0] * 32, float("nan")
    values = [Fraction(float(value)) for value in block]
    largest = max(map(abs, values))
    if width.name != "int16":
        power = max(fraction(rounded(largest / width.limit)), Fraction(2) ** -102)
        found = [round(fraction(rounded(value / power))) for value in values]
        assert max(map(abs, found)) <= width.limit
        return (found, float(power) if any(found) else 1.0) if power <= 2**105 else ([0] * 32, float("nan"))
    for exponent in range(-102, 106):
        power = Fraction(2) ** exponent
        if round(largest / power) <= width.limit:
            found = [round(value / power) for value in values]
            return found, float(power) if any(found) else 1.0
    return [0] * 32, float("nan")


@pytest.mark.parametrize("width", CONTRACT, ids=NAMES)
@settings(max_examples=examples(60))
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), seed=SEEDS)
def test_activations_are_as_fractions_say(width: integers.Width, kinds: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [block_of(kind, rng) for kind in kinds]
    got = quantise(np.concatenate(blocks)[None], width)
    for number, block in enumerate(blocks):
        want, power = exact_block(block, width)
        assert got.integers[0, 32 * number :][:32].tolist() == want
        np.testing.assert_equal(float(got.powers[0, number]), power)


@pytest.mark.parametrize("near", [-1.0, -0.5, -0.25, 0.0, 0.25, 0.49, 0.5, 0.75, 1.0])
def test_the_power_of_two_changes_where_the_rounded_maximum_no_longer_fits(near: float) -> None:
    block = np.full(32, 1, np.float32)
    block[7] = np.float32(32_639 + near)  # float32 has quarters of it
    got = quantise(block[None], WIDTHS["int16"])
    want, power = exact_block(block, WIDTHS["int16"])
    assert (got.integers[0].tolist(), float(got.powers[0, 0])) == (want, power)
    assert power == (1 if float(block[7]) < 32_639.5 else 2)  # halves go to even, and limits are odd


@pytest.mark.parametrize("width", [WIDTHS["int8"], WIDTHS["int24"]], ids=["int8", "int24"])
@settings(max_examples=examples(2000))
@given(
    st.floats(2.0**-70, 2.0**110, width=32).flatmap(
        lambda largest: st.tuples(st.just(largest), st.floats(-largest, largest, width=32))
    )
)
def test_no_integer_is_above_the_limit_however_the_power_is_rounded(
    width: integers.Width, values: tuple[float, float]
) -> None:
    block = np.zeros(32, np.float32)
    block[:2] = values
    got = quantise(block[None], width)
    assert got.integers[0, 0] == width.limit and abs(got.integers[0, 1]) <= width.limit


@given(values=st.lists(st.integers(-8_355_711, 8_355_711), min_size=1))
def test_digits_are_signed_bytes_and_write_the_integer(values: list[int]) -> None:
    top, lower = digits_of(np.array([*values, 8_355_711, -8_355_711], np.int32))
    assert (65536 * top + lower).tolist() == [*values, 8_355_711, -8_355_711]
    assert top.min() >= -127 and top.max() <= 127 and lower.min() >= -32_896 and lower.max() <= 32_639
    assert (32_639, 8_355_711) == (127 * 257, 127 * (65536 + 257)) and 32_896 == 128 * 257


def exact_linear(x: F32, matrix: CodedMatrix, width: integers.Width, ends: tuple[int, ...]) -> np.float32:
    """One row times one row: Python's integers and fractions, rounded where the contract rounds."""
    size = matrix.sub_block
    blocks = [exact_block(block, width) for block in x.reshape(-1, 32)]
    q = [value for found, _ in blocks for value in found]
    if any(np.isnan(power) for _, power in blocks):
        return np.float32(np.nan)
    leaves = []
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        total = np.float32(0)
        for first in range(start, end, size):
            pairs = [(int(matrix.codes[0, k]), q[k]) for k in range(first, first + size)]
            if width.name == "int24":
                tops = [(value + 128 + 128 * 256) >> 16 for _, value in pairs]
                high = sum(code * top for (code, _), top in zip(pairs, tops, strict=True))
                low = sum(code * (value - 65536 * top) for (code, value), top in zip(pairs, tops, strict=True))
                assert max(abs(high), abs(low)) < 2**31
                part = rounded(fraction(rounded(high)) * 65536 + fraction(rounded(low)))
            else:
                part = rounded(sum(code * value for code, value in pairs))
            power, scale = Fraction(blocks[first // 32][1]), fraction(matrix.scales[0, first // size])
            step = fraction(rounded(power * scale))
            assert width.name != "int16" or step == power * scale  # exact
            total = rounded(fraction(part) * step + fraction(total))
            if matrix.minimums is not None:
                counted = fraction(rounded(fraction(rounded(sum(value for _, value in pairs))) * power))
                total = rounded(counted * fraction(matrix.minimums[0, first // size]) + fraction(total))
        leaves.append(total)
    while len(leaves) > 1:
        leaves = [rounded(fraction(a) + fraction(b)) for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


def rounded(value: Fraction | int) -> np.float32:
    return nearest_float32(Fraction(value))


def fraction(value: np.float32) -> Fraction:
    return Fraction(float(value))


@pytest.mark.drawn(5)
@pytest.mark.parametrize("stored", CODINGS)
@settings(max_examples=12)
@given(
    width=st.sampled_from(CONTRACT),
    kinds=st.lists(st.sampled_from([k for k in KINDS if k not in ("huge", "largest")]), min_size=16, max_size=16),
    seed=SEEDS,
)
def test_sums_are_as_fractions_say(stored: str, width: integers.Width, kinds: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = [kind if seed % 3 == 0 or kind not in ("nan", "inf") else "normal" for kind in kinds]
    x = np.concatenate([block_of(kind, rng) for kind in kinds])
    matrix = coded(random_blocks(stored, 1, 512, rng))
    ends = leaf_ends(512, 256 if seed % 2 else None)
    got, want = linear(x[None], matrix, width, ends)[0, 0], exact_linear(x, matrix, width, ends)
    np.testing.assert_equal(got, want)


@pytest.mark.parametrize("stored", CODINGS)
@pytest.mark.parametrize("width", CONTRACT, ids=NAMES)
def test_codes_and_integers_at_both_extremes(stored: str, width: integers.Width) -> None:
    coding = CODINGS[stored]
    for digits in (width.limit, width.limit - 255 if width.bits > 7 else width.limit, -width.limit):
        for code in (coding.lowest, coding.highest):
            x = np.full(64, digits, np.float32)
            x[::32] = width.limit  # so that the power is 1
            counts = 64 // coding.sub_block
            matrix = CodedMatrix(
                np.full((1, 64), code, np.int8),
                np.full((1, counts), 65504 * 128, np.float32),
                np.full((1, counts), -65504.0, np.float32),
                coding.sub_block,
            )
            got, want = linear(x[None], matrix, width, (64,))[0, 0], exact_linear(x, matrix, width, (64,))
            assert got == want and np.isfinite(got)


def test_sums_of_every_format_fit_32_bits() -> None:
    limits = (127, 32_639, 32_896)  # the largest of what code is multiplied by
    sums = {name: [coding.sub_block * coding.largest * limit for limit in limits] for name, coding in CODINGS.items()}
    for _, int16, int24 in sums.values():
        assert int16 < 2**27 and int24 < 2**31
    largest = max(sums, key=lambda name: sums[name][2])
    assert f"({largest}'s are the largest: {sums[largest][2]:,})" in (integers.__doc__ or "")
    assert 32 * 8_355_711 < 2**28


@pytest.mark.parametrize("stored", CODINGS)
@settings(max_examples=10)
@given(width=st.sampled_from(CONTRACT), seed=SEEDS)
def test_columns_of_a_sub_block_may_be_added_in_any_order(stored: str, width: integers.Width, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = coded(random_blocks(stored, 5, 512, rng))
    x = np.stack([np.concatenate([block_of("spread", rng) for _ in range(16)]) for _ in range(3)])
    order = rng.permuted(np.arange(512).reshape(-1, matrix.sub_block), axis=1).reshape(-1)
    turned = CodedMatrix(matrix.codes[:, order], matrix.scales, matrix.minimums, matrix.sub_block)
    ends = leaf_ends(512, 256)
    np.testing.assert_array_equal(
        linear(x, matrix, width, ends).view(np.uint32), linear(x[:, order], turned, width, ends).view(np.uint32)
    )


@pytest.mark.parametrize("width", CONTRACT, ids=NAMES)
@settings(max_examples=10)
@given(blocks=st.integers(8, 24), seed=SEEDS)
def test_blocks_lie_at_multiples_of_32_whatever_leaves_are_cut(width: integers.Width, blocks: int, seed: int) -> None:
    """A layer is the tree over layers of the leaves' columns, which begin at multiples of 32. Rows are alone."""
    rng = np.random.default_rng(seed)
    matrix = coded(random_blocks("Q4_1", 4, 32 * blocks, rng))
    x = np.stack([np.concatenate([block_of("normal", rng) for _ in range(blocks)]) for _ in range(2)])
    ends = leaf_ends(32 * blocks, 32)
    leaves = []
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        own = slice(start // 32, end // 32)
        assert matrix.minimums is not None
        part = CodedMatrix(matrix.codes[:, start:end], matrix.scales[:, own], matrix.minimums[:, own], 32)
        leaves.append(linear(x[:, start:end], part, width, (end - start,)))
    while len(leaves) > 1:
        leaves = [left + right for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
    np.testing.assert_array_equal(linear(x, matrix, width, ends), leaves[0])
    np.testing.assert_array_equal(linear(x[1:], matrix, width, ends), leaves[0][1:])


@pytest.mark.parametrize("stored", CODINGS)
@pytest.mark.parametrize("width", list(WIDTHS.values()), ids=list(WIDTHS))
def test_errors_are_within_half_a_step_an_element(stored: str, width: integers.Width) -> None:
    """And the roundings: three a sub-block, or six with minimums, and those of int24's parts."""
    rng = np.random.default_rng(11)
    weight = random_blocks(stored, 20, 1024, rng)
    matrix = coded(weight)
    x = rng.standard_normal((6, 1024)).astype(np.float32)
    values = weight.to_array(np.dtype(np.float64))
    got = linear(x, matrix, width, (1024,)).astype(np.float64)
    half_steps = quantise(x, width).powers.repeat(32, axis=1).astype(np.float64) / 2
    scales = np.abs(matrix.scales).astype(np.float64).repeat(matrix.sub_block, axis=1)
    size = scales * np.abs(matrix.codes)
    if matrix.minimums is not None:
        size = size + np.abs(matrix.minimums).repeat(matrix.sub_block, axis=1)
    rounding = 2.0**-23 * (6 * 1024 / matrix.sub_block + 4) * (np.abs(x).astype(np.float64) @ size.T)
    bound = half_steps @ np.abs(values).T * (1 + 2.0**-20) + rounding
    assert (np.abs(got - x.astype(np.float64) @ values.T) <= bound).all()


def test_a_number_that_is_none_makes_its_row_nan_and_no_other() -> None:
    rng = np.random.default_rng(3)
    matrix = coded(random_blocks("Q4_0", 9, 256, rng))
    matrix.scales[0] = 0  # NaN all the same
    x = rng.standard_normal((4, 256)).astype(np.float32)
    x[0, 200], x[2, 5], x[3, 77] = np.nan, np.inf, 3e38
    got = linear(x, matrix, WIDTHS["int16"], leaf_ends(256, 32))
    assert np.isnan(got[[0, 2, 3]]).all() and np.isfinite(got[1]).all()


@pytest.mark.parametrize("stored", CODINGS)
def test_digests(stored: str) -> None:
    """Kernels of contract 5 must have these bits; `python -m tests.support.integer_digests` makes them."""
    assert {name: digest(stored, name) for name in NAMES} == {name: stated()[stored, name] for name in NAMES}


@pytest.mark.parametrize("stored", CODINGS)
def test_digests_are_of_codes_and_digits_at_both_extremes(stored: str) -> None:
    codes, coding = coded(matrix(stored)).codes, CODINGS[stored]
    assert (codes == coding.lowest).all(axis=1).any() and (codes == coding.highest).all(axis=1).any()
    for name in NAMES:
        limit, x = WIDTHS[name].limit, activations(name)
        q = quantise(x, WIDTHS[name])
        assert (np.abs(q.integers[12:]) <= limit).all() and (q.powers[12:] == 1).all()
        assert (q.integers[12] == limit).all() and (q.integers[13] == -limit).any()
        digits = q.integers[14:].astype(np.int32)
        for _ in range(NAMES.index(name)):
            last = (digits + 128) % 256 - 128
            assert {last.min(), last.max()} == {-128, 127}
            digits = (digits - last) // 256
        assert {digits.min(), digits.max()} == {-127, 127}
