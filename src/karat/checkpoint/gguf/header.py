"""read_header: the metadata and tensor infos of a GGUF file, checked against the format and the file's size.

    byte 0        4          8              16            24
         | GGUF   | version  | num_tensors  | num_pairs   | pairs | tensor infos | padding | data      |
           magic    uint32     uint64         uint64                                 to `alignment`

    pair          | key: string | type: uint32 | value                                  |
    tensor info   | name: string | num_dims: uint32 | dims: uint64 each | type: uint32 | offset: uint64 |
    string        | length: uint64 | UTF-8 bytes |
    array         | item type: uint32 | length: uint64 | items |
    data          | tensor 0 | padding | tensor 1 | padding | …        at `offset` from the start of the data

All integers are little-endian. `dims` are in reverse of NumPy's order. `alignment` is `general.alignment`, else 32.

Files are untrusted. Every count, length and offset is checked in Python's unbounded integers before it is used; the
data is only mapped. The limits below are far above any model: refusing a file takes little time and memory.
"""

import math
import mmap
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from karat.checkpoint.files import mapped, open_regular
from karat.checkpoint.gguf.values import ARRAY, NAMES, NUMBERS, STRING, GgufArray, Metadata, Value, shortest
from karat.checkpoint.weights import PLAIN_BYTES
from karat.checkpoint.wording import shown
from karat.errors import CheckpointError
from karat.quant import GGML_FORMATS

MAX_HEADER_BYTES = 64 << 20  # metadata and tensor infos; a vocabulary of 256k tokens takes 12 MB
MAX_PAIRS = 1 << 14
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = 1024
MAX_NAME_BYTES = 64  # ggml's own
MAX_STRING_BYTES = 16 << 20  # of all keys and strings outside arrays together
MAX_ITEMS = 1 << 23  # of all arrays of strings together
MAX_DIMS = 4
MAX_NESTED = 1 << 16  # arrays in arrays
MAX_NESTING = 4  # of arrays in arrays
_INT64_MAX = (1 << 63) - 1

PLAIN_TYPES: Mapping[int, str] = {0: "F32", 1: "F16", 28: "F64", 30: "BF16"}
_OTHER_TYPES: Mapping[int, str] = {
    4: "Q4_2, which ggml has dropped",
    5: "Q4_3, which ggml has dropped",
    9: "Q8_1, which is for activations",
    15: "Q8_K, which is for activations",
    24: "I8, integers",
    25: "I16, integers",
    26: "I32, integers",
    27: "I64, integers",
    31: "Q4_0_4_4, which ggml has dropped",
    32: "Q4_0_4_8, which ggml has dropped",
    33: "Q4_0_8_8, which ggml has dropped",
    36: "IQ4_NL_4_4, which ggml has dropped",
    37: "IQ4_NL_4_8, which ggml has dropped",
    38: "IQ4_NL_8_8, which ggml has dropped",
    41: "Q1_0",
}
_OLD = "it is an old GGML file of before August 2023: convert the original model to GGUF"
_FOREIGN = {
    b"version ": "it is a Git LFS pointer, not the model: run `git lfs pull` there",
    b"PK\x03\x04": "it is a PyTorch (pickle) archive under a wrong name",
    **dict.fromkeys((b"tjgg", b"lmgg", b"fmgg", b"algg", b"ggjt", b"ggml", b"ggmf", b"ggla"), _OLD),
    **dict.fromkeys((b"FROM ", b"# Modelfile"), "it is an Ollama Modelfile: give the file that its FROM names"),
    b"<": "it looks like a web page: the download failed or needs a login",
    b"FUGG": "it is a big-endian GGUF file, and Karat reads little-endian ones",
}


class GgufError(Exception):
    """The fault of a file, without its path; read_header raises it as a CheckpointError."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its stored type, its shape in NumPy's order (reversed in the file), its bytes [begin, end)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class GgufHeader:
    """A file's header. Offsets are in bytes from the start of the file; `buffer` is the whole file, mapped."""

    path: Path
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    buffer: memoryview


def read_header(path: Path) -> GgufHeader:
    """Maps and checks a GGUF file of version 2 or 3. Raises CheckpointError.

    If another process shortens the file later, the first lost page ends this process with SIGBUS, as with any mapping:
    replace models by renaming, never in place.
    """
    file, size = open_regular(path)
    with file:
        start = file.read(8)
        if start[:4] != b"GGUF" or len(start) < 8:
            raise CheckpointError(
                f"{path}: begins with {shown(start[:4])} and has {size} bytes; expected GGUF and a header: "
                + (instead(start + file.read(56)) or "it is truncated or no GGUF file; download it again")
            )
        mapping = mapped(file, size, path)
    try:
        return _Parser(path, memoryview(mapping)).header()
    except GgufError as fault:
        raise CheckpointError(f"{path}: {fault}; download it again, or convert the model anew") from fault
    finally:  # the pages that were read count as this process's memory, and a model may have many parts
        if hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def instead(head: bytes) -> str | None:
    """What a file is instead of GGUF, by its first bytes, and what to do; None if that is not known."""
    bare = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((what for magic, what in _FOREIGN.items() if head.startswith(magic) or bare[:1] == magic), None)


