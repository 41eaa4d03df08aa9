"""Ids, rendered conversations, BOS and end tokens against transformers and llama.cpp: a difference has its name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from karat.check.model.checked import open_model
from karat.check.record import llamacpp
from karat.check.record.llamacpp import LlamaTokens, llamacpp_tokens
from karat.check.session import agreement
from karat.check.session.session import PROMPT
from karat.check.session.stage import Stage
from karat.check.stages import tokens
from karat.check.stages.tokens import check_tokens
from karat.checkpoint.gguf import read_header
from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.models.opening import open_model as open_checkpoint
from karat.text import Tokenizer

needs_llama = pytest.mark.skipif(not llamacpp.is_installed(), reason="llama-cpp-python is not installed")
needs_hf = pytest.mark.skipif(not agreement.has_transformers(), reason="transformers is not installed")
Ids = Sequence[int]


class Theirs:
    """Karat's own tokenizer in the place of transformers', with a fault."""

    def __init__(self, encode: Callable[[list[int]], Ids] = lambda ids: ids, **roles: int) -> None:
        self.own = Tokenizer.from_folder(embedded_model_path())
        self.encode = encode
        self.bos_token_id = roles.get("bos")
        self.eos_token_id = roles.get("eos", self.own.eos_token_id)

    def __call__(self, text: str) -> dict[str, Ids]:
        return {"input_ids": self.encode(self.own.encode(text))}


def against(monkeypatch: pytest.MonkeyPatch, theirs: Theirs, **changes: Any) -> Stage:
    def chat(_: Any, messages: Any) -> tuple[str, list[int]]:
        return theirs.own.render_chat(messages), list(theirs.encode(theirs.own.encode_chat(messages)))

    monkeypatch.setattr(agreement, "hf_tokenizer", lambda _: theirs)
    monkeypatch.setattr(agreement, "hf_chat", changes.get("chat", chat))
    monkeypatch.setattr(agreement, "hf_end_ids", lambda _: changes.get("ends", frozenset({0, 2})))
    model = open_model(None)
    return check_tokens(model, Tokenizer.from_folder(model.path), PROMPT, with_hf=True)


def names(stage: Stage) -> set[str]:
    return {name for bugs in stage.facts["bugs"] for name in bugs}


def test_the_same_on_both_sides_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = against(monkeypatch, Theirs())
    assert stage.verdict == "exact"
    assert any("against transformers: the ids of 7 texts, 3 conversations" in line for line in stage.lines)


def test_a_difference_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(ids: list[int]) -> list[int]:
        return [piece for i in ids for piece in ([31, 32] if i == 1 else [i])]

    def last_dropped(ids: list[int]) -> list[int]:
        return ids[:-1]

    def other_text(_: Any, messages: Any) -> tuple[str, list[int]]:
        return "User: " + messages[0]["content"], [5]

    for theirs, changes, expected in (
        (Theirs(lambda ids: [0, *ids]), {}, {"bos"}),
        (Theirs(split), {}, {"special-tokens"}),
        (Theirs(last_dropped), {}, set()),
        (Theirs(), {"chat": other_text}, {"template"}),
        (Theirs(eos=0), {}, {"eos"}),
        (Theirs(), {"ends": frozenset({0, 2, 17})}, {"eos"}),
    ):
        stage = against(monkeypatch, theirs, **changes)
        assert stage.verdict == "bug" and names(stage) == expected, stage.facts
    unnamed = against(monkeypatch, Theirs(last_dropped))
    assert unnamed.lines[0].startswith("unexplained token ids: plain: from token 10 on [")


@needs_hf
def test_transformers_agrees_about_trained_models(data_dir: Path) -> None:
    for folder in (embedded_model_path(), data_dir / "checkpoint", data_dir / "stories260k"):
        stage = check_tokens(open_model(str(folder)), Tokenizer.from_folder(folder), PROMPT, with_hf=True)
        assert stage.verdict == "exact", stage.lines
        assert any(line.startswith("against transformers") for line in stage.lines)


@needs_llama
def test_llama_cpp_agrees_about_a_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gguf"
    convert(open_checkpoint(embedded_model_path()), path, MIXES["Q8_0"])
    model = open_model(str(path))
    tokenizer = Tokenizer.of(model.checkpoint)
    stage = check_tokens(model, tokenizer, PROMPT, with_hf=False, with_llamacpp=True)
    assert stage.verdict == "exact", stage.lines
    assert any("against llama.cpp: the ids of 7 texts and 3 rendered prompts" in line for line in stage.lines)
    right = llamacpp_tokens(path, {"plain": "Once"}, {})
    assert right.ends == {0, 2} and right.eos == 2 and list(right.ids["plain"]) == tokenizer.encode("Once")

    def other(*_: object) -> LlamaTokens:
        return LlamaTokens({"plain": [0, *tokenizer.encode(tokens.SHAPES["plain"])]}, None, 0, right.ends | {9})

    monkeypatch.setattr(tokens, "llamacpp_tokens", other)
    wrong = check_tokens(model, tokenizer, PROMPT, with_hf=False, with_llamacpp=True)
    assert names(wrong) == {"bos", "eos"} and "llama.cpp alone ends an answer at 9" in "\n".join(wrong.facts["notes"])


@needs_llama
def test_llama_cpp_reads_the_roles_of_released_vocabularies(data_dir: Path) -> None:
    for name in ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"):
        path = data_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        ours = Tokenizer.from_gguf(read_header(path).metadata, path)
        theirs = llamacpp_tokens(path, {"x": "Hello"}, {"rendered": "Hello"})
        assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos, theirs.eos)
        assert ours.eos_token_id in theirs.ends and list(theirs.ids["x"]) == ours.encode("Hello")
        assert list(theirs.ids["rendered"]) == ours.encode("Hello", add_special_tokens=False)
