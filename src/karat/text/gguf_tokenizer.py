"""A tokenizer from the metadata of a GGUF file, built of the parts of the `tokenizers` library.

The result is what the model's own tokenizer.json makes, but for what GGUF does not carry: whether a token takes the
spaces beside it (`lstrip`, `rstrip`; Phi-3 has such) or must stand alone (`single_word`), and a normaliser other than
the one that the named pre-tokenizer implies.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.wording import shown
from karat.errors import NoTokenizerError, TokenizerError
from karat.text.pre_tokenizers import PRE_TOKENIZERS
from karat.text.tokenizer_files import TokenizerFiles

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_INTEGERS = ("INT32", "UINT32")
_NONE = ("none", "no_vocab")  # llama.cpp's words for a file without a tokenizer
MAX_TOKENS = 1 << 20  # four times the largest vocabulary
MAX_TEXT_BYTES = 32 << 20  # of all tokens, and of all merges
_MAX_PIECE_CHARS = 256  # of a SentencePiece token, whose every cut is tried
_ROLES: Mapping[str, str] = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "mask_token": "mask",
}  # fmt: skip
# Keys that other kinds of tokenizer need; with these values they say nothing.
_NEUTRAL: Mapping[str, object] = {"remove_extra_whitespaces": False, "add_sep_token": False}


def read_gguf_tokenizer(metadata: Metadata, place: str) -> TokenizerFiles:
    """The tokenizer of a file, `place`. TokenizerError for what is missing, contradicts, or is not supported."""
    kind = metadata.optional(str, "tokenizer.ggml.model")
    if kind in (None, *_NONE):
        raise NoTokenizerError(
            f"{place}: has no tokenizer.ggml.model in its metadata, or one that says there is none; "
            "expected a tokenizer; convert the model with one"
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
        if kind == "gpt2":
            backend, adds_bos = _byte_level(metadata, vocabulary, place)
        else:
            backend, adds_bos = _sentence_piece(metadata, vocabulary, place), True
        roles = vocabulary.roles()
        backend.add_tokens(vocabulary.added())
        _frame(backend, metadata, vocabulary, adds_bos, place)
        return TokenizerFiles(backend, roles, _templates(metadata, place), None)
    except UnicodeDecodeError as fault:
        raise TokenizerError(f"{place}: has a token that is not UTF-8; convert the model again") from fault


def _check_sizes(metadata: Metadata, kind: str, place: str) -> None:
    """Refuses what has too many tokens, or other things than one for each, before any is decoded."""
    tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
    if tokens is None or tokens.len == 0:
        raise TokenizerError(f"{place}: has no tokenizer.ggml.tokens; expected a vocabulary; convert the model again")
    if tokens.len > MAX_TOKENS:
        raise TokenizerError(f"{place}: has {tokens.len} tokens; expected at most {MAX_TOKENS}; take another file")
    merges = metadata.array("tokenizer.ggml.merges", "STRING") if kind == "gpt2" else None
    for what, array in (("tokens", tokens), ("merges", merges)):
        if array is not None and array.end - array.begin > 8 * array.len + MAX_TEXT_BYTES:
            raise TokenizerError(f"{place}: has {what} of more than {MAX_TEXT_BYTES} bytes; take another file")
    if merges is not None and merges.len > 2 * MAX_TOKENS:
        raise TokenizerError(f"{place}: has {merges.len} merges; expected at most {2 * MAX_TOKENS}; take another file")
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
        """Token to id, without unused ones, which stand for no text."""
        of_id = enumerate(zip(self.tokens, self.types, strict=True))
        ids: dict[str, int] = {}
        for index, (token, kind) in of_id:
            if kind != _UNUSED and ids.setdefault(token, index) != index:
                raise TokenizerError(f"{self._place}: has the token {shown(token)} twice, as {ids[token]} and {index}")
        return ids

    def added(self) -> list[AddedToken]:
        """The tokens that are found in a text before anything else."""
        special = (_CONTROL, _UNKNOWN)
        return [
            AddedToken(token, special=kind in special, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind != _NORMAL and kind in (*special, _USER_DEFINED) and token
        ]

    def roles(self) -> dict[str, str]:
        """The tokens that have a role, such as bos_token."""
        tokens = {role: self.token(f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
        return {role: token for role, token in tokens.items() if token is not None}

    def token(self, key: str) -> str | None:
        """The token whose id the metadata states under `key`; None if it states none."""
        index = self._metadata.optional(int, key)
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise TokenizerError(f"{self._place}: {key} is {index}; expected an id below {len(self.tokens)}")
        return self.tokens[index]


def _byte_level(metadata: Metadata, vocabulary: _Vocabulary, place: str) -> tuple[Backend, bool]:
    """Byte-level BPE, and whether it begins a text with BOS unless the file says otherwise."""
    name = metadata.optional(str, "tokenizer.ggml.pre")
    if name is None or name not in PRE_TOKENIZERS:
        raise NoTokenizerError(
            f"{place}: {'has no tokenizer.ggml.pre' if name is None else f'tokenizer.ggml.pre is {shown(name)}'}; "
            f"expected one of {', '.join(PRE_TOKENIZERS)}: any other would give wrong tokens; convert the model again "
            "with a newer llama.cpp, or report it"
        )
    kind = PRE_TOKENIZERS[name]
    merges = metadata.array("tokenizer.ggml.merges", "STRING")
    if merges is None:
        raise TokenizerError(
            f"{place}: has no tokenizer.ggml.merges; expected byte-level BPE's; convert the model again"
        )
    ids = vocabulary.ids()
    pairs = []
    for merge in merges.each_string():
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise TokenizerError(f"{place}: has the merge {shown(merge)}; expected two tokens that make a third")
        pairs.append((left, right))
    backend = Backend(models.BPE(vocab=ids, merges=pairs, ignore_merges=kind.takes_whole))
    if (normalizer := kind.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = kind.build()
    backend.decoder = decoders.ByteLevel()
    return backend, kind.adds_bos


def _sentence_piece(metadata: Metadata, vocabulary: _Vocabulary, place: str) -> Backend:
    """SentencePiece BPE: the pair with the best score is merged first; what has no token becomes its bytes."""
    ids = vocabulary.ids()
    scores = metadata.array("tokenizer.ggml.scores", "FLOAT32")
    assert scores is not None
    of_ids = scores.numbers()
    if (nans := np.isnan(of_ids)).any():
        raise TokenizerError(
            f"{place}: the score of token {int(nans.argmax())} is NaN; expected numbers, by which tokens are merged; "
            "convert the model again"
        )
    merges = ranked_merges(ids, vocabulary.types, of_ids.tolist())
    unknown = vocabulary.token("tokenizer.ggml.unknown_token_id")
    has_bytes = _BYTE in vocabulary.types
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


def ranked_merges(ids: Mapping[str, int], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that SentencePiece makes, best score first: every cut of a token into two that are tokens."""
    merges = []
    for token, index in ids.items():
        if types[index] in (_NORMAL, _USER_DEFINED) and len(token) <= _MAX_PIECE_CHARS:
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in ids and right in ids:
                    merges.append((-scores[index], ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _frame(backend: Backend, metadata: Metadata, vocabulary: _Vocabulary, adds_bos: bool, place: str) -> None:
    """Puts BOS and EOS around a text, where the file or the kind of tokenizer says so."""
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
    if tokens:
        backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=tokens)


def _templates(metadata: Metadata, place: str) -> dict[str, str]:
    """The chat templates by name; the ordinary one is called default."""
    start = "tokenizer.chat_template"
    keys = [key for key in metadata.values if key == start or key.startswith(f"{start}.")]
    return {key.removeprefix(start).removeprefix(".") or "default": metadata.get(str, key) for key in keys}
