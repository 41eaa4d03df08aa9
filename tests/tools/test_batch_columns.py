"""A column of a batch is one line in karat.batch: its view, its pointer in C++ and its place in what ranks get."""

import shutil
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import karat.batch
from karat.batch import COLUMNS, GROUP_COLUMNS, ForwardBatch
from tools.batch_columns import header

CSRC = Path(__file__).resolve().parents[2] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
GOOD = {
    "token_ids": [7, 8, 9],
    "positions": [0, 1, 4],
    "query_starts": [0, 2, 3],
    "context_lens": [2, 5],
    "logit_rows": [2],
    "slots": [[8, 9, 4]],
    "block_tables": [[[2, -1], [0, 1]]],
}
# Prints every column of the numbers that it is given, a line each, by the names of the header.
PROGRAM = """
#include "plan/step_input.h"

#include <cstdio>
#include <cstdlib>

int main(int count, char** words) {
    std::vector<std::int32_t> numbers;
    for (int i = 1; i < count; ++i) numbers.push_back(std::atoi(words[i]));
    const karat::StepInput input(numbers.data(), numbers.size());
    const std::size_t tokens = input.num_tokens, seqs = input.num_seqs, bounds = seqs + 1, rows = input.num_wanted;
    const auto print = [](const char* name, const std::int32_t* values, std::size_t length) {
        std::printf("%s", name);
        for (std::size_t i = 0; i < length; ++i) std::printf(" %d", static_cast<int>(values[i]));
        std::printf("\\n");
    };
#define PRINT(name, length) print(#name, input.name, length);
    KARAT_COLUMNS(PRINT)
    for (const karat::GroupColumns& group : input.groups) {
        const std::size_t table = seqs * group.max_blocks;
#define PRINT_OF_GROUP(name, length) print(#name, group.name, length);
        KARAT_GROUP_COLUMNS(PRINT_OF_GROUP)
    }
}
"""


def with_columns(lines: str, folder: Path) -> Any:
    """karat.batch with these lines after those of the columns."""
    source = Path(karat.batch.__file__).read_text(encoding="utf-8")
    last = '    state_writes = Column("seqs", default=-1)\n'
    assert last in source
    file = folder / "batch_with_more.py"
    file.write_text(source.replace(last, last + lines), encoding="utf-8")
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_header_is_what_the_script_prints() -> None:
    stated = (CSRC / "plan" / "columns.h").read_text(encoding="utf-8")
    assert stated == header(), "run python -m tools.batch_columns > csrc/plan/columns.h, and make native"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_a_new_column_is_one_line(tmp_path: Path) -> None:
    """Whoever makes a batch may leave it out. C++ reads every column by its name, the new ones among them."""
    lines = ['    adapters = Column("seqs", default=0)\n', '    drafts = Column("rows", default=-1)\n']
    made = with_columns("".join(lines), tmp_path)
    batches = [made.ForwardBatch.of(4, **GOOD), made.ForwardBatch.of(4, **GOOD, adapters=[5, 6], drafts=[2])]
    names = [column.name for column in made.COLUMNS]
    assert names == [*(column.name for column in COLUMNS), "adapters", "drafts"]
    assert [[*batch.adapters, *batch.drafts] for batch in batches] == [[0, 0, -1], [5, 6, 2]]
    program, room = tmp_path / "program", tmp_path / "plan"
    room.mkdir()
    (room / "columns.h").write_text(header(made.COLUMNS, made.GROUP_COLUMNS), encoding="utf-8")
    for file in ("step_input.h", "step_input.cpp", "require.h"):
        shutil.copy(CSRC / "plan" / file, room)
    (tmp_path / "program.cpp").write_text(PROGRAM, encoding="utf-8")
    folders = [f"-I{tmp_path}", f"-I{CSRC}"]
    sources = [tmp_path / "program.cpp", room / "step_input.cpp"]
    subprocess.run([COMPILER, "-std=c++20", "-O0", *folders, *sources, "-o", program], check=True)
    for batch in batches:
        batch.validate(cached_lens=[0, 4], caches=[(12, None)], vocab_size=10)
        numbers = map(str, batch.flat.tolist())
        done = subprocess.run([program, *numbers], capture_output=True, text=True, check=True)
        columns = {column.name: getattr(batch, column.name) for column in made.COLUMNS}
        columns |= {column.name: getattr(batch, column.name)(0).reshape(-1) for column in made.GROUP_COLUMNS}
        found = {line.split()[0]: np.array(line.split()[1:], np.int32) for line in done.stdout.splitlines()}
        assert list(found) == list(columns)
        for each, values in columns.items():
            assert np.array_equal(found[each], values), each


def test_every_column_is_described_and_filled() -> None:
    """The docstring says what a column is; the engine fills it."""
    filling = (Path(karat.batch.__file__).parent / "engine/scheduling/batch_building.py").read_text(encoding="utf-8")
    for column in (*COLUMNS, *GROUP_COLUMNS):
        assert f"    {column.name} " in (ForwardBatch.__doc__ or "")
        assert f'columns["{column.name}"]' in filling
