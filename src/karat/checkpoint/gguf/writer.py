"""write_gguf: a GGUF file of version 3, written whole or not at all. karat.checkpoint.gguf.header shows the layout."""

import errno
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.gguf.header import PLAIN_TYPES
from karat.checkpoint.gguf.values import ARRAY, NAMES, NUMBERS, STRING
from karat.checkpoint.weights import PLAIN_BYTES
from karat.errors import OutputError
from karat.quant import FORMATS

ALIGNMENT = 32
_KINDS = {name: number for number, name in NAMES.items()}
_PLAIN_NUMBERS = {name: number for number, name in PLAIN_TYPES.items()}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: its name in GGUF, stored type, shape in NumPy's order, and a function that makes its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[NDArray[np.uint8]]]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor in the file, without padding."""
        num_values = math.prod(self.shape)
        return (
            FORMATS[self.dtype].num_bytes(num_values) if self.dtype in FORMATS else num_values * PLAIN_BYTES[self.dtype]
        )


def scalar(kind: str, value: float | bool) -> bytes:
    """The metadata bytes of a number or truth value of the type `kind`, such as UINT32."""
    number = _KINDS[kind]
    return struct.pack("<I", number) + np.array(value, NUMBERS[number][1]).tobytes()


def string(text: str) -> bytes:
    """The metadata bytes of a text."""
    return struct.pack("<I", STRING) + _text(text)


def strings(texts: Sequence[str]) -> bytes:
    """The metadata bytes of an array of texts."""
    return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(map(_text, texts))


def numbers(kind: str, values: Sequence[float]) -> bytes:
    """The metadata bytes of an array of numbers of the type `kind`."""
    number = _KINDS[kind]
    return struct.pack("<IIQ", ARRAY, number, len(values)) + np.array(values, NUMBERS[number][1]).tobytes()


def write_gguf(path: Path, pairs: Sequence[tuple[str, bytes]], tensors: Sequence[NewTensor]) -> None:
    """Writes the file `path`, which must not exist yet. `pairs` are keys and metadata bytes from the functions above.

    Tensors of one name, which are alike, are written as one, in their order: [number of them, rows, columns].

    The file gets its name when it is complete and on the disk. Until then it is a hidden file in the same folder; it is
    removed after any failure, and only SIGKILL and the like leave it. Raises OutputError if the file exists or cannot
    be written. Errors of a tensor's chunks pass through.
    """
    if path.exists() or path.is_symlink():
        raise OutputError(f"{path}: exists already, and nothing is overwritten; give another name, or remove it")
    tensors = _stacked(tensors)
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        file = part.open("xb")  # fails for another process's file of this name, which then stays
        try:
            with file:
                for piece in _pieces(pairs, tensors):
                    file.write(piece if isinstance(piece, bytes) else piece.data)
                file.flush()
                os.fsync(file.fileno())
            _publish(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as fault:
        reason, advice = fault.strerror or str(fault), "choose another place"
        if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            total = sum(tensor.num_bytes for tensor in tensors)
            reason, advice = f"{reason}: it takes {total} bytes", "free some space, or write to another disk"
        raise OutputError(f"{path}: cannot be written ({reason}); {advice}") from fault


def _publish(part: Path, path: Path) -> None:
    """Give the complete file its name. FileExistsError if another file took the name meanwhile."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.rename(path)


def _stacked(tensors: Sequence[NewTensor]) -> list[NewTensor]:
    """The tensors, of which those of one name are one."""
    named: dict[str, list[NewTensor]] = {}
    for tensor in tensors:
        named.setdefault(tensor.name, []).append(tensor)
    return [_stack(parts) if len(parts) > 1 else parts[0] for parts in named.values()]


def _stack(parts: Sequence[NewTensor]) -> NewTensor:
    first = parts[0]
    assert len({(part.dtype, part.shape) for part in parts}) == 1, f"{first.name} is given in several types or shapes"
    return replace(
        first,
        shape=(len(parts), *first.shape),
        chunks=lambda: chain.from_iterable(part.chunks() for part in parts),
    )


def _pieces(pairs: Sequence[tuple[str, bytes]], tensors: Sequence[NewTensor]) -> Iterator[bytes | NDArray[np.uint8]]:
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(pairs))]
    head += [part for key, value in pairs for part in (_text(key), value)]
    offset = 0
    for tensor in tensors:
        kind = FORMATS[tensor.dtype].ggml_type if tensor.dtype in FORMATS else _PLAIN_NUMBERS[tensor.dtype]
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        head += [_text(tensor.name), dims, struct.pack("<IQ", kind, offset)]
        offset += tensor.num_bytes + _padding(tensor.num_bytes)
    start = b"".join(head)
    yield start
    yield bytes(_padding(len(start)))
    for tensor in tensors:
        num_bytes = 0
        for chunk in tensor.chunks():
            num_bytes += len(chunk)
            yield chunk
        assert num_bytes == tensor.num_bytes, f"{tensor.name} gave {num_bytes} bytes, not {tensor.num_bytes}"
        yield bytes(_padding(num_bytes))


def _padding(length: int) -> int:
    return -length % ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
