"""benchmarks.batch_memory: every line is answered and written, and the memory is noted at every tenth."""

import json
from pathlib import Path

import pytest

from benchmarks import batch_memory


def test_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch_memory.main(["-n", "200", "--folder", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lines"] == 200 and len(told["megabytes"]["at_tenths"]) == 10
    assert told["megabytes"]["before"] > 10 and told["lines_per_s"] > 0
    assert not list(tmp_path.iterdir())
