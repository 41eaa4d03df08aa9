"""Pieces whose scores tie are merged from the left, as SentencePiece and llama.cpp merge them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from karat.checkpoint.gguf import read_header
from karat.text import Tokenizer
from karat.text.piece_merging import PieceMerging
from tests.checkpoint.gguf.builders import ARRAY, F32, I32, STRING, tiny

LETTERS = "▁abc"
PIECES = st.dictionaries(
    st.text(st.sampled_from(LETTERS), min_size=2, max_size=4),
    st.sampled_from([0.0, -1.0, -2.5]),
    min_size=2,
    max_size=12,
)


def merged_by_definition(text: str, scores: dict[str, float]) -> list[str]:
    """Look at all pairs of neighbours, take the best, of equal ones the leftmost; again, until there is none."""
    pieces = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        _, place = min(pairs)
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


@given(scores=PIECES, text=st.text(st.sampled_from(LETTERS + "é"), max_size=20))
def test_the_leftmost_of_the_best_is_merged(scores: dict[str, float], text: str) -> None:
    tokens = ["<unk>", *LETTERS, *scores]
    ids = {token: index for index, token in enumerate(tokens)}
    merging = PieceMerging(ids, scores, unknown=0, added=[], frame=((), ()))
    expected: list[int] = []
    for piece in merged_by_definition(text, scores):
        if piece in ids or expected[-1:] != [0]:
            expected.append(ids.get(piece, 0))
    assert merging.merge(text) == expected


def test_unknown_characters_become_their_bytes() -> None:
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "a"]
    merging = PieceMerging({t: i for i, t in enumerate(tokens)}, {}, unknown=None, added=[], frame=((), ()))
    assert merging.merge("aé") == [256, 0xC3, 0xA9]


def test_added_tokens_and_the_frame() -> None:
    ids = {token: index for index, token in enumerate(["<s>", "</s>", "a", "b", "ab", "text"])}
    added = [AddedToken("<s>", special=True, normalized=False), AddedToken("text", normalized=False)]
    merging = PieceMerging(ids, {"ab": 0.0}, unknown=None, added=added, frame=((0,), (1,)))
    assert merging.encode("ab<s>abtextb", None, add_special_tokens=True) == [0, 4, 0, 4, 5, 3, 1]
    assert merging.encode("", None, add_special_tokens=False) == []


def tied(tmp_path: Path, scores: dict[str, float]) -> Tokenizer:
    """A GGUF file with these pieces; single characters have distinct scores."""
    single = [*LETTERS, "<", ">", "s"]
    changes: dict[str, Any] = {
        "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "<s>", "</s>", *single, *scores])),
        "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3, *[1] * (len(single) + len(scores))])),
        "tokenizer.ggml.scores": (
            ARRAY,
            (F32, [0.0] * 3 + [-100.0 - i for i in range(len(single))] + list(scores.values())),
        ),
    }
    path = tmp_path / "tied.gguf"
    path.write_bytes(tiny(changes))
    return Tokenizer.from_gguf(read_header(path).metadata, path)


def test_a_gguf_file_whose_scores_tie(tmp_path: Path) -> None:
    """Pieces that were added to a vocabulary have one score, 0: no order of merges is right for "ab" and "ba" both."""
    tokenizer = tied(tmp_path, {"ab": 0.0, "ba": 0.0, "▁a": -1.0})
    for text, expected in (("ab a", ["▁", "ab", "▁a"]), ("aba", ["▁", "ab", "a"]), ("bab", ["▁", "ba", "b"])):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [tokenizer.id_to_token(i) for i in ids] == expected
        assert tokenizer.encode(text) == [1, *ids]
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("aba<s>ab") == [1, *tokenizer.encode("aba")[1:], 1, *tokenizer.encode("ab")[1:]]
    assert "pieces" in tokenizer.definition


def test_runs_of_spaces_that_tie_need_no_other_way(data_dir: Path) -> None:
    """Llama 2's vocabulary has 15 of them with one score; the library's ranks give what the rule gives."""
    path = data_dir / "tokenizers" / "ggml-vocab-llama-spm.gguf"
    tokenizer = Tokenizer.from_gguf(read_header(path).metadata, path)
    assert "pieces" not in tokenizer.definition


@pytest.mark.peers
def test_sentencepiece(tmp_path: Path) -> None:
    """Live: a vocabulary with ties, by the sentencepiece library."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model_pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    scores = {"ab": 0.0, "ba": 0.0, "bc": 0.0, "▁a": -1.0, "cab": -1.0, "▁ab": -2.0, "abc": -2.0}
    model = model_pb2.ModelProto()
    model.trainer_spec.model_type = model_pb2.TrainerSpec.BPE
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    ours = tied(tmp_path, scores)
    for index in range(ours.vocab_size):
        token = ours.id_to_token(index)
        kind = {0: 2, 1: 3, 2: 3}.get(index, 1)
        model.pieces.add(piece=token, score=scores.get(token, -100.0 - index), type=kind)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    @given(st.text(st.sampled_from("abc  s"), max_size=30))
    def same(text: str) -> None:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)

    same()
