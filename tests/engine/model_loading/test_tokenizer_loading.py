"""The tokenizer is made while weights load without the interpreter's lock, and its faults are told early."""

import shutil
from pathlib import Path

import pytest

from karat.config import embedded_model_path
from karat.engine.llm import LLM
from karat.engine.model_loading.tokenizer_loading import TokenizerLoading
from karat.errors import TokenizerError
from karat.models.opening import open_model
from karat.models.registry import read_config
from karat.ops.native import NativeOps, unavailable_reason


@pytest.mark.skipif(unavailable_reason() is not None, reason="the reference executor loads nothing later")
def test_it_starts_when_all_weights_are_under_way_and_none_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    start, pack = TokenizerLoading.start, NativeOps.load_pending
    monkeypatch.setattr(TokenizerLoading, "start", lambda self: (events.append("start"), start(self))[1])
    monkeypatch.setattr(NativeOps, "load_pending", lambda self, **how: (events.append("pack"), pack(self, **how))[1])
    LLM(max_model_len=32)
    assert events[:2] == ["start", "pack"]


def test_a_fault_is_raised_once_it_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedded_model_path(), folder)
    (folder / "tokenizer.json").write_text("{")
    checkpoint = open_model(folder)
    side = TokenizerLoading(checkpoint, read_config(checkpoint.config), None, "auto")
    side.raise_fault()  # it has not begun
    for _ in range(2):
        with pytest.raises(TokenizerError):
            side.result()
        with pytest.raises(TokenizerError):
            side.raise_fault()
        assert not side.start()
    with pytest.raises(TokenizerError):
        LLM(folder, max_model_len=32)
