"""A folder with only a tokenizer.model: the pieces of SentencePiece, read without its library."""

import json
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.gguf import read_header
from karat.convert.tokenizer import tokenizer_pairs
from karat.errors import NoTokenizerError, TokenizerError
from karat.models.registry import read_config
from karat.text import Tokenizer
from karat.text.sentencepiece_model import PieceModel
from karat.text.tokenizer_files import read_tokenizer_files
from tests.engine.tiny import CONFIG


def varint(value: int) -> bytes:
    value %= 1 << 64
    text = b""
    while value >= 0x80:
        text, value = text + bytes([value & 0x7F | 0x80]), value >> 7
    return text + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(token: str, score: float, kind: int) -> bytes:
    return field(1, field(1, token.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, kind))


def written(pieces: dict[str, tuple[float, int]], *, kind: int = 2, **normalizer: int) -> bytes:
    """A tokenizer.model with an identity normalizer that keeps spaces."""
    keys = {"charsmap": 2, "prefix": 3, "strip": 4}
    values: dict[str, int] = {"strip": 0, **normalizer}
    body = b"".join(field(keys[name], value) for name, value in values.items())
    trainer = field(3, kind) + field(43, -1)
    return b"".join(piece(t, *facts) for t, facts in pieces.items()) + field(2, trainer) + field(3, body)


SPECIAL = {"<unk>": (0.0, 2), "<s>": (0.0, 3), "</s>": (0.0, 3)}
SCORES = {"▁": -9.0, "a": -10.0, "b": -11.0, "ab": 0.0, "ba": 0.0, "▁a": -1.0}
PIECES = {**SPECIAL, **{token: (score, 1) for token, score in SCORES.items()}}


def loaded(folder: Path, data: bytes, config: Any = None) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(data)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


def test_llama_2_is_that_of_its_gguf_file(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "tokenizers"
    shutil.copy(folder / "llama2-sentencepiece" / "tokenizer.model", tmp_path)
    ours = Tokenizer.from_folder(tmp_path)
    path = folder / "ggml-vocab-llama-spm.gguf"
    theirs = Tokenizer.from_gguf(read_header(path).metadata, path)
    assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_size) == (1, 2, 32000)
    assert ours.special_ids == theirs.special_ids

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text("ab ▁<s>/x", max_size=40))
    def same(text: str) -> None:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))

    same()


def test_ties_added_tokens_and_the_frame(tmp_path: Path) -> None:
    added = {"content": "<new>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    tokenizer = loaded(
        tmp_path,
        written(PIECES),
        {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True, "added_tokens_decoder": {"9": added}},
    )
    names = [tokenizer.id_to_token(i) for i in tokenizer.encode("aba<new>bab")]
    assert names == ["<s>", "▁", "ab", "a", "<new>", "▁", "ba", "b", "</s>"]
    assert tokenizer.encode("a") == [1, 8, 2]
    with pytest.raises(TokenizerError, match="pieces whose scores tie"):
        tokenizer_pairs(read_tokenizer_files(tmp_path), read_config(CONFIG))
    without = loaded(tmp_path, written(PIECES), {"add_bos_token": False})
    assert without.encode("a") == [8]
    assert loaded(tmp_path, written(PIECES, prefix=0), {}).encode("a") == [1, 4]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", TokenizerError, "has 0 pieces"),
        (b"\x0a\xff", TokenizerError, "is damaged"),
        (b"\x0f", TokenizerError, "is damaged: a field of wire type 7"),
        (field(1, field(1, 1 << 40)), TokenizerError, "is damaged: an integer where a text"),
        (b"\xff" * 20, TokenizerError, "is damaged"),
        (written(PIECES, kind=1), NoTokenizerError, "is no BPE"),
        (written(PIECES, strip=1), TokenizerError, "changes texts before it cuts them"),
        (written(PIECES) + piece("a", 0.0, 1), TokenizerError, "has the piece 'a' twice"),
        (written(PIECES) + piece("c", float("nan"), 1), TokenizerError, "a score that is no number"),
        (written({"a": (0.0, 1), "▁": (-1.0, 1)}), TokenizerError, "text without a token would be lost"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        loaded(tmp_path, data)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        NoTokenizerError, match=r"has tokenizer\.model, a SentencePiece model; expected tokenizer\.json"
    ):
        loaded(tmp_path, written(PIECES), {"tokenizer_class": "GemmaTokenizer"})


@given(st.binary(max_size=60), st.integers(0, 300))
def test_damage_is_a_typed_error(noise: bytes, place: int) -> None:
    data = written(PIECES)
    for damaged in (noise, data[:place], data[:place] + noise + data[place:]):
        with suppress(TokenizerError):
            PieceModel(damaged, Path("tokenizer.model"))
