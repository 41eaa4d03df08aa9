"""Limits of a tokenizer.json: without them, a file of a few hundred bytes could take all memory or end the process.

The `tokenizers` library has no limits of its own. These checks bound how much a file's steps may grow a text, and the
work at each token. karat.text.preflight finds the known causes of panics of the library. `panics_as_errors` turns any
other Rust panic, which is no Exception, into a TokenizerError.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import prod
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from karat.checkpoint.wording import shown
from karat.errors import TokenizerError
from karat.text.preflight import has_damaged_table, lacks_prefix, may_give_up, patterns, stderr_held_back
from karat.text.token_length import steps

MAX_GROWTH = 256  # of a text; SentencePiece's NFKC alone may make 18 characters of one
MAX_STEPS = 64  # of a normalizer, pre-tokenizer, post-processor or decoder
MAX_AFFIX_CHARS = 64  # of the prefix or suffix of a word's pieces
MAX_ADDED_CHARS = 1000  # of an added token
MAX_FRAME_TOKENS = 256  # around a text
# Bytes between two quotation marks. SentencePiece's table of characters has 300,000; no other string is long.
MAX_STRING_BYTES, LONG_STRING_BYTES, MAX_LONG_STRINGS = 1 << 20, 10_000, 4
# Decoders under which a text only grows at its end as tokens are added. `IncrementalDetokenizer` relies on that.
_GROWING_DECODERS = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}
_SAMPLE = "The quick brown fox, 123 \n\t" + "".join(map(chr, [*range(0x21, 0x180), 0x3B1, 0x4E2D, 0xFB01, 0x1F600]))


@contextmanager
def panics_as_errors(what: str, *, quietly: bool = False) -> Iterator[None]:
    """Raise a TokenizerError that begins with `what` for a panic of the library, and for its untyped errors.

    A panic writes to stderr, unless `quietly`, which is for tokenizers that may panic (karat.text.preflight).
    """
    try:
        with stderr_held_back() if quietly else nullcontext():
            yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"{what}: the tokenizers library gave up ({str(error)[:200]}); expected a tokenizer that takes any text; "
            "use another one"
        ) from None


def check_text(data: bytes, place: str) -> None:
    """Raise TokenizerError for a tokenizer.json that must not reach the library."""
    _check_strings(data, place)
    if (piece := lacks_prefix(data)) is not None:
        raise _wrong(place, f"a merge with {shown(piece)}", "pieces that begin with its continuing_subword_prefix")
    if has_damaged_table(data):
        raise _wrong(place, "a damaged table of characters (precompiled_charsmap)", "one that SentencePiece wrote")


def may_panic(*parts: Any) -> bool:
    """Whether a normalizer, pre-tokenizer or decoder has a regular expression that may give up on some text."""
    return any(map(may_give_up, patterns(step for part in parts for step in steps(part))))


def _check_strings(data: bytes, place: str) -> None:
    """Raise TokenizerError for long strings (or lists of numbers), before the file is parsed."""
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((letters[1:] == ord('"')) & (letters[:-1] != ord("\\"))) + 1
    lengths = np.diff(ends, prepend=0, append=len(letters))
    num_long = int((lengths > LONG_STRING_BYTES).sum())
    if lengths.max() > MAX_STRING_BYTES or num_long > MAX_LONG_STRINGS:
        raise TokenizerError(
            f"{place}: has {num_long} strings of more than {LONG_STRING_BYTES} bytes, the longest of {lengths.max()}; "
            f"expected at most {MAX_LONG_STRINGS}, of at most {MAX_STRING_BYTES}; fetch it again"
        )


def check_added(content: str, place: str) -> None:
    """Raise TokenizerError for an added token that is too long: it is searched for at every character of a text."""
    if len(content) > MAX_ADDED_CHARS:
        raise TokenizerError(
            f"{place}: has an added token of {len(content)} characters, {shown(content)}; expected at most "
            f"{MAX_ADDED_CHARS}; fetch it again"
        )


def check_limits(backend: Backend, place: str) -> None:
    """Raise TokenizerError for steps that may grow a text too much, and for a tokenizer that panics on a short text."""
    normalizer, decoder = steps(backend.normalizer), steps(backend.decoder)
    cuts, frame = steps(backend.pre_tokenizer), steps(backend.post_processor)
    for name, part in (
        ("normalizer", normalizer),
        ("pre-tokenizer", cuts),
        ("post-processor", frame),
        ("decoder", decoder),
    ):
        if len(part) > MAX_STEPS:
            raise _wrong(place, f"a {name} of {len(part)} steps", f"at most {MAX_STEPS}")
    for name, part in (("normalizer", normalizer), ("decoder", decoder)):
        if (growth := prod(map(_growth, part))) > MAX_GROWTH:
            raise _wrong(place, f"a {name} that makes a text {growth:.3g} times as long", f"at most {MAX_GROWTH} times")
    if any(step["type"] == "FixedLength" and step["length"] < 1 for step in cuts):
        raise _wrong(place, "a pre-tokenizer FixedLength of length 0", "a length of at least 1")
    _check_frame(frame, place)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = getattr(backend.model, name, None) or ""
        if len(affix) > MAX_AFFIX_CHARS:
            raise _wrong(place, f"{name} of {len(affix)} characters", f"at most {MAX_AFFIX_CHARS}")
    for token in backend.get_added_tokens_decoder().values():
        check_added(token.content, place)
    with (
        panics_as_errors(place, quietly=may_panic(backend.normalizer, backend.pre_tokenizer)),
        suppress(Exception),
    ):  # a tokenizer for some texts only may raise here, and is allowed
        backend.encode(_SAMPLE)


def check_nothing_vanishes(backend: Backend, place: str) -> None:
    """Raise TokenizerError for BPE that drops text without a token, or every space.

    Byte-level BPE is made to have all bytes; `lost_bytes` says which a vocabulary lacks.
    """
    model = backend.model
    if type(model).__name__ != "BPE":
        return  # the library has an error, or a token, for what they do not know
    texts = [step["type"] for step in (*steps(backend.normalizer), *steps(backend.pre_tokenizer))]
    if "ByteLevel" in texts:
        return
    has_bytes = model.byte_fallback and all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    if has_bytes:
        return
    if model.unk_token is None or backend.token_to_id(model.unk_token) is None:
        raise _wrong(
            place,
            "neither a token for unknown text nor one for every byte, so that text without a token would be lost",
            "one of these, or byte-level BPE",
        )
    if (sign := _sign_of_spaces(backend)) is not None and backend.token_to_id(sign) is None:
        raise _wrong(place, f"no token {shown(sign)}, as which spaces are written", "one, or all spaces would be lost")


def _sign_of_spaces(backend: Backend) -> str | None:
    """The character that stands for a space before the model sees it; None for the space itself."""
    for step in (*steps(backend.normalizer), *steps(backend.pre_tokenizer)):
        if step["type"] == "Metaspace":
            return str(step["replacement"])
        if step["type"] == "Replace" and step["pattern"].get("String") == " ":
            return str(step["content"])
    return None


# Bytes of UTF-8 that no text of people has: control characters but tab and line ends, and those that begin letters of
# planes in which Unicode has none.
UNWRITTEN = frozenset({*range(0x20), 0x7F, 0xF1, 0xF2} - {0x09, 0x0A, 0x0D})


def lost_bytes(backend: Backend, alphabet: Mapping[str, int]) -> frozenset[int]:
    """The bytes of UTF-8 for which a byte-level BPE has no token, so that it would drop them. `alphabet`: byte-level's.

    Empty for other tokenizers, and where such bytes become the token for unknown text.
    """
    model = backend.model
    cuts = [step["type"] for step in (*steps(backend.normalizer), *steps(backend.pre_tokenizer))]
    if type(model).__name__ != "BPE" or "ByteLevel" not in cuts or model.unk_token is not None:
        return frozenset()
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    return frozenset(
        byte for letter, byte in alphabet.items() if byte not in never and backend.token_to_id(letter) is None
    )


def _growth(step: Mapping[str, Any]) -> float:
    """The factor by which a step may lengthen a text."""
    match step["type"]:
        case "Replace":
            pattern, added = step["pattern"].get("String"), len(step["content"])
            return max(1.0, added / len(pattern)) if pattern else 1.0 + added  # a regular expression may match nothing
        case "Prepend":
            return 1.0 + len(step["prepend"])
        case "Precompiled":
            return float(_longest(step["precompiled_charsmap"]))
    return 1.0


def _longest(table: str | None) -> int:
    """The characters of the longest replacement in SentencePiece's table (karat.text.preflight shows its bytes)."""
    data = base64.b64decode(table or "")
    start = 4 + int.from_bytes(data[:4], "little")
    texts: Sequence[bytes] = data[start:].split(b"\0")
    return max(1, *map(_num_chars, texts))


