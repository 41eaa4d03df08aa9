"""Mistakes about tokens are named from the ids: each is made here without the code that names it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from karat.check.model.checked import open_model
from karat.check.text.prompt import findings_of_model, token_findings, token_lines
from karat.check.trace.format import Trace, make_info
from karat.text import Tokenizer
from tests.cli import alphabet_model

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]
END = 258


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The alphabet model with a BOS that the tokenizer adds."""
    folder = alphabet_model.write(tmp_path_factory.mktemp("models") / "bos")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)])
    backend.save(str(folder / "tokenizer.json"))
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(config.replace("{", '{"bos_token": "<|endoftext|>", ', 1))
    return folder


def _found(folder: Path, ids: list[int], arrays: Any = None, **info: Any) -> list[tuple[tuple[str, ...], str]]:
    trace = Trace(make_info(ids, **info), arrays or {})
    findings = token_findings(folder, Tokenizer.from_folder(folder), frozenset({END}), trace)
    assert len(token_lines(findings)) >= len(findings)
    return [(finding.bugs, finding.where) for finding in findings]


def _ids(text: str) -> list[int]:
    """The alphabet model has a token a byte, in the order of the byte alphabet; and special tokens."""
    names = sorted(__import__("tokenizers").pre_tokenizers.ByteLevel.alphabet())
    special = {name: 256 + i for i, name in enumerate(alphabet_model.SPECIAL)}
    out = []
    while text:
        token = next((s for s in special if text.startswith(s)), None)
        out.append(special[token] if token else names.index({" ": "Ġ", "\n": "Ċ"}.get(text[0], text[0])))
        text = text[len(token) if token else 1 :]
    return out


def _plain(text: str) -> list[int]:
    return [i for char in text for i in _ids(char)]


RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("made", "bugs"),
    [
        ([256, *_ids("abc")], None),
        (_ids("abc"), ("bos",)),
        ([256, 256, *_ids("abc")], ("bos",)),
        (_ids("<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"), ("template",)),
        ([256, *_ids("abd")], ()),
        ([256, *_ids("abcd")], ()),
    ],
)
def test_mistakes_of_a_text(made: list[int], bugs: tuple[str, ...] | None, folder: Path) -> None:
    found = _found(folder, made, prompt="abc")
    assert [names for names, _ in found] == ([] if bugs is None else [bugs])


@pytest.mark.parametrize(
    ("made", "bugs"),
    [
        (_ids(RENDERED), None),
        ([256, *_ids(RENDERED)], ("bos",)),
        (_plain(RENDERED), ("special-tokens",)),
        (_ids(RENDERED.removesuffix("<|im_start|>assistant\n")), ("template",)),
        (_ids(RENDERED.replace("Be brief.", "You are a helpful assistant.")), ("template",)),
        (_ids(RENDERED.partition("<|im_end|>\n")[2]), ("template",)),
        ([256, *_ids("Be brief.\nHi <|im_end|>")], ("template",)),
        (_ids(RENDERED.replace("user", "usar")), ()),
    ],
)
def test_mistakes_of_a_conversation(made: list[int], bugs: tuple[str, ...] | None, folder: Path) -> None:
    found = _found(folder, made, messages=CHAT)
    assert [names for names, _ in found] == ([] if bugs is None else [bugs])


def test_a_text_that_runs_on_behind_an_end_token(folder: Path) -> None:
    ids = [256, *_ids("ab"), END, *_ids("c")]
    assert [names for names, _ in _found(folder, ids, generated=tuple(ids[-2:]))] == [("eos",)]
    assert not _found(folder, ids[:-1], generated=tuple(ids[-2:-1]))
    assert not _found(folder, ids, generated=tuple(ids[-2:]), sampling={"ignore_eos": True})
    ((names, where),) = _found(folder, ids, generated=(1, 2))
    assert names == () and "not the last token_ids" in where


def test_greedy_takes_the_likeliest_and_the_lowest_of_equals(folder: Path) -> None:
    ids = [5, 6, 7, 8]
    logits = np.zeros((4, 259), np.float32)
    logits[1, [7, 9]] = 1.0
    logits[2, 8] = 2.0
    options = {"generated": (7, 8), "sampling": {"temperature": 0}}
    assert not _found(folder, ids, {"lm_head": logits}, **options)
    logits[2, 3] = 2.0  # an equal with a lower id
    ((names, where),) = _found(folder, ids, {"lm_head": logits}, **options)
    assert names == ("greedy",) and "generated token 1 is 8" in where
    assert not _found(folder, ids, {"lm_head": logits}, generated=(7, 8), sampling={"temperature": 0.7})
    last = {"lm_head": logits[2:]}
    assert [n for n, _ in _found(folder, ids, last, rows={"lm_head": (2, 3)}, **options)] == [("greedy",)]
    logits[2, 3], logits[3, 2] = 0, 1
    assert not _found(folder, ids, {"lm_head": logits}, **options | {"generated": (7, 8, 2)})  # 2 was not computed
    ((names, where),) = _found(folder, ids, {"lm_head": logits}, **options | {"generated": (7, 8, 4)})
    assert names == ("greedy",) and "generated token 2 is 4" in where


def test_the_choice_of_tokens_needs_no_tokenizer(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model, ignore=shutil.ignore_patterns("tokenizer*"))
    logits = np.eye(3, 259, dtype=np.float32)
    options: Any = {"generated": (1, 8), "sampling": {"temperature": 0}}
    known = open_model(str(model))
    (finding,) = findings_of_model(known, Trace(make_info([5, 1, 8], **options), {"lm_head": logits}))
    assert finding.bugs == ("greedy",) and "generated token 0 is 1" in finding.where
    of_two = make_info([5, 1, 8], sequences=[0, 1, 0], **options)
    assert findings_of_model(known, Trace(of_two, {"lm_head": logits})) == []
