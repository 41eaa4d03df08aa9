"""A block adds its branches to x one after another, and says of its mixers what they keep and need.

Covers: karat.layers.mixer.
"""

from typing import Any

import numpy as np
import pytest

from karat.config import RopeConfig
from karat.kv.groups import Keep, Keys, State
from karat.layers.block import Block, Branch, RowLayer
from karat.layers.mixer import Mixer, RopeTables, Rotation
from karat.ops.api import Cache, Ops, Step, Tensor
from karat.ops.reference import ReferenceOps
from karat.ops.tap import Tap

KEYS = Keys(2, 8, 8, None)
X = np.arange(6.0).reshape(2, 3)


class Times:
    """x · factor."""

    def __init__(self, factor: float, name: str = "times") -> None:
        self.name, self.factor = name, factor

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return x * self.factor


class Plus(Mixer):
    """x + number; keeps what it is told."""

    def __init__(self, number: float, keeps: Keep = None, *rotations: Rotation) -> None:
        self.name, self.number, self.keeps, self.rotations = "plus", number, keeps, rotations
        self.cache: Cache = None

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        self.cache = cache
        return x + self.number


@pytest.mark.parametrize("before", [None, Times(2)])
@pytest.mark.parametrize("after", [None, Times(5)])
@pytest.mark.parametrize("has_second", [False, True])
@pytest.mark.parametrize("multiplier", [None, -0.5])
@pytest.mark.parametrize("scale", [None, Times(7)])
def test_branches_are_added_in_order(
    before: RowLayer | None, after: RowLayer | None, has_second: bool, multiplier: float | None, scale: RowLayer | None
) -> None:
    first, second = Branch(before, Plus(3), after, multiplier), Branch(after, Plus(11), before, multiplier)
    block = Block("layer", first, second if has_second else None, scale=scale)
    want = X + ((X * 2 if before else X) + 3) * (5 if after else 1) * (multiplier or 1)
    if has_second:
        want = want + ((want * 5 if after else want) + 11) * (2 if before else 1) * (multiplier or 1)
    want = want * (7 if scale else 1)
    np.testing.assert_array_equal(block(ReferenceOps(), X, None, None, {}), want)


@pytest.mark.parametrize(
    ("second", "scale", "sums"),
    [
        (None, None, ["layer"]),
        (Branch(None, Plus(1)), None, ["layer.attention_residual", "layer"]),
        (None, Times(2), ["layer.attention_residual"]),
        (Branch(None, Plus(1)), Times(2), ["layer.attention_residual", "layer.mlp_residual"]),
    ],
)
def test_the_last_result_has_the_name_of_the_layer(
    second: Branch | None, scale: RowLayer | None, sums: list[str]
) -> None:
    tap = Tap(ReferenceOps())
    Block("layer", Branch(None, Plus(1)), second, scale=scale)(tap, X, None, None, {})
    assert list(tap.records) == sums  # a scale is an op of its own, recorded by its own name


def test_what_is_added_is_recorded_where_it_was_multiplied() -> None:
    tap = Tap(ReferenceOps())
    branch = Branch(None, Plus(1), multiplier=2.0)
    Block("layer", branch, branch)(tap, X, None, None, {})
    assert list(tap.records) == ["layer.attention_scaled", "layer.attention_residual", "layer.mlp_scaled", "layer"]


def test_a_block_keeps_and_needs_what_its_mixers_do() -> None:
    one, other = Rotation(RopeConfig(theta=1e4), 8), Rotation(RopeConfig(theta=1e6), 16)
    block = Block("layer", Branch(None, Plus(1, KEYS, one)), Branch(None, Plus(1, None, one, other)))
    assert block.keeps == KEYS and block.rotations == {one, other}
    recurrent = Block("layer", Branch(None, Plus(1)), Branch(None, Plus(1, State(((3,),)))))
    assert recurrent.keeps == State(((3,),)) and not recurrent.rotations
    assert Block("layer", Branch(None, Plus(1))).keeps is None


def test_a_block_has_one_cache() -> None:
    mixers = Plus(1, KEYS), Plus(2)
    cache: Any = object()
    Block("layer", *(Branch(None, mixer) for mixer in mixers))(ReferenceOps(), X, None, cache, {})
    assert mixers[0].cache is cache
    with pytest.raises(AssertionError, match="layer keeps"):
        _ = Block("layer", Branch(None, Plus(1, KEYS)), Branch(None, Plus(1, KEYS))).keeps
