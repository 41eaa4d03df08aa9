"""A tokenizer from the metadata of a GGUF file, built of parts of the `tokenizers` library.

The result equals the model's own tokenizer.json, except for facts that GGUF does not carry: whether a token takes the
spaces beside it (`lstrip`, `rstrip`; Phi-3 has such tokens) or must stand alone (`single_word`), and a normalizer other
than the named pre-tokenizer's.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.wording import shown
from karat.errors import NoTokenizerError, TokenizerError
from karat.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from karat.text.tokenizer_files import TokenizerFiles

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_INTEGERS = ("INT32", "UINT32")
_NONE = ("none", "no_vocab")  # llama.cpp's names for a file without a tokenizer
MAX_TOKENS = 1 << 19  # twice the largest vocabulary
MAX_MERGES = 3 << 18  # Llama 3 has 280,147, Gemma 3 514,906; SentencePiece finds 61,249 in Llama 2's vocabulary
MAX_TEXT_BYTES = 32 << 20  # of all tokens, and of all merges
_MANY_MERGES = 1 << 19
_MAX_PIECE_CHARS = 256  # of a SentencePiece token: every way to cut it in two is tried
_ROLES: Mapping[str, str] = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "mask_token": "mask",
}
# Keys of other kinds of tokenizer; with these values they change nothing.
_NEUTRAL: Mapping[str, object] = {"remove_extra_whitespaces": False, "add_sep_token": False}


def read_gguf_tokenizer(metadata: Metadata, place: str) -> TokenizerFiles:
    """The tokenizer of the file `place`. Raises TokenizerError for missing, contradictory or unsupported metadata."""
    kind = metadata.optional(str, "tokenizer.ggml.model")
    if kind in (None, *_NONE):
        raise NoTokenizerError(
            f"{place}: has no tokenizer.ggml.model in its metadata, or it is none or no_vocab; expected a tokenizer; "
            "convert the model with one"
        )
    for key, neutral in _NEUTRAL.items():
        if metadata.values.get(f"tokenizer.ggml.{key}", neutral) != neutral:
            raise TokenizerError(
                f"{place}: tokenizer.ggml.{key} is set; expected a tokenizer without; take another file"
            )
    if "tokenizer.ggml.precompiled_charsmap" in metadata:
        raise TokenizerError(
            f"{place}: has a tokenizer.ggml.precompiled_charsmap; expected SentencePiece without normalisation, or "
            "byte-level BPE; take another model"
        )
    if kind not in ("gpt2", "llama"):
        raise NoTokenizerError(
            f"{place}: tokenizer.ggml.model is {shown(kind)}; expected gpt2 (byte-level BPE) or llama "
            "(SentencePiece BPE); take another model"
        )
    _check_sizes(metadata, kind, place)
    try:
        vocabulary = _Vocabulary(metadata, place)
        pre_tokenizer = _pre_tokenizer(metadata, place) if kind == "gpt2" else None
        # Small parts are checked first, so that an unusable file takes no memory for merges.
        roles, templates = vocabulary.roles(), _templates(metadata, place)
        frame = _frame(metadata, vocabulary, pre_tokenizer.adds_bos if pre_tokenizer else True, place)
        if pre_tokenizer:
            backend = _byte_level(metadata, vocabulary, pre_tokenizer, place)
        else:
            backend = _sentence_piece(metadata, vocabulary, place)
        backend.add_tokens(vocabulary.added())
        if frame is not None:
            backend.post_processor = frame
        return TokenizerFiles(backend, roles, templates, None)
    except UnicodeDecodeError as fault:
        raise TokenizerError(f"{place}: has a token that is not UTF-8; convert the model again") from fault


def _check_sizes(metadata: Metadata, kind: str, place: str) -> None:
    """Raise TokenizerError for too many tokens, and for lists whose lengths differ, before any item is decoded."""
    tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
    if tokens is None or tokens.len == 0:
        raise TokenizerError(f"{place}: has no tokenizer.ggml.tokens; expected a vocabulary; convert the model again")
    if tokens.len > MAX_TOKENS:
        raise TokenizerError(f"{place}: has {tokens.len} tokens; expected at most {MAX_TOKENS}; take another file")
    merges = metadata.array("tokenizer.ggml.merges", "STRING") if kind == "gpt2" else None
    for what, given in (("tokens", tokens), ("merges", merges)):
        if given is not None and given.end - given.begin > 8 * given.len + MAX_TEXT_BYTES:
            raise TokenizerError(f"{place}: has {what} of more than {MAX_TEXT_BYTES} bytes; take another file")
    if merges is not None and merges.len > MAX_MERGES:
        raise TokenizerError(f"{place}: has {merges.len} merges; expected at most {MAX_MERGES}; take another file")
    types = metadata.array("tokenizer.ggml.token_type", *_INTEGERS)
    if types is not None and types.len != tokens.len:
        raise TokenizerError(f"{place}: has {types.len} token types for {tokens.len} tokens; convert the model again")
    scores = metadata.array("tokenizer.ggml.scores", "FLOAT32") if kind == "llama" else None
    if kind == "llama" and (scores is None or scores.len != tokens.len):
        raise TokenizerError(
            f"{place}: has {scores.len if scores else 'no'} tokenizer.ggml.scores for {tokens.len} tokens; "
            "expected one for each; convert the model again"
        )


class _Vocabulary:
    """The tokens of a file by id, with their types."""

    def __init__(self, metadata: Metadata, place: str) -> None:
        self._metadata = metadata
        self._place = place
        tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
        assert tokens is not None
        self.tokens = tokens.strings()
        types = metadata.array("tokenizer.ggml.token_type", *_INTEGERS)
        self.types: Sequence[int] = [_NORMAL] * len(self.tokens) if types is None else types.numbers().tolist()
        if wrong := set(self.types).difference(range(_NORMAL, _BYTE + 1)):
            raise TokenizerError(f"{place}: has a token of the type {min(wrong)}; expected {_NORMAL} to {_BYTE}")

    def ids(self) -> dict[str, int]:
        """Token to id, without unused tokens, which stand for no text."""
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) == len(self.tokens) and _UNUSED not in self.types:
            return ids
        ids.clear()
        for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind != _UNUSED and ids.setdefault(token, index) != index:
                raise TokenizerError(f"{self._place}: has the token {shown(token)} twice, as {ids[token]} and {index}")
        return ids

    def added(self) -> list[AddedToken]:
        """The added tokens: they are found in a text before it is split."""
        special = (_CONTROL, _UNKNOWN)
        return [
            AddedToken(token, special=kind in special, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind != _NORMAL and kind in (*special, _USER_DEFINED) and token
        ]

    def unknown(self) -> str | None:
        """The token for text without a token: the one that the metadata name, else the first of type unknown."""
        of_type = [token for token, kind in zip(self.tokens, self.types, strict=True) if kind == _UNKNOWN]
        return self.token("tokenizer.ggml.unknown_token_id") or (of_type[0] if of_type else None)

    def roles(self) -> dict[str, str]:
        """The tokens with a role, by role such as bos_token."""
        tokens = {role: self.token(f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
        return {role: token for role, token in tokens.items() if token is not None}

    def token(self, key: str) -> str | None:
        """The token whose id is the value of `key`; None if the key is absent."""
        index = self._metadata.optional(int, key)
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise TokenizerError(f"{self._place}: {key} is {index}; expected an id below {len(self.tokens)}")
        return self.tokens[index]


def _pre_tokenizer(metadata: Metadata, place: str) -> PreTokenizer:
    name = metadata.optional(str, "tokenizer.ggml.pre")
    if name is None or name not in PRE_TOKENIZERS:
        raise NoTokenizerError(
            f"{place}: {'has no tokenizer.ggml.pre' if name is None else f'tokenizer.ggml.pre is {shown(name)}'}; "
            f"expected one of {', '.join(PRE_TOKENIZERS)}: any other would give wrong tokens; convert the model again "
            "with a newer llama.cpp, or report it"
        )
    return PRE_TOKENIZERS[name]


def _byte_level(metadata: Metadata, vocabulary: _Vocabulary, kind: PreTokenizer, place: str) -> Backend:
    """Byte-level BPE."""
    merges = metadata.array("tokenizer.ggml.merges", "STRING")
    if merges is None:
        raise TokenizerError(
            f"{place}: has no tokenizer.ggml.merges; expected byte-level BPE's; convert the model again"
        )
    ids = vocabulary.ids()
    if merges.len > _MANY_MERGES:  # the library copies all merges before it checks one
        for merge in merges.each_string():
            _check_merge(merge.split(" ", 1), ids, place)
    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in merges.each_string()]  # the library refuses others
    try:
        backend = Backend(models.BPE(vocab=ids, merges=pairs, ignore_merges=kind.takes_whole))
    except Exception:  # for a merge with unknown tokens; the library raises nothing narrower
        for pair in pairs:
            _check_merge(pair, ids, place)
        raise
    if (normalizer := kind.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = kind.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _check_merge(pair: Sequence[str], ids: Mapping[str, int], place: str) -> None:
    if len(pair) < 2 or not {*pair, "".join(pair)} <= ids.keys():
        raise TokenizerError(f"{place}: has the merge {shown(' '.join(pair))}; expected two tokens that make a third")


def _sentence_piece(metadata: Metadata, vocabulary: _Vocabulary, place: str) -> Backend:
    """SentencePiece BPE: the pair with the best score is merged first; text without a token becomes its bytes."""
    ids = vocabulary.ids()
    scores = metadata.array("tokenizer.ggml.scores", "FLOAT32")
    assert scores is not None
    of_ids = scores.numbers()
    if (nans := np.isnan(of_ids)).any():
        raise TokenizerError(
            f"{place}: the score of token {int(nans.argmax())} is NaN; expected numbers, by which tokens are merged; "
            "convert the model again"
        )
    unknown, has_bytes = vocabulary.unknown(), _BYTE in vocabulary.types
    if unknown is None and not all(f"<0x{byte:02X}>" in ids for byte in range(256)):
        raise TokenizerError(
            f"{place}: has neither an unknown token nor one for every byte; expected one of these, or text that has "
            "no token would be lost; convert the model again"
        )
    if (merges := ranked_merges(ids, vocabulary.types, of_ids)) is None:
        raise TokenizerError(
            f"{place}: has tokens that are cut into two others in more than {MAX_MERGES} ways; expected fewer; "
            "take another file"
        )
    backend = Backend(
        models.BPE(
            vocab=ids,
            merges=merges,
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    has_prefix = metadata.get(bool, "tokenizer.ggml.add_space_prefix", True)
    prepend = [normalizers.Prepend("▁")] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def ranked_merges(
    ids: Mapping[str, int], types: Sequence[int], scores: Sequence[float] | NDArray[np.floating]
) -> list[tuple[str, str]] | None:
    """The merges of SentencePiece, best score first: every way to cut a token into two tokens.

    `types` and `scores` are [tokens]. None if there are more than MAX_MERGES.
    """
    found = array("q")  # three ids a merge: the token, its left part, its right part
    for token, index in ids.items():
        if types[index] in (_NORMAL, _USER_DEFINED) and len(token) <= _MAX_PIECE_CHARS:
            for cut in range(1, len(token)):
                left = ids.get(token[:cut])
                if left is not None and (right := ids.get(token[cut:])) is not None:
                    found.extend((index, left, right))
            if len(found) > 3 * MAX_MERGES:
                return None
    whole, left_ids, right_ids = np.array(found, np.int64).reshape(-1, 3).T
    order = np.lexsort((right_ids, left_ids, -np.asarray(scores, np.float64)[whole]))
    names = {index: token for token, index in ids.items()}
    parts = zip(left_ids[order].tolist(), right_ids[order].tolist(), strict=True)
    return [(names[left], names[right]) for left, right in parts]


def _frame(
    metadata: Metadata, vocabulary: _Vocabulary, adds_bos: bool, place: str
) -> processors.TemplateProcessing | None:
    """The post-processor that puts BOS and EOS around a text; None if the file and its pre-tokenizer ask for none."""
    parts, tokens = ["$A"], []
    for name, default, place_of in (("bos", adds_bos, 0), ("eos", False, 2)):
        if metadata.get(bool, f"tokenizer.ggml.add_{name}_token", default):
            token = vocabulary.token(f"tokenizer.ggml.{name}_token_id")
            if token is None:
                raise TokenizerError(
                    f"{place}: tokenizer.ggml.add_{name}_token is in force without tokenizer.ggml.{name}_token_id; "
                    "expected both; convert the model again"
                )
            parts.insert(place_of, token)
            tokens.append((token, vocabulary.tokens.index(token)))
    return processors.TemplateProcessing(single=parts, special_tokens=tokens) if tokens else None


def _templates(metadata: Metadata, place: str) -> dict[str, str]:
    """The chat templates by name. The ordinary one is called default."""
    start = "tokenizer.chat_template"
    keys = [key for key in metadata.values if key == start or key.startswith(f"{start}.")]
    return {key.removeprefix(start).removeprefix(".") or "default": metadata.get(str, key) for key in keys}
