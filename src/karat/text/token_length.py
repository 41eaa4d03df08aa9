"""The most text that one token can stand for, to refuse a text that is too long before it is tokenised."""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer as Backend

_KEEPING = {"ByteLevel", "Lowercase", "NFD", "NFKD", "Prepend"}  # normalizers that do not shorten any text
_COMPOSING = {"NFC", "NFKC"}
_MOST_COMPOSED = 4  # characters that NFC or NFKC may compose into one
_CUTTING = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}  # pre-tokenizers that may keep all text


def steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer, post-processor or decoder, as in tokenizer.json."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__())))


def max_token_chars(backend: Backend, alphabet: str) -> int | None:
    """The most characters of a text that become one token; None if there is no such bound.

    There is none where spaces or unknown characters are dropped or joined. `alphabet`: the letters of byte-level BPE.
    """
    normalizer, cuts, model = steps(backend.normalizer), steps(backend.pre_tokenizer), backend.model
    added = backend.get_added_tokens_decoder().values()
    if type(model).__name__ != "BPE" or any(token.lstrip or token.rstrip for token in added):
        return None
    if not all(map(_keeps_length, normalizer)):
        return None
    if not all(step["type"] in _CUTTING and step.get("behavior") != "Removed" for step in cuts):
        return None
    vocab = backend.get_vocab()
    if any(step["type"] == "ByteLevel" for step in (*normalizer, *cuts)):
        is_complete = all(letter in vocab for letter in alphabet)
    elif model.byte_fallback:
        is_complete = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    else:
        is_complete = model.unk_token in vocab and not model.fuse_unk
    if not is_complete:
        return None
    composed = _MOST_COMPOSED if any(step["type"] in _COMPOSING for step in normalizer) else 1
    return max(map(len, vocab)) * composed


def _keeps_length(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return pattern is not None and len(step["content"]) >= len(pattern)
    return step["type"] in _KEEPING | _COMPOSING


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The step itself, or the steps of a sequence, nested ones included."""
    if step["type"] != "Sequence":
        yield step
        return
    for key in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in step.get(key, ()):
            yield from _flat(inner)
