"""A model without a tokenizer is checked on ids drawn at random; what needs text is left out, and says why."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from karat.check.model.checked import open_model
from karat.check.record import llamacpp
from karat.check.session.session import CheckPlan, CheckSession, tokenizer_of
from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.errors import TokenizerError
from tests.cli.conftest import Karat

LEFT_OUT = ("tokens", "story")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded model's numbers."""
    path = tmp_path / "numbers"
    path.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(embedded_model_path() / name, path / name)
    return path


def gguf_without(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def nothing(*args: Any) -> Any:
        return [], []

    monkeypatch.setattr("karat.convert.conversion.tokenizer_pairs", nothing)
    convert(open_model(None).checkpoint, path, MIXES["Q8_0"])
    return path


@pytest.mark.slow
def test_everything_but_text_is_checked(folder: Path, karat_here: Karat) -> None:
    args = ("check", str(folder), "--against", "reference", "--tokens", "9", "--seed", "5", "--json")
    done = karat_here(*args)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["verdict"], facts["ids_from"], facts["tokens"]) == (0, "numerics", "seed", 9)
    verdicts = {stage["name"]: stage["verdict"] for stage in facts["stages"]}
    assert {name for name, verdict in verdicts.items() if verdict == "skipped"} == set(LEFT_OUT)
    assert verdicts["weights"] == verdicts["generation"] == verdicts["invariance"] == "exact"
    for stage in facts["stages"]:
        assert (stage["lines"][0].startswith(f"not run: {folder} has no tokenizer")) == (stage["name"] in LEFT_OUT)
    assert facts["stages"][0]["lines"][1] == (
        "the other stages compute 9 token ids drawn at random (--seed 5 draws them again)"
    )
    assert "so 9 token ids were drawn with --seed 5" in done.stderr


def test_the_seed_says_which_ids(folder: Path) -> None:
    model = open_model(str(folder))

    def ids(**options: Any) -> tuple[int, ...]:
        return CheckSession(CheckPlan(model=model, **{"num_tokens": 30, "seed": 1} | options)).ids

    assert ids() == ids() and len(ids()) == 30 and max(ids()) < model.config.vocab_size
    assert ids() != ids(seed=2) and len(set(ids())) > 15
    assert len(ids(num_tokens=10**6)) == model.config.max_position_embeddings


def test_a_text_cannot_be_computed(folder: Path, karat_here: Karat) -> None:
    done = karat_here("check", str(folder), "--prompt", "Once", "--stages", "layers")
    assert done.returncode == 2 and "the prompt needs a tokenizer" in done.stderr and done.stdout == ""


def test_a_broken_tokenizer_is_not_taken_for_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="corrupt or of an unknown kind"):
        tokenizer_of(open_model(str(folder)).checkpoint, 4096)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt"])
def test_a_kind_that_is_not_read_is_none(name: str, folder: Path) -> None:
    (folder / name).write_bytes(b"x")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    tokenizer, why = tokenizer_of(open_model(str(folder)).checkpoint, 4096)
    assert why is not None and name in why and tokenizer.vocab_size == 4096


def test_a_gguf_file_of_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, karat_here: Karat) -> None:
    """llama.cpp, which loads none without a vocabulary, is left out unless it was asked for."""
    path = gguf_without(tmp_path / "x.gguf", monkeypatch)
    monkeypatch.setattr(llamacpp, "is_installed", lambda: True)
    done = karat_here("check", str(path), "--tokens", "9", "--stages", "tokens,layers,logits", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["verdict"]) == (0, "quantisation")
    assert [stage["name"] for stage in facts["stages"]] == ["tokens", "layers", "logits"]
    assert "has no tokenizer.ggml.model" in facts["stages"][0]["lines"][0]


@pytest.mark.slow
def test_ranks_and_the_same_bits_need_no_tokenizer(folder: Path, karat_here: Karat) -> None:
    done = karat_here("check", str(folder), "--tensor-parallel-size", "2", "--tokens", "8", "--executor", "reference")
    assert done.returncode == 0 and done.stdout.endswith(("verdict: exact\n", "verdict: numerics\n"))
