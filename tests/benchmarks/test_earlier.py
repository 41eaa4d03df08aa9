"""A Karat of another Python as a side: here that of this one. A Python that is none, and one that ends, are named."""

import sys
from pathlib import Path

import pytest

from benchmarks.earlier import Earlier
from karat.bench.shapes import write_shape
from karat.errors import ExecutorError
from karat.ops.native import supported_isas, unavailable_reason

GIVEN = {"num_threads": 1, "longest": 64, "batch": 2}


@pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor")
@pytest.mark.parametrize("isa", ["generic", "a build that came later"])
def test_it_computes_what_it_is_asked_for(tmp_path: Path, isa: str) -> None:
    model = tmp_path / "m.gguf"
    write_shape(model, "tiny", "q4_0")
    side = Earlier(sys.executable, {**GIVEN, "model": str(model), "isa": isa})
    try:
        assert side.name == f"{isa} before" and side.version
        assert side.details["isa"] == ("generic" if isa == "generic" else supported_isas()[-1])
        assert side.prefill([1, 2, 3]).seconds > 0
        side.start([[1, 2, 3], [4, 5, 6]], 2)
        assert len(side.steps(2)) == 2
        side.stop()
    finally:
        side.close()


def test_a_python_that_is_none(tmp_path: Path) -> None:
    given = {**GIVEN, "model": str(tmp_path / "none.gguf"), "isa": "generic"}
    with pytest.raises(ExecutorError, match="name a Python"):
        Earlier(str(tmp_path / "python"), given)
    with pytest.raises(ExecutorError, match="ended with code 1"):
        Earlier("false", given)
