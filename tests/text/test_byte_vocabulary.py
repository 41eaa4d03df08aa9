"""Folders with vocab.json and merges.txt, or with tekken.json: as transformers and tiktoken cut the same texts."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.gguf import read_header
from karat.errors import NoTokenizerError, TokenizerError
from karat.models.families import COMPOSITES, FAMILIES
from karat.text import Tokenizer
from karat.text.byte_vocabulary import BYTE_OF_CHAR

TEXTS = st.text(max_size=40) | st.text("aA1 \n\t'.,!sté你好😀", max_size=40)


def write_merges(folder: Path, source: Path, tokenizer_class: str) -> Path:
    """vocab.json, merges.txt and tokenizer_config.json of one of llama.cpp's files of vocabularies."""
    values = read_header(source).metadata.values
    tokens, merges = (list(values[f"tokenizer.ggml.{key}"].each_string()) for key in ("tokens", "merges"))
    kinds = values["tokenizer.ggml.token_type"].numbers().tolist()
    plain = {token: index for index, token in enumerate(tokens) if kinds[index] == 1}
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(plain))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    added = {
        str(i): {"content": t, "special": True} for i, t in enumerate(tokens) if kinds[i] != 1 and i < len(plain) + 3
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": tokenizer_class, "added_tokens_decoder": added})
    )
    return folder


@pytest.fixture(scope="module")
def vocabulary(data_dir: Path) -> Path:
    return data_dir / "tokenizers" / "ggml-vocab-qwen2.gguf"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    return write_merges(tmp_path_factory.mktemp("qwen"), vocabulary, "Qwen2Tokenizer")


@pytest.fixture(scope="module")
def both(qwen: Path) -> tuple[Tokenizer, Any]:
    transformers = pytest.importorskip("transformers")
    return Tokenizer.from_folder(qwen), transformers.Qwen2Tokenizer.from_pretrained(qwen)


@given(text=TEXTS)
def test_merges_are_those_of_transformers(both: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = both
    ids = theirs(text, add_special_tokens=True)["input_ids"]
    assert ours.encode(text) == ids
    assert ours.decode(ids) == theirs.decode(ids)


def test_the_texts_of_llama_cpp(qwen: Path, vocabulary: Path) -> None:
    """Its test vectors of the same vocabulary."""
    place = vocabulary
    texts = place.with_suffix(".gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    expected = [[int(i) for i in line.split()] for line in place.with_suffix(".gguf.out").read_text().splitlines()]
    tokenizer = Tokenizer.from_folder(qwen)
    assert [tokenizer.encode(text) for text, _ in zip(texts, expected, strict=False)] == expected


@pytest.mark.parametrize("model_type", sorted([*FAMILIES, *COMPOSITES]))
def test_two_files_alone(tmp_path: Path, model_type: str) -> None:
    """The class follows from the model's type, as in AutoTokenizer."""
    mapping = pytest.importorskip("transformers.models.auto.tokenization_auto").TOKENIZER_MAPPING_NAMES
    # Merges whose effect is another where digits, or what follows an apostrophe or a mark, are cut otherwise.
    merges = [("2", "0"), ("20", "2"), ("202", "4"), ("'", "S"), ("n", "a"), ("¹", "à"), ("Ġ", "x")]
    letters = sorted(BYTE_OF_CHAR)
    vocab = {text: number for number, text in enumerate([*letters, *map("".join, merges), "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges))
    with pytest.raises(NoTokenizerError, match="tokenizer_class None"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    kind = mapping.get(model_type) or "none"
    if not kind.startswith(("Qwen", "GPT")):  # the type says nothing of how a text is cut
        with pytest.raises(NoTokenizerError, match="tokenizer_class None"):
            Tokenizer.from_folder(tmp_path)
        return
    theirs = getattr(pytest.importorskip("transformers"), kind)(vocab=vocab, merges=merges)
    alone = Tokenizer.from_folder(tmp_path)
    text = "It's 2024: 你好,\n  na\u0069\u0308ve \u1e9b\u0323 हिन्दी x'S"
    assert alone.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert alone.special_tokens == {
        role: token for role, token in theirs.special_tokens_map.items() if role in alone.special_tokens
    }
    assert alone.special_tokens["eos_token"] == theirs.eos_token


def test_special_tokens_of_the_class(qwen: Path) -> None:
    assert Tokenizer.from_folder(qwen).special_tokens["eos_token"] == "<|endoftext|>"


@pytest.mark.parametrize("change", [{"tokenizer_class": "BartTokenizer"}, {"add_prefix_space": True}])
def test_what_decides_nothing_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2TokenizerFast"} | change))
    with pytest.raises(NoTokenizerError, match=r"AutoTokenizer\.from_pretrained"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        ('{"a": 0}', "a", "expected two tokens"),
        ('{"a": 0}', "a b", "does not fit its vocabulary"),
        ('{"a": -1}', "", "each with an id"),
        ('{"a": "x"}', "", "each with an id"),
        ("{}", "", "has 0 tokens"),
    ],
)
def test_damaged_merges(tmp_path: Path, vocab: str, merges: str, message: str) -> None:
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_text(merges)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(tmp_path)


PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
MERGED = [b"ab", b" a", b"abc", b" ab", b"\xc3\xa9", b"bc", b"\xf0\x9f", b"  ", b"aa", b"aaa"]


def tekken(**facts: Any) -> dict[str, Any]:
    tokens = [bytes([byte]) for byte in range(256)] + MERGED
    config = {"pattern": PATTERN, "default_vocab_size": len(tokens) + 8, "default_num_special_tokens": 8}
    return {
        "config": {**config, **facts},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode()} for i, t in enumerate(tokens)],
        "special_tokens": [{"rank": i, "token_str": token, "is_control": True} for i, token in enumerate(SPECIAL)],
    }


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tekken")
    (folder / "tekken.json").write_text(json.dumps(tekken()))
    return Tokenizer.from_folder(folder)


@given(text=st.text(max_size=30) | st.text("abc é😀 1\n/", max_size=30))
def test_tekken_is_tiktokens(mistral: Tokenizer, text: str) -> None:
    """Ids of tiktoken after the special ones, and BOS before a text, as mistral-common has it."""
    tiktoken = pytest.importorskip("tiktoken")
    tokens = [bytes([byte]) for byte in range(256)] + MERGED
    theirs = tiktoken.Encoding(
        "tekken", pat_str=PATTERN, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens={}
    )
    assert mistral.encode(text) == [1, *(8 + index for index in theirs.encode_ordinary(text))]
    assert mistral.decode(mistral.encode(text)[1:]) == text


def test_special_tokens_of_tekken(mistral: Tokenizer) -> None:
    assert mistral.encode("[INST]a", add_special_tokens=False) == [3, 8 + ord("a")]
    assert mistral.special_tokens["eos_token"] == "</s>"
    assert mistral.id_to_token(7) == "<SPECIAL_7>"


@pytest.mark.parametrize(
    "facts", [{"pattern": "("}, {"default_vocab_size": 4}, {"default_num_special_tokens": -1}, {"pattern": None}]
)
def test_damaged_tekken(tmp_path: Path, facts: dict[str, Any]) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(tekken(**facts)))
    if facts == {"pattern": None}:
        (tmp_path / "tekken.json").write_text(json.dumps({**tekken(), "vocab": [{"rank": 0, "token_bytes": "?"}]}))
    with pytest.raises(TokenizerError, match="is malformed"):
        Tokenizer.from_folder(tmp_path)
