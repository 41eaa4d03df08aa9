"""Rows that are looked up, their parts, and rows whose logits are wanted."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.check.model.context import Array, Matrix
from karat.check.model.kinds import Given, Kind
from karat.check.model.tokens import Tokens
from karat.ops import api


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    ids: NDArray[np.int64]
    table: Matrix


def embedding(a: Lookup) -> Array:
    return a.table.rows_at(a.ids)


def _embedding(given: Given) -> Array:
    return given.replace(embedding)(Lookup(given.context.tokens.ids, given.matrix("weight")))


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    x: Array
    rows: NDArray[np.int64]
    tokens: Tokens


def select(a: Select) -> Array:
    return a.x[a.rows]


def _select(given: Given) -> Array:
    return given.replace(select)(Select(given.inputs[0], given.context.logit_rows, given.context.tokens))


@dataclass(frozen=True, slots=True, eq=False)
class PartOf:
    """PartOf `number` of rows x [tokens, …] that are cut as karat.ops.api.Split says."""

    x: Array
    shapes: tuple[tuple[int, ...], ...]
    groups: int
    number: int


def part(a: PartOf) -> Array:
    pieces = a.x.reshape(len(a.x), a.groups, -1)
    ends = np.cumsum([0, *(prod(shape) // a.groups for shape in a.shapes)])
    return pieces[..., ends[a.number] : ends[a.number + 1]].reshape(len(a.x), *a.shapes[a.number])


def _part(given: Given) -> Array:
    params = given.params
    return given.replace(part)(PartOf(given.inputs[0], params["shapes"], params["groups"], params["number"]))


KINDS = (
    Kind("part", _part, ("shapes", "groups", "number"), roundings=0),
    Kind("embedding", _embedding, ("weight",)),
    Kind("select", _select, of=api.SelectRows),
)
