"""Rows that are looked up, and rows whose logits are wanted."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from dataclasses import dataclass

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


KINDS = (
    Kind("embedding", _embedding, ("weight",)),
    Kind("select", _select, of=api.SelectRows),
)
