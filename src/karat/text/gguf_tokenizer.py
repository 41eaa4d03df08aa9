"""A tokenizer from the metadata of a GGUF file, built of parts of the `tokenizers` library.

The result equals the model's own tokenizer.json, except for facts that GGUF does not carry: whether a token takes the
spaces beside it (`lstrip`, `rstrip`; Phi-3 has such tokens) or must stand alone (`single_word`), and a normalizer other
than the named pre-tokenizer's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from karat.checkpoint.gguf import Metadata
from karat.checkpoint.wording import listed, shown
from karat.errors import NoTokenizerError, TokenizerError
from karat.text.gguf_vocabulary import BYTE, INTEGERS, GgufVocabulary
from karat.text.piece_merging import PieceMerging
from karat.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from karat.text.sentence_piece import MAX_MERGES, sentence_piece
from karat.text.tokenizer_files import TokenizerFiles
from karat.text.tokenizer_limits import check_nothing_vanishes

_NONE = ("none", "no_vocab")  # llama.cpp's names for a file without a tokenizer
_MERGES = ("gpt2", "gemma4")  # of these kinds a file states the merges: byte-level BPE, and BPE of pieces
MAX_TOKENS = 1 << 19  # twice the largest vocabulary
MAX_TEXT_BYTES = 32 << 20  # of all tokens, and of all merges
_MANY_MERGES = 1 << 19
_MAX_NAMED = 10  # keys in a note
# Keys that Karat reads, and keys that no step of inference reads: bookkeeping, and tokens with a role that ends or
# begins nothing here.
_KNOWN = frozenset(
    """
    model pre tokens token_type scores merges add_bos_token add_eos_token add_space_prefix bos_token_id eos_token_id
    unknown_token_id seperator_token_id padding_token_id mask_token_id eot_token_id eom_token_id cls_token_id
    fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id
    prefix_token_id suffix_token_id middle_token_id token_type_count
    """.split()
)
# Karat's own key, which its converter writes: "always" or "first", as Metaspace of the tokenizers library has them. The
# space before a text is then left out where the text begins with one; with "first" also after an added token.
SPACE_PREFIX = "tokenizer.karat.space_prefix"
_OTHER = frozenset({"tokenizer.huggingface.json", "tokenizer.chat_templates"})  # the same once more, and names
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
    if kind not in (*_MERGES, "llama"):
        raise NoTokenizerError(
            f"{place}: tokenizer.ggml.model is {shown(kind)}; expected gpt2 (byte-level BPE), llama (SentencePiece "
            "BPE) or gemma4 (BPE of SentencePiece's pieces); take another model"
        )
    _check_sizes(metadata, kind, place)
    try:
        vocabulary = GgufVocabulary(metadata, place)
        notes = vocabulary.notes
        pre_tokenizer = _pre_tokenizer(metadata, place, notes) if kind == "gpt2" else None
        # Small parts are checked first, so that an unusable file takes no memory for merges.
        templates = _templates(metadata, place)
        frame = _frame(metadata, vocabulary, pre_tokenizer.adds_bos if pre_tokenizer else True, place)
        merging = None
        if pre_tokenizer:
            backend = _byte_level(metadata, vocabulary, pre_tokenizer, place)
        elif kind in _MERGES:
            backend = _of_pieces(metadata, vocabulary, place)
        else:
            backend, merging = _sentence_piece(metadata, vocabulary, frame, place)
        backend.add_tokens(vocabulary.added())
        check_nothing_vanishes(backend, place)
        if any(frame):
            backend.post_processor = _post_processor(vocabulary.tokens, frame)
    except UnicodeDecodeError as fault:
        raise TokenizerError(f"{place}: has a token that is not UTF-8; convert the model again") from fault
    notes += _unread(metadata, kind)
    return TokenizerFiles(
        backend,
        vocabulary.roles(),
        templates,
        None,
        role_ids=vocabulary.role_ids,
        doubles=vocabulary.doubles,
        merging=merging,
        notes=tuple(notes),
    )


def _unread(metadata: Metadata, kind: str) -> list[str]:
    """A note of the keys that Karat does not know, or does not read for this kind of tokenizer."""
    start = "tokenizer.ggml."
    has_prefix = metadata.values.get(f"{start}add_space_prefix") is not False  # none is what BPE by merges has
    idle = {"merges"} if kind == "llama" else {"add_space_prefix"} if has_prefix else set()
    known = _OTHER | {f"{start}{name}" for name in (_KNOWN | _NEUTRAL.keys()) - idle}
    known |= {SPACE_PREFIX} if kind == "llama" else set()
    found = [
        key
        for key in metadata.values
        if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template") and key not in known
    ]
    return [f"not applied, as Karat does not read it for this tokenizer: {listed(found, _MAX_NAMED)}"] if found else []


def _check_sizes(metadata: Metadata, kind: str, place: str) -> None:
    """Raise TokenizerError for too many tokens, and for lists whose lengths differ, before any item is decoded."""
    tokens = metadata.array("tokenizer.ggml.tokens", "STRING")
    if tokens is None or tokens.len == 0:
        raise TokenizerError(f"{place}: has no tokenizer.ggml.tokens; expected a vocabulary; convert the model again")
    if tokens.len > MAX_TOKENS:
        raise TokenizerError(f"{place}: has {tokens.len} tokens; expected at most {MAX_TOKENS}; take another file")
    merges = metadata.array("tokenizer.ggml.merges", "STRING") if kind in _MERGES else None
    for what, given in (("tokens", tokens), ("merges", merges)):
        if given is not None and given.end - given.begin > 8 * given.len + MAX_TEXT_BYTES:
            raise TokenizerError(f"{place}: has {what} of more than {MAX_TEXT_BYTES} bytes; take another file")
    if merges is not None and merges.len > MAX_MERGES:
        raise TokenizerError(f"{place}: has {merges.len} merges; expected at most {MAX_MERGES}; take another file")
    types = metadata.array("tokenizer.ggml.token_type", *INTEGERS)
    if types is not None and types.len != tokens.len:
        raise TokenizerError(f"{place}: has {types.len} token types for {tokens.len} tokens; convert the model again")
    scores = metadata.array("tokenizer.ggml.scores", "FLOAT32") if kind == "llama" else None
    if kind == "llama" and (scores is None or scores.len != tokens.len):
        raise TokenizerError(
            f"{place}: has {scores.len if scores else 'no'} tokenizer.ggml.scores for {tokens.len} tokens; "
            "expected one for each; convert the model again"
        )


def _pre_tokenizer(metadata: Metadata, place: str, notes: list[str]) -> PreTokenizer:
    stated = metadata.optional(str, "tokenizer.ggml.pre")
    name = stated or "default"
    if name not in PRE_TOKENIZERS:
        raise NoTokenizerError(
            f"{place}: tokenizer.ggml.pre is {shown(name)}; expected one of {', '.join(PRE_TOKENIZERS)}: any other "
            "would give wrong tokens; convert the model again with a newer llama.cpp, or report it"
        )
    if name == "default":
        notes.append(
            f"tokenizer.ggml.pre is {'missing' if stated is None else stated or 'empty'}: texts are cut as "
            "llama.cpp does then, which is hardly as the model was trained; convert the model again"
        )
    return PRE_TOKENIZERS[name]


def _byte_level(metadata: Metadata, vocabulary: GgufVocabulary, kind: PreTokenizer, place: str) -> Backend:
    """Byte-level BPE."""
    backend = _merging(metadata, vocabulary, place, ignore_merges=kind.takes_whole)
    if (normalizer := kind.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = kind.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _of_pieces(metadata: Metadata, vocabulary: GgufVocabulary, place: str) -> Backend:
    """BPE of SentencePiece's pieces by stated merges, as Gemma 4 has it: ▁ is a space, and nothing is cut before."""
    has_bytes = BYTE in vocabulary.types
    backend = _merging(
        metadata, vocabulary, place, unk_token=vocabulary.unknown(), fuse_unk=True, byte_fallback=has_bytes
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _merging(metadata: Metadata, vocabulary: GgufVocabulary, place: str, **options: Any) -> Backend:
    """BPE with the merges of the file."""
    merges = metadata.array("tokenizer.ggml.merges", "STRING")
    if merges is None:
        raise TokenizerError(f"{place}: has no tokenizer.ggml.merges; expected BPE's; convert the model again")
    ids = vocabulary.ids
    if merges.len > _MANY_MERGES:  # the library copies all merges before it checks one
        for merge in merges.each_string():
            _check_merge(merge.split(" ", 1), ids, place)
    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in merges.each_string()]  # the library refuses others
    try:
        return Backend(models.BPE(vocab=ids, merges=pairs, **options))
    except Exception:  # for a merge with unknown tokens; the library raises nothing narrower
        for pair in pairs:
            _check_merge(pair, ids, place)
        raise


