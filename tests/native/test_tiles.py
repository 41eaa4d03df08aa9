"""The decision whether Intel's tiles may be used (csrc/runtime/tiles.cpp), for machines that are not this one."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_tiles_are_asked_for_in_order_and_a_refusal_has_its_reason(tmp_path: Path) -> None:
    assert COMPILER is not None
    program = tmp_path / "tiles_test"
    sources = [HERE / "tiles_test.cpp", CSRC / "runtime" / "tiles.cpp"]
    command = [COMPILER, "-std=c++20", "-O0", f"-I{CSRC}", f"-I{HERE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
