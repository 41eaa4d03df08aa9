"""benchmarks.batch_files: both sides answer the same prompts, and the ratios are of their turns."""

import json

import pytest

from benchmarks import batch_files


def test_two_turns(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-n", "4", "--words", "3", "--tokens", "3", "--max-num-seqs", "2", "--repeat", "2"]
    assert batch_files.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    batch, generate = told["batch"], told["generate"]
    assert len(batch) == len(generate) == 2 and all(turn["steps"] > 0 for turn in batch + generate)
    for name in ("seconds", "processor_s"):
        ratios = [plain[name] / ours[name] for plain, ours in zip(generate, batch, strict=True)]
        assert told["ratio"][name]["min"] == pytest.approx(min(ratios))
    assert all(turn["own_s"] < turn["processor_s"] for turn in batch)
