"""PieceModel: a tokenizer.model, as SentencePiece writes it: pieces with scores and types, and how a text begins.

A file is a Protocol Buffers message (sentencepiece_model.proto of SentencePiece): fields of a number and a wire type,
0 for an integer, 2 for bytes with their length before them, 5 for four bytes.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken

from karat.checkpoint.wording import shown
from karat.errors import NoTokenizerError, TokenizerError
from karat.text.gguf_vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

MAX_PIECES = 1 << 19
_BPE = 2
_ROLES = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}  # field, default


class PieceModel:
    """The pieces of `data`, the content of the file `place`. Raises TokenizerError for a file that is damaged or whose
    texts are changed before they are cut, NoTokenizerError for one of another kind than BPE.
    """

    def __init__(self, data: bytes, place: Path) -> None:
        self.tokens: list[str] = []
        self.types: list[int] = []
        scores: list[float] = []
        trainer: dict[int, int] = {}
        normalizer: dict[int, int | bytes] = {}
        try:
            for number, value in _fields(memoryview(data)):
                if number == 1 and isinstance(value, memoryview):
                    piece = dict(_fields(value))
                    self.tokens.append(_bytes(piece.get(1, b"")).decode())
                    scores.append(struct.unpack("<f", _bytes(piece.get(2, bytes(4))))[0])
                    self.types.append(int(piece.get(3, NORMAL)))
                elif number == 2 and isinstance(value, memoryview):
                    trainer |= {key: item for key, item in _fields(value) if isinstance(item, int)}
                elif number == 3 and isinstance(value, memoryview):
                    normalizer |= {k: item if isinstance(item, int) else bytes(item) for k, item in _fields(value)}
        except (ValueError, IndexError, TypeError, struct.error) as error:
            raise TokenizerError(f"{place} is damaged: {str(error)[:200]}; fetch it again") from error
        self.scores = np.array(scores, np.float32)
        if not self.tokens or len(self.tokens) > MAX_PIECES or not set(self.types) <= set(range(NORMAL, BYTE + 1)):
            raise TokenizerError(f"{place} has {len(self.tokens)} pieces; expected 1 to {MAX_PIECES}, of known types")
        if trainer.get(3, 1) != _BPE:
            raise NoTokenizerError(
                f"{place} is no BPE (model_type {trainer.get(3, 1)}); expected BPE; take another model"
            )
        is_plain = not normalizer.get(2) and not normalizer.get(4, 1) and normalizer.get(5, 1) and not trainer.get(24)
        if not is_plain or np.isnan(self.scores).any():
            raise TokenizerError(
                f"{place} changes texts before it cuts them, or has a score that is no number; expected SentencePiece "
                "without normalisation, as Llama 2 has it; take another model"
            )
        self.has_prefix = bool(normalizer.get(3, 1))
        self.ids: dict[str, int] = {}
        for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind != UNUSED and token and self.ids.setdefault(token, index) != index:
                raise TokenizerError(f"{place} has the piece {shown(token)} twice; fetch it again")
        numbers = {role: _signed(trainer.get(field, default)) for role, (field, default) in _ROLES.items()}
        self.roles = {role: self.tokens[i] for role, i in numbers.items() if 0 <= i < len(self.tokens)}

    def added(self) -> list[AddedToken]:
        """Control tokens and those that a text may spell: they are found before it is cut."""
        return [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token
        ]

    def unknown(self) -> str | None:
        """The piece for text without one."""
        return next((t for t, kind in zip(self.tokens, self.types, strict=True) if kind == UNKNOWN), None)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message in their order. ValueError or IndexError where it is damaged."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | memoryview
        if key & 7 == 0:
            value, at = _varint(data, at)
        elif key & 7 in (1, 2, 5):
            num_bytes = {1: 8, 5: 4}.get(key & 7)
            if num_bytes is None:
                num_bytes, at = _varint(data, at)
            value, at = data[at : at + num_bytes], at + num_bytes
            if at > len(data):
                raise ValueError("a field ends behind the file")
        else:
            raise ValueError(f"a field of wire type {key & 7}")
        yield key >> 3, value


def _bytes(value: int | memoryview | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("an integer where a text was expected")
    return bytes(value)


def _varint(data: Sequence[int], at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("an integer of more than ten bytes")


def _signed(value: int) -> int:
    """An int32, of which a negative one is written as 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
