"""benchmarks.batch_files: both sides answer the same prompts, and the ratio is of their turns."""

import json

import pytest

from benchmarks import batch_files


def test_two_turns(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-n", "4", "--words", "3", "--tokens", "3", "--max-num-seqs", "2", "--repeat", "2"]
    assert batch_files.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    batch, generate = told["tokens_per_s"]["batch"], told["tokens_per_s"]["generate"]
    assert len(batch) == len(generate) == 2
    assert told["ratio"]["min"] == pytest.approx(min(a / b for a, b in zip(batch, generate, strict=True)))
