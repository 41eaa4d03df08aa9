"""benchmarks.structured on the embedded model: it counts the steps in which all decode, and times both kinds."""

import json
from typing import Any

import pytest

from benchmarks import structured
from karat.config import embedded_model_path


def test_it_measures_both_kinds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["structured", str(embedded_model_path()), "--batch", "2", "--tokens", "6", "--repeat", "2"]
    monkeypatch.setattr("sys.argv", arguments)
    for name in ("push", "fitting"):
        monkeypatch.setattr(structured.Form, name, getattr(structured.Form, name))  # put back at the end
    structured.main()
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["steps"]["free"] == told["steps"]["formed"] == 2 * 5, "the first token of each comes with its prompt"
    assert all(told[name] > 0 for name in ("grammar_ms", "formed_ms", "free_ms"))
