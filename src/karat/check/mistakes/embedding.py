"""Ways to look up embeddings wrongly."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from karat.check.mistakes.catalogue import Bug, Variant
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import Scope
from karat.check.mistakes.weight_readings import Effective, Made
from karat.check.model.context import Array
from karat.check.model.kinds import Op
from karat.check.model.right.rows import Lookup, embedding

BUGS: Mapping[str, Bug] = {
    "embed-scale": Bug(
        "the embedding is multiplied by a constant", "only Gemma's embeddings are scaled by sqrt(hidden_size)"
    ),
    "embed-row": Bug(
        "other rows of the embedding are read", "look up the token id itself; check added tokens and padding"
    ),
}

EMBED = "model.embed_tokens"
NO_ROW = -1


@mistake("embedding", of=embedding)
def shift(embedding: Op[Lookup], a: Lookup, by: int, *, from_id: int = 0) -> Array:
    """The row of another id is read, from some id on."""
    ids = np.where(a.ids >= from_id, a.ids + by, a.ids)
    return embedding(replace(a, ids=ids % a.table.num_rows))


@mistake("embedding", of=embedding)
def effective(embedding: Op[Lookup], a: Lookup, reading: Effective) -> Array:
    """The table is read wrongly."""
    return Made.of(reading, a.table).rows_at(a.ids)


@mistake("embedding", of=embedding)
def elements(embedding: Op[Lookup], a: Lookup, changes: Sequence[tuple[int, int, float]]) -> Array:
    """Some elements of the table are other numbers: (row, column, by how much)."""
    rows = embedding(a)
    for row, column, change in changes:
        rows[a.ids == row, column] += rows.dtype.type(change)
    return rows


@mistake("embedding", of=embedding)
def rows(embedding: Op[Lookup], a: Lookup, others: Sequence[tuple[int, int]]) -> Array:
    """Some ids read the row of another id, or zeros: (id, other id or NO_ROW)."""
    ids, found = a.ids.copy(), dict(others)
    for id_, other in found.items():
        ids[a.ids == id_] = max(other, 0)
    x = embedding(replace(a, ids=ids))
    x[np.isin(a.ids, [id_ for id_, other in found.items() if other == NO_ROW])] = 0
    return x


@mistake("embedding", of=embedding)
def unmasked(embedding: Op[Lookup], a: Lookup, ranks_and_row: tuple[int, str]) -> Array:
    """Each of n ranks adds a row of its part for an id of another rank: its "first", or the "nearest"."""
    n, row = ranks_and_row
    size = -(-a.table.num_rows // n)
    x = embedding(a)
    for start in range(0, a.table.num_rows, size):
        last = min(start + size, a.table.num_rows) - 1
        theirs = np.clip(a.ids, start, last) if row == "nearest" else np.full_like(a.ids, start)
        is_mine = (a.ids >= start) & (a.ids <= last)
        x = x + np.where(is_mine[:, None], 0, embedding(replace(a, ids=theirs)))
    return x


def variants(scope: Scope) -> Iterator[Variant]:
    factor = scope.config.hidden_size**0.5
    yield Variant("embed-scale", f"multiplied by sqrt(hidden_size) = {factor:.6g}", {EMBED: {"output_factor": factor}})
    for by in (-1, 1):
        yield Variant("embed-row", f"row id {by:+d} is read for id", {EMBED: {"shift": by}})
    for n in (n for n in scope.degrees if n <= scope.config.vocab_size):
        for row in ("first", "nearest"):
            detail = f"each of {n} ranks adds the {row} row of its part for ids of other ranks"
            yield Variant("embed-row", detail, {EMBED: {"unmasked": (n, row)}})
