"""Traces as safetensors files, written."""

import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from karat.check.trace.format import METADATA_KEY, VERSION, Trace
from karat.checkpoint.files import whole_file

_WRITTEN = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}


def write_trace(path: Path, trace: Trace) -> None:
    """Write `trace` as a safetensors file, whole or not at all. Raises OutputError if it cannot be written."""
    info = {key: value for key, value in asdict(trace.info).items() if value not in (None, {}, ())}
    metadata = {METADATA_KEY: json.dumps({"version": VERSION, **info}, ensure_ascii=False)}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in trace.arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _WRITTEN[array.dtype], "shape": array.shape, "data_offsets": (begin, end)}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with whole_file(path) as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for array in trace.arrays.values():
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
