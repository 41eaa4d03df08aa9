"""Every part of a fingerprint changes with what it stands for, and with nothing else."""

import gc
import hashlib
import re
import time
import weakref
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import karat
from karat import LLM
from karat.checkpoint import Weight
from karat.engine.model_running import Preparation
from karat.errors import UsageError
from karat.receipts import Fingerprint, fingerprint
from karat.receipts.fingerprint import _Pace, merkle_root
from tests.engine.tiny import CHATML, GREEDY, write_model

ROOT = Path(__file__).resolve().parents[2]

SHAPE = {"hidden_size": 72, "num_attention_heads": 12, "num_key_value_heads": 6, "intermediate_size": 64}


def made(folder: Path, options: dict[str, Any] | None = None, **changes: Any) -> Fingerprint:
    folder.mkdir()
    with LLM(write_model(folder, **SHAPE | changes), **(options or {})) as llm:
        return llm.fingerprint()


@pytest.fixture
def plain(tmp_path: Path) -> Fingerprint:
    return made(tmp_path / "plain")


@pytest.mark.parametrize(
    ("parts", "options", "changes"),
    [
        ({"weights"}, {}, {"seed": 1}),
        ({"configuration"}, {}, {"rms_norm_eps": 1e-5}),
        ({"configuration"}, {}, {"rope_theta": 10001.0}),
        ({"configuration"}, {}, {"eos_token_id": 3}),
        ({"configuration"}, {}, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ({"tokenizer"}, {}, {"add_bos": True}),
        ({"tokenizer"}, {}, {"eos_token": "<|im_end|>"}),
        ({"chat_template"}, {}, {"chat_template": CHATML + " "}),
        ({"chat_template"}, {}, {"chat_template": None}),
        ({"weights", "activations", "numeric_contract"}, {"quantize": "q8_0"}, {}),
        ({"executor", "kv_dtype"}, {"executor": "reference"}, {}),
        ({"kv_dtype"}, {"kv_dtype": "float32"}, {}),
    ],
)
def test_a_change_is_found_in_its_part(
    plain: Fingerprint, tmp_path: Path, parts: set[str], options: dict[str, Any], changes: dict[str, Any]
) -> None:
    if "executor" in parts:
        parts = {"executor"}
        options = options | {"kv_dtype": plain.kv_dtype, "dtype": plain.dtype}
    other = made(tmp_path / "other", options, **changes)
    assert set(plain.differing(other)) == parts
    assert plain.digest != other.digest


@pytest.mark.parametrize("options", [{"threads": 1}, {"tensor_parallel_size": 2}, {"max_num_seqs": 1, "seed": 3}])
def test_what_changes_no_answer_is_no_part(plain: Fingerprint, tmp_path: Path, options: dict[str, Any]) -> None:
    assert made(tmp_path / "other", options) == plain


def test_instruction_sets_are_no_part(plain: Fingerprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARAT_ISA", "generic")
    assert made(tmp_path / "other") == plain


def test_it_is_made_beside_the_work_and_once(tmp_path: Path) -> None:
    with LLM(write_model(tmp_path)) as llm:
        llm.generate("a", GREEDY)
        assert llm.fingerprint() is llm.fingerprint()
        gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None  # no fingerprint keeps a model


def test_who_waits_does_not_wait_for_pauses(
    plain: Fingerprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_PAUSE", 1e9)  # after the first piece, some months
    (folder := tmp_path / "other").mkdir()
    with LLM(write_model(folder, **SHAPE)) as llm:
        llm._fingerprinting._pace.is_idle = lambda: False
        begun = llm._fingerprinting.begin()
        with pytest.raises(TimeoutError):
            begun.result(0.5)
        assert llm._fingerprinting.wanted() is begun
        assert begun.result(60) == plain


def test_no_pause_is_made_for_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are digested before the model is loaded, and weights come next."""
    calls, texts = Mock(), fingerprint._texts
    monkeypatch.setattr(fingerprint, "_texts", Mock(side_effect=lambda stored: (calls.texts(), texts(stored))[1]))
    monkeypatch.setattr(_Pace, "begin", calls.begin)
    monkeypatch.setattr(_Pace, "pause", calls.pause)
    with LLM(write_model(tmp_path)) as llm:
        llm.fingerprint()
    assert [name for name, *_ in calls.mock_calls][:3] == ["texts", "begin", "pause"]


def test_the_end_does_not_wait_for_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_PAUSE", 1e9)
    with LLM(write_model(tmp_path)) as llm:
        llm._fingerprinting._pace.is_idle = lambda: False
        begun = llm._fingerprinting.begin()
        llm.close()
        with pytest.raises(UsageError, match="closed before its weights were hashed"):
            begun.result(60)


def test_an_llm_is_hashed_without_pauses_while_nobody_asks(tmp_path: Path) -> None:
    """As after an interrupted answer with a receipt."""
    with LLM(write_model(tmp_path)) as llm:
        is_idle, stream = llm._fingerprinting._pace.is_idle, llm.stream("a", GREEDY)
        before = is_idle()
        next(stream)
        beside = is_idle()
        list(stream)
        assert (before, beside, is_idle()) == (True, False, True)


def test_pauses_end_while_the_model_is_idle_and_come_back(
    plain: Fingerprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_PAUSE", 1e9)
    monkeypatch.setattr(fingerprint, "_PIECE", 1 << 10)
    asked = Mock(side_effect=chain(repeat(True, 10), repeat(False)))
    (folder := tmp_path / "other").mkdir()
    with LLM(write_model(folder, **SHAPE)) as llm:
        llm._fingerprinting._pace.is_idle = asked
        begun = llm._fingerprinting.begin()
        while asked.call_count <= 10:
            time.sleep(0.01)
        assert not begun.done()  # there is more than ten pieces of weights
        asked.side_effect = lambda: True
        assert llm._fingerprinting.wanted().result(60) == plain


def test_a_pause_is_nineteen_times_as_long_as_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, now = _Pace(), [0.0]

    def wait(seconds: float) -> bool:
        now[0] += seconds
        return pace.is_wanted.is_set()

    def paused() -> float:
        before = now[0]
        pace.pause()
        return now[0] - before

    monkeypatch.setattr(pace.is_wanted, "wait", wait)
    monkeypatch.setattr(fingerprint.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(fingerprint.time, "thread_time", Mock(side_effect=[7.0, 7.25, 7.75, 8.75, 9.0, 9.25]))
    pace.begin()
    assert paused() == pytest.approx(19 * 0.25) and paused() == pytest.approx(19 * 0.5)
    pace.is_idle = lambda: now[0] > 20
    assert paused() == pytest.approx(20 - 19 * 0.75, abs=0.1)
    assert paused() == 0
    pace.is_idle = lambda: False
    pace.is_wanted.set()
    assert paused() < 0.1


def test_the_tree_is_that_of_rfc_9162() -> None:
    def leaf(name: str, header: str) -> bytes:
        head = hashlib.sha256(header.encode()).digest()
        return hashlib.sha256(b"\0" + head + stored[name].data.tobytes()).digest()

    def node(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(b"\1" + left + right).digest()

    values = {name: np.arange(2, dtype=np.float32) + number for number, name in enumerate("cab")}
    stored = {name: Weight(name, "F32", (2,), array.view(np.uint8), Path("f")) for name, array in values.items()}
    a, b, c = (leaf(name, f'{{"name":"{name}","shape":[2],"type":"F32"}}') for name in "abc")
    assert merkle_root(stored, Preparation(None)) == node(node(a, b), c).hex()


def test_the_constant_is_the_documents_version() -> None:
    text = (ROOT / "docs" / "determinism.md").read_text(encoding="utf-8")
    stated = re.search(r"\*\*version (\d+)\*\*", text)
    assert stated and int(stated[1]) == karat.NUMERIC_CONTRACT
    assert max(map(int, re.findall(r"^\| (\d+) \|", text, re.MULTILINE))) == karat.NUMERIC_CONTRACT
