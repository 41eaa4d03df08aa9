"""Prints csrc/plan/columns.h, the columns of a batch as the kernels' plan reads them, made from karat.batch.

Use: python -m tools.batch_columns > csrc/plan/columns.h
"""

import sys
from collections.abc import Iterable

from karat.batch import COLUMNS, GROUP_COLUMNS, AnyColumn

HEAD = """\
// The columns of a batch, in order. `python -m tools.batch_columns` makes this file of karat.batch.
#pragma once

// X(name, length)
"""


def header(columns: Iterable[AnyColumn] = COLUMNS, group_columns: Iterable[AnyColumn] = GROUP_COLUMNS) -> str:
    """The whole file."""
    own, of_groups = (_list(name, each) for name, each in (("COLUMNS", columns), ("GROUP_COLUMNS", group_columns)))
    return f"{HEAD}{own}// Those of each cache group.\n{of_groups}"


def _list(name: str, columns: Iterable[AnyColumn]) -> str:
    lines = [f"#define KARAT_{name}(X)", *(f"    X({column.name}, {column.length})" for column in columns)]
    width = max(map(len, lines[:-1]))
    return " \\\n".join([*(line.ljust(width) for line in lines[:-1]), lines[-1]]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(header())
