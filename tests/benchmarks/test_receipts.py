"""benchmarks.receipts on the embedded model: every receipt that it times is confirmed."""

import json

import pytest

from benchmarks import receipts


def test_it_times_answers_and_their_verification(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["receipts", "--lengths", "4,9", "--processor-time"])
    receipts.main()
    told = json.loads(capsys.readouterr().out)
    assert [entry["tokens"] for entry in told["verify"]] == [4, 9] and told["hash_s"] > 0
    assert all(entry["answer_s"] > 0 and entry["verify_s"] > 0 for entry in told["verify"])