def _check_merge(pair: Sequence[str], ids: Mapping[str, int], place: str) -> None:
    if len(pair) < 2 or not {*pair, "".join(pair)} <= ids.keys():
        raise TokenizerError(f"{place}: has the merge {shown(' '.join(pair))}; expected two tokens that make a third")


def _sentence_piece(
    metadata: Metadata, vocabulary: GgufVocabulary, frame: tuple[Sequence[int], Sequence[int]], place: str
) -> tuple[Backend, PieceMerging | None]:
    """SentencePiece BPE: the pair with the best score is merged first; text without a token becomes its bytes.

    Where scores of different tokens tie, the second result merges, leftmost first; the library cannot.
    """
    stored = metadata.array("tokenizer.ggml.scores", "FLOAT32")
    assert stored is not None
    scores = stored.numbers()
    if (nans := np.isnan(scores)).any():
        raise TokenizerError(
            f"{place}: the score of token {int(nans.argmax())} is NaN; expected numbers, by which tokens are merged; "
            "convert the model again"
        )
    has_prefix = metadata.get(bool, "tokenizer.ggml.add_space_prefix", True)
    backend, merging = sentence_piece(vocabulary, scores, frame, place, has_prefix=has_prefix)
    if (scheme := metadata.optional(str, SPACE_PREFIX)) is not None:
        if scheme not in ("always", "first") or not has_prefix or merging is not None:
            raise TokenizerError(
                f"{place}: {SPACE_PREFIX} is {shown(scheme)}; expected always or first, add_space_prefix, and scores "
                "that do not tie; convert the model again"
            )
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return backend, merging


