"""Searches for names are bounded in seconds; in tests of processor time, as the machine may be busy."""

import time
from types import SimpleNamespace

import pytest

from karat.check.diagnosis import budget, explain


@pytest.fixture(autouse=True)
def processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=time.process_time)
    monkeypatch.setattr(budget, "time", clock)
    monkeypatch.setattr(explain, "time", clock)