class _Parser:
    """Walks the header from its start. Every method raises GgufError."""

    def __init__(self, path: Path, buffer: memoryview) -> None:
        self._path = path
        self._buffer = buffer
        self._end = min(len(buffer), MAX_HEADER_BYTES)
        self._position = 4
        self._where = "the header"
        self._string_bytes = 0
        self._num_items = 0
        self._num_nested = 0

    def header(self) -> GgufHeader:
        version = self._integer("<I")
        if version not in (2, 3):
            raise GgufError(_wrong_version(version))
        num_tensors, num_pairs = self._integer("<Q"), self._integer("<Q")
        for what, count, limit in (("tensors", num_tensors, MAX_TENSORS), ("metadata keys", num_pairs, MAX_PAIRS)):
            if count > limit:
                raise GgufError(f"states {count} {what}; expected at most {limit}")
        pairs, stored = self._pairs(num_pairs)
        metadata = Metadata(str(self._path), pairs, stored)
        alignment = pairs.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise GgufError(f"general.alignment is {shown(alignment)}; expected a power of 2")
        return GgufHeader(self._path, version, alignment, metadata, self._tensors(num_tensors, alignment), self._buffer)

    def _pairs(self, count: int) -> tuple[dict[str, Value], dict[str, memoryview]]:
        """The values by their keys: decoded, and as stored bytes (type and value)."""
        pairs: dict[str, Value] = {}
        stored: dict[str, memoryview] = {}
        for number in range(count):
            self._where = f"metadata key {number} of {count}"
            key = self._text(MAX_KEY_BYTES)
            self._where = f"the value of {shown(key)}"
            if key in pairs:
                raise GgufError(f"has the metadata key {shown(key)} twice")
            self._count_text()
            start = self._position
            pairs[key] = self._value(self._integer("<I"))
            stored[key] = self._buffer[start : self._position]
        return pairs, stored

    def _value(self, kind: int) -> Value:
        if kind == STRING:
            text = self._text(MAX_STRING_BYTES)
            self._count_text()
            return text
        if kind == ARRAY:
            return self._array(1)
        if kind not in NUMBERS:
            raise GgufError(f"{self._where} has the type {kind}; expected 0 to 12")
        name, numpy_name = NUMBERS[kind]
        (number,) = np.frombuffer(self._take(np.dtype(numpy_name).itemsize), numpy_name).tolist()
        if name == "BOOL":
            if number > 1:
                raise GgufError(f"{self._where} is the truth value {number}; expected 0 or 1")
            return bool(number)
        return shortest(number) if name == "FLOAT32" else number

    def _array(self, depth: int) -> GgufArray:
        kind, length = self._integer("<I"), self._integer("<Q")
        begin, starts = self._position, array("Q")
        if kind in NUMBERS:
            numbers = self._take(length * np.dtype(NUMBERS[kind][1]).itemsize)
            if NUMBERS[kind][0] == "BOOL" and length and np.frombuffer(numbers, np.uint8).max() > 1:
                raise GgufError(f"{self._where} holds truth values other than 0 and 1")
        elif kind == STRING:
            self._num_items += length
            if self._num_items > MAX_ITEMS:
                raise GgufError(f"{self._where} brings the strings in arrays to more than {MAX_ITEMS}")
            starts = self._skip_strings(length)
        elif kind == ARRAY:
            self._num_nested += length
            if self._num_nested > MAX_NESTED:
                raise GgufError(f"{self._where} brings the arrays in arrays to more than {MAX_NESTED}")
            if depth == MAX_NESTING:
                raise GgufError(f"{self._where} nests arrays {depth + 1} deep; expected at most {MAX_NESTING}")
            for _ in range(length):
                self._array(depth + 1)
        else:
            raise GgufError(f"{self._where} is an array of the type {kind}; expected 0 to 12")
        return GgufArray(NAMES[kind], length, begin, self._position, self._buffer, starts)

    def _skip_strings(self, count: int) -> "array[int]":
        """Move past `count` strings; where each begins, counted from here.

        This is the hot loop: large vocabularies have half a million strings.
        """
        buffer, position, last, unpack = self._buffer, self._position, self._end - 8, struct.Struct("<Q").unpack_from
        if count > (self._end - position) // 8:
            raise self._too_short(position + 8 * count)
        begin, starts = position, array("Q", bytes(8 * count))
        for i in range(count):
            if position > last:
                break
            starts[i] = position - begin
            position += 8 + unpack(buffer, position)[0]
        else:
            if position <= self._end:
                self._position = position
                return starts
        raise self._too_short(position)

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        raw: dict[str, tuple[int, tuple[int, ...], int]] = {}  # type, shape, offset in the data
        for number in range(count):
            self._where = f"tensor {number} of {count}"
            name = self._text(MAX_NAME_BYTES)
            if name in raw:
                raise GgufError(f"has the tensor {shown(name)} twice")
            self._where = f"tensor {shown(name)}"
            num_dims = self._integer("<I")
            if not 1 <= num_dims <= MAX_DIMS:
                raise GgufError(f"{self._where} has {num_dims} dimensions; expected 1 to {MAX_DIMS}")
            dims = struct.unpack(f"<{num_dims}Q", self._take(8 * num_dims))
            if min(dims) < 1 or math.prod(dims) > _INT64_MAX:
                raise GgufError(f"{self._where} has the dimensions {list(dims)}; expected 1 to 2**63 - 1 elements")
            raw[name] = self._integer("<I"), dims[::-1], self._integer("<Q")
        return self._located(raw, alignment)

    def _located(self, raw: Mapping[str, tuple[int, tuple[int, ...], int]], alignment: int) -> dict[str, TensorInfo]:
        """The tensors, each checked to begin at the padded end of the one before it and to lie within the file."""
        start = _aligned(self._position, alignment)
        tensors: dict[str, TensorInfo] = {}
        expected = 0
        for name, (kind, shape, offset) in sorted(raw.items(), key=lambda item: item[1][2]):
            dtype, num_bytes = _type_and_bytes(name, kind, shape)
            if offset != expected:
                raise GgufError(f"tensor {shown(name)} begins at offset {offset} of the data; expected {expected}")
            expected = _aligned(offset + num_bytes, alignment)
            begin, end = start + offset, start + offset + num_bytes
            if end > len(self._buffer):
                raise GgufError(
                    f"tensor {shown(name)} ends at byte {end} of a file of {len(self._buffer)} bytes, "
                    "which is truncated"
                )
            tensors[name] = TensorInfo(name, dtype, shape, begin, end)
        return {name: tensors[name] for name in raw}

    def _integer(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(number)

    def _count_text(self) -> None:
        if self._string_bytes > MAX_STRING_BYTES:
            raise GgufError(f"has more than {MAX_STRING_BYTES} bytes of keys and strings in its metadata")

    def _text(self, limit: int) -> str:
        length = self._integer("<Q")
        self._string_bytes += length
        if length > limit:
            raise GgufError(f"{self._where} has a text of {length} bytes; expected at most {limit}")
        data = bytes(self._take(length))
        try:
            return data.decode()
        except UnicodeDecodeError as fault:
            raise GgufError(f"{self._where} has a text that is not UTF-8: {shown(data)}") from fault

    def _take(self, length: int) -> memoryview:
        end = self._position + length
        if end > self._end:
            raise self._too_short(end)
        data = self._buffer[self._position : end]
        self._position = end
        return data

    def _too_short(self, end: int) -> GgufError:
        if self._end < len(self._buffer):
            return GgufError(f"{self._where} reaches byte {end}; expected a header of at most {MAX_HEADER_BYTES} bytes")
        return GgufError(f"{self._where} reaches byte {end} of a file of {self._end} bytes, which is truncated")


def _wrong_version(version: int) -> str:
    if version == 1:
        return "is GGUF version 1, of 2023; expected 2 or 3: convert the original model again"
    if version < 1 << 16:
        return f"is GGUF version {version}; expected 2 or 3: is there a newer Karat?"
    return (
        f"is big-endian (it states version {version:#010x}); Karat reads little-endian files: convert the original "
        "model for such machines"
    )


def _type_and_bytes(name: str, kind: int, shape: tuple[int, ...]) -> tuple[str, int]:
    if dtype := PLAIN_TYPES.get(kind):
        return dtype, math.prod(shape) * PLAIN_BYTES[dtype]
    format_ = GGML_FORMATS.get(kind)
    if format_ is None:
        known = _OTHER_TYPES.get(kind, "which is unknown")
        readable = ", ".join([*PLAIN_TYPES.values(), *(format_.name for format_ in GGML_FORMATS.values())])
        raise GgufError(f"tensor {shown(name)} has the type {kind}, {known}; Karat reads {readable}")
    if shape[-1] % format_.block_size:
        raise GgufError(
            f"tensor {shown(name)} is {format_.name} with rows of {shape[-1]}; expected a multiple of "
            f"{format_.block_size}"
        )
    return format_.name, format_.num_bytes(math.prod(shape))


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
