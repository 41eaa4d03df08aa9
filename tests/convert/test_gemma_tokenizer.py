"""Gemma's tokenizer, BPE of SentencePiece's pieces: written by scores for Gemma 3, and by its merges for Gemma 4."""

import random
from pathlib import Path
from typing import Any

import pytest

from karat.convert import MIXES, convert
from karat.models.opening import open_gguf, open_model
from karat.text import Tokenizer
from karat.text.sentence_piece import ranked_merges
from tests.convert.folders import FAMILIES, folder_of
from tests.support.seed import SEED

CONTROL, NORMAL, BYTE = 3, 1, 6
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<turn|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = list("▁abcdefghinorst,.\n<|>")
PIECES = ["▁t", "he", "▁the", "in", "an", "▁an", "er", "on", "▁▁", "\n\n", "th", "▁th", "ng", "ing", "▁a", "\n\n\n"]


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    """transformers' class, and its files in the folder `tokenizer`."""
    transformers = pytest.importorskip("transformers")
    vocab = {token: index for index, token in enumerate([*SPECIAL, *BYTES, *LETTERS, *PIECES])}
    types = [CONTROL] * len(SPECIAL) + [BYTE] * 256 + [NORMAL] * (len(LETTERS) + len(PIECES))
    merges = ranked_merges(vocab, types, [-float(index) for index in range(len(vocab))])
    tokenizer = transformers.GemmaTokenizer(vocab=vocab, merges=merges, extra_special_tokens=["<turn|>"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tokenizer


@pytest.mark.parametrize(("family", "kind"), [("gemma3_text", "llama"), ("gemma4_text", "gemma4")])
def test_a_converted_tokenizer_is_the_folders(family: str, kind: str, theirs: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", **FAMILIES[family])
    for file in (tmp_path / "tokenizer").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    done = convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
    assert not any("tokenizer" in warning for warning in done.warnings)
    values = open_gguf(tmp_path / "a.gguf").metadata.values
    assert values["tokenizer.ggml.model"] == kind and values["tokenizer.ggml.add_space_prefix"] is False
    assert ("tokenizer.ggml.merges" in values, "tokenizer.ggml.scores" in values) == (kind == "gemma4", kind == "llama")
    ours = Tokenizer.of(open_model(tmp_path / "a.gguf"))
    rng = random.Random(SEED)
    parts = [*LETTERS[1:], *"the thing  in\n\n\nan é 你 🙂 \x00 <turn|> <bos> <0x41>".split(" "), " ", "  ", " the"]
    for _ in range(500):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(20)))
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids, ascii(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ascii(text)