def _num_chars(text: bytes) -> int:
    """The characters of a UTF-8 text: all bytes except continuation bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in text)


def _check_frame(frame: Sequence[Mapping[str, Any]], place: str) -> None:
    num_tokens = 0
    for step in frame:
        pieces = step.get("single") or ()
        if len(pieces) > MAX_FRAME_TOKENS or sum("Sequence" in piece for piece in pieces) > 1:
            raise _wrong(place, f"a post-processor of {len(pieces)} pieces", f"one text, and {MAX_FRAME_TOKENS} tokens")
        named = step.get("special_tokens") or {}
        for piece in pieces:
            if "SpecialToken" in piece:
                num_tokens += len(named.get(piece["SpecialToken"]["id"], {}).get("ids", ()))
    if num_tokens > MAX_FRAME_TOKENS:
        raise _wrong(place, f"a post-processor that adds {num_tokens} tokens", f"at most {MAX_FRAME_TOKENS}")


def _wrong(place: str, came: str, expected: str) -> TokenizerError:
    return TokenizerError(f"{place}: has {came}; expected {expected}; use another model")


def check_decoder(steps: Sequence[Mapping[str, Any]]) -> None:
    """Raise `TokenizerError` unless text only grows at its end as tokens are added, by the decoded tokens alone."""
    names = [step["type"] for step in steps]
    if names in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return
    fused = names.index("Fuse") + 1 if "Fuse" in names else len(names)
    for position, step in enumerate(steps):
        is_known = step["type"] in _GROWING_DECODERS if position < fused else step["type"] == "Strip"
        if not is_known or step.get("stop"):
            raise TokenizerError(
                f"tokenizer.json has the decoder {' > '.join(names)}, of which Karat does not support {step['type']} "
                "there; expected byte-level BPE or SentencePiece with byte fallback; use another model"
            )
