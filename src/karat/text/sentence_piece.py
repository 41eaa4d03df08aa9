"""SentencePiece's BPE as a tokenizer of the `tokenizers` library: scores of pieces become ranks of merges."""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from karat.errors import NoTokenizerError, TokenizerError
from karat.text.gguf_vocabulary import BYTE, NORMAL, USER_DEFINED, GgufVocabulary
from karat.text.piece_merging import PieceMerging
from karat.text.sentencepiece_model import PieceModel

MAX_MERGES = 3 << 18  # Llama 3 has 280,147, Gemma 3 514,906; SentencePiece finds 61,249 in Llama 2's vocabulary
_MERGED = (NORMAL, USER_DEFINED)  # types of tokens that merging may make
_MAX_PIECE_CHARS = 256  # of a SentencePiece token: every way to cut it in two is tried


def sentence_piece(
    vocabulary: GgufVocabulary | PieceModel,
    scores: NDArray[np.floating],
    frame: tuple[Sequence[int], Sequence[int]],
    place: str,
    *,
    has_prefix: bool,
) -> tuple[Backend, PieceMerging | None]:
    """SentencePiece BPE: the pair with the best of `scores` [tokens] is merged first; text without a token is bytes.

    `has_prefix`: a text begins with a space that it does not show. Where scores of different tokens tie, the second
    result merges, leftmost first, as the library cannot.
    """
    ids, types = vocabulary.ids, vocabulary.types
    unknown, has_bytes = vocabulary.unknown(), BYTE in types
    if (found := _cuts(ids, types)) is None:
        raise TokenizerError(
            f"{place}: has tokens that are cut into two others in more than {MAX_MERGES} ways; expected fewer; "
            "take another file"
        )
    made = np.unique(found[:, 0])
    normal = np.asarray(scores)[np.asarray(types) == NORMAL]
    if len(made) > 1 and (normal == normal[0]).all():
        raise NoTokenizerError(
            f"{place}: all scores of tokens are {normal[0]:g}, so that nothing says which are merged first (converters "
            "write this where a model has no tokenizer.model); expected the scores of SentencePiece; convert the "
            "model's folder again, with karat convert"
        )
    merges = _ranked(found, ids, scores)
    backend = Backend(models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes))
    prepend = [normalizers.Prepend("▁")] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    _, places, counts = np.unique(np.asarray(scores)[made], return_inverse=True, return_counts=True)
    tied = [vocabulary.tokens[index] for index in made[counts[places] > 1]]
    if not tied:
        return backend, None
    pieces = {token: float(scores[index]) for token, index in ids.items() if types[index] in _MERGED and len(token) > 1}
    of_unknown = None if unknown is None else ids[unknown]
    merging = PieceMerging(ids, pieces, unknown=of_unknown, added=vocabulary.added(), frame=frame)
    return backend, None if _is_ranked_the_same(tied, merging, backend) else merging


def _is_ranked_the_same(tied: Sequence[str], merging: PieceMerging, backend: Backend) -> bool:
    """Whether ranks do what the leftmost-first rule does, as in Llama 2's vocabulary, where only runs of spaces tie."""
    sign = tied[0][0]
    if any(set(token) != {sign} for token in tied):
        return False
    runs = [sign * num for num in range(4 * max(map(len, tied)))]
    return all(merging.merge(run) == [token.id for token in backend.model.tokenize(run)] for run in runs)


def ranked_merges(
    ids: Mapping[str, int], types: Sequence[int], scores: Sequence[float] | NDArray[np.floating]
) -> list[tuple[str, str]] | None:
    """The merges of SentencePiece, best score first: every way to cut a token into two tokens.

    `types` and `scores` are [tokens]. None if there are more than MAX_MERGES.
    """
    found = _cuts(ids, types)
    return None if found is None else _ranked(found, ids, scores)


def _cuts(ids: Mapping[str, int], types: Sequence[int]) -> NDArray[np.int64] | None:
    """Every way to cut a token into two tokens: [cuts, the ids of token, left part and right part]."""
    found = array("q")
    for token, index in ids.items():
        if types[index] in _MERGED and len(token) <= _MAX_PIECE_CHARS:
            for cut in range(1, len(token)):
                left = ids.get(token[:cut])
                if left is not None and (right := ids.get(token[cut:])) is not None:
                    found.extend((index, left, right))
            if len(found) > 3 * MAX_MERGES:
                return None
    return np.array(found, np.int64).reshape(-1, 3)


def _ranked(
    cuts: NDArray[np.int64], ids: Mapping[str, int], scores: Sequence[float] | NDArray[np.floating]
) -> list[tuple[str, str]]:
    whole, left_ids, right_ids = cuts.T
    order = np.lexsort((right_ids, left_ids, -np.asarray(scores, np.float64)[whole]))
    names = {index: token for token, index in ids.items()}
    parts = zip(left_ids[order].tolist(), right_ids[order].tolist(), strict=True)
    return [(names[left], names[right]) for left, right in parts]