def _frame(
    metadata: Metadata, vocabulary: GgufVocabulary, adds_bos: bool, place: str
) -> tuple[Sequence[int], Sequence[int]]:
    """The ids of BOS before and EOS after a text, where the file or its pre-tokenizer asks for them."""
    ids: list[Sequence[int]] = []
    for name, default in (("bos", adds_bos), ("eos", False)):
        asked = metadata.get(bool, f"tokenizer.ggml.add_{name}_token", default)
        token_id = vocabulary.role_ids.get(f"{name}_token")
        if asked and token_id is None:
            raise TokenizerError(
                f"{place}: tokenizer.ggml.add_{name}_token is in force without tokenizer.ggml.{name}_token_id; "
                "expected both; convert the model again"
            )
        ids.append([token_id] if asked and token_id is not None else [])
    return ids[0], ids[1]


def _post_processor(tokens: Sequence[str], frame: tuple[Sequence[int], Sequence[int]]) -> processors.TemplateProcessing:
    """Puts the ids of `frame` around a text. Its names are those of the tokens, or the ids where two have one name."""
    ids = [*frame[0], *frame[1]]
    is_distinct = len({tokens[i] for i in ids}) == len(set(ids))
    names = {i: tokens[i] if is_distinct else f"{tokens[i]} {i}" for i in ids}
    parts = [*(names[i] for i in frame[0]), "$A", *(names[i] for i in frame[1])]
    return processors.TemplateProcessing(single=parts, special_tokens=[(name, i) for i, name in names.items()])


def _templates(metadata: Metadata, place: str) -> dict[str, str]:
    """The chat templates by name. The ordinary one is called default."""
    start = "tokenizer.chat_template"
    keys = [key for key in metadata.values if key == start or key.startswith(f"{start}.")]
    return {key.removeprefix(start).removeprefix(".") or "default": metadata.get(str, key) for key in keys}
