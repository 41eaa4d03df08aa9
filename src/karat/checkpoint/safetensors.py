"""Reader of the safetensors format (https://huggingface.co/docs/safetensors).

    byte 0               8                                               8 + n
         | n             | JSON: {name: {dtype, shape, data_offsets}}    | data                  |
           8 bytes LE      n bytes                                         data_offsets start here

Every byte of the data belongs to exactly one tensor. Only the header is read; the data is memory-mapped. Files are
untrusted: every rule of the format is checked before a tensor is returned, and refusing a file takes less than 256 MB
of memory whatever its header says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from karat.checkpoint.files import mapped, open_regular
from karat.checkpoint.sideways import MXFP4_PARTS
from karat.checkpoint.strict_json import JsonError, JsonStream
from karat.checkpoint.weights import BYTES, Weight
from karat.checkpoint.wording import shown
from karat.errors import CheckpointError

# Bits of an element, for every type of the format.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
}

COMPUTED_TYPES = ("F32", "F16", "BF16", "F64")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# Karat's own limits, far above any model: they bound the memory that a header full of valid entries takes.
MAX_TENSORS = 1 << 17
MAX_NAME_LEN = 192
MAX_DIMS = 8
MAX_METADATA = 8 << 20  # characters, plus 64 for each entry
_INT64_MAX = (1 << 63) - 1

_FOREIGN = {
    b"version ": "it is a Git LFS pointer, not the weights: run `git lfs pull` there",
    b"PK\x03\x04": "it is a PyTorch (pickle) archive under a wrong name",
    b"GGUF": "it is a GGUF file under a wrong name",
    b"<": "it looks like a web page: the download failed or needs a login",
}

REMEDY = "use the unquantised original of this model, or convert it to bfloat16"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a header, checked against the file's size; its bytes are [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A file's header: entries in its order, and the free-text metadata."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


def read_header(path: Path) -> SafetensorsHeader:
    """Reads and checks the header of a safetensors file, with tensors of any type. Raises CheckpointError."""
    file, size = open_regular(path)
    with file:
        return _read_header(path, file, size)


def read_safetensors(path: Path, also: tuple[str, ...] = (), remedy: str = REMEDY) -> dict[str, Weight]:
    """The tensors of a file by name, memory-mapped. Raises CheckpointError for types that Karat does not compute.

    `also` are types that are parts of weights here (karat.checkpoint.scaled); `remedy` is what the error says to do.

    Sizes are checked when the file is opened. If another process shortens the file later, the first lost page ends this
    process with SIGBUS, as with any mapping: replace models by renaming, never in place.
    """
    file, size = open_regular(path)
    with file:
        header = _read_header(path, file, size)
        others = [name for name, entry in header.entries.items() if not _is_computed(name, entry, also)]
        if others:
            raise CheckpointError(
                f"{path}: tensor {shown(others[0])} is {header.entries[others[0]].dtype}"
                + (f" (and {len(others) - 1} more are of such types)" if others[1:] else "")
                + f"; expected {', '.join(COMPUTED_TYPES)}: {remedy}"
            )
        mapping = mapped(file, size, path)
    data = np.frombuffer(mapping, dtype=np.uint8)
    return {
        name: Weight(name, entry.dtype, entry.shape, data[entry.begin : entry.end], path)
        for name, entry in header.entries.items()
    }


def _is_computed(name: str, entry: TensorEntry, also: tuple[str, ...]) -> bool:
    """Whether Karat knows the type, or the bytes: those of MXFP4 (karat.checkpoint.joins)."""
    return entry.dtype in (*COMPUTED_TYPES, *also) or (entry.dtype == BYTES and name.endswith(MXFP4_PARTS))


def _read_header(path: Path, file: BinaryIO, size: int) -> SafetensorsHeader:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise CheckpointError(
            f"{path}: has {size} bytes; a safetensors file begins with the 8 bytes of its header's length: "
            "download it again"
        )
    header_len = int.from_bytes(prefix, "little")
    limit = min(size - 8, MAX_HEADER_BYTES)
    if not 2 <= header_len <= limit:
        bare = prefix.removeprefix(b"\xef\xbb\xbf").lstrip()
        reasons = [reason for magic, reason in _FOREIGN.items() if prefix.startswith(magic) or bare[:1] == magic]
        raise CheckpointError(
            f"{path}: states a header of {header_len} bytes; a file of {size} bytes can have 2 to {limit}: "
            + (reasons[0] if reasons else "it is truncated or no safetensors file; download it again")
        )
    data_start = 8 + header_len
    try:
        header = _parse(JsonStream(file, header_len), data_start, size)
        _check_layout(header.entries, data_start, size)
    except JsonError as fault:
        raise CheckpointError(f"{path}: {fault}; download it again, or save the model anew") from fault
    return header


def _parse(stream: JsonStream, data_start: int, size: int) -> SafetensorsHeader:
    entries: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    for name in stream.members():
        if name == "__metadata__":
            budget = MAX_METADATA
            for key in stream.members():
                metadata[key] = stream.string()
                budget -= 64 + len(key) + len(metadata[key])
                if budget < 0:
                    raise JsonError(f"the header has more than {MAX_METADATA} characters of __metadata__")
            continue
        if len(name) > MAX_NAME_LEN:
            raise JsonError(f"tensor name {shown(name)} has {len(name)} characters; expected at most {MAX_NAME_LEN}")
        if len(entries) == MAX_TENSORS:
            raise JsonError(f"the header names more than {MAX_TENSORS} tensors")
        try:
            entries[name] = _entry(stream.value(), data_start, size)
        except JsonError as fault:
            raise JsonError(f"tensor {shown(name)}: {fault}") from None
    stream.finish()
    return SafetensorsHeader(entries, metadata)


def _entry(value: Any, data_start: int, size: int) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        got = sorted(value) if isinstance(value, dict) else value
        raise JsonError(f"expected an object of dtype, shape and data_offsets, found {shown(got)}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise JsonError(f"type {shown(dtype)} is unknown; the format has {', '.join(DTYPE_BITS)}")
    if not _are_sizes(shape):
        raise JsonError(f"shape {shown(shape)}; expected a list of integers from 0 to 2**63 - 1")
    if len(shape) > MAX_DIMS:
        raise JsonError(f"{len(shape)} dimensions; expected at most {MAX_DIMS}")
    num_bits = DTYPE_BITS[dtype]
    for dim in shape:
        num_bits *= max(dim, 1)
        if num_bits > _INT64_MAX:
            raise JsonError(f"shape {shown(shape)} of {dtype} overflows 64 bits")
    if 0 in shape:
        num_bits = 0
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise JsonError(f"data_offsets {shown(offsets)}; expected [begin, end] with 0 <= begin <= end")
    begin, end = offsets
    if data_start + end > size:
        raise JsonError(f"its data ends at byte {data_start + end} of a file of {size} bytes, which is truncated")
    if (end - begin) * 8 != num_bits:
        raise JsonError(f"{end - begin} bytes of data; {dtype} of shape {shape} takes {num_bits / 8:.12g}")
    return TensorEntry(dtype, tuple(shape), data_start + begin, data_start + end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _INT64_MAX for value in values)


def _check_layout(entries: Mapping[str, TensorEntry], data_start: int, size: int) -> None:
    """Raise JsonError unless every byte of the data belongs to exactly one tensor."""
    position, previous = data_start, ""
    for name in sorted(entries, key=lambda name: (entries[name].begin, entries[name].end)):
        entry = entries[name]
        if entry.begin < position:
            raise JsonError(f"tensors {shown(previous)} and {shown(name)} overlap at byte {entry.begin}")
        if entry.begin > position:
            raise JsonError(f"{entry.begin - position} bytes before tensor {shown(name)} belong to no tensor")
        position, previous = entry.end, name
    if position < size:
        raise JsonError(f"the last {size - position} bytes belong to no tensor")
