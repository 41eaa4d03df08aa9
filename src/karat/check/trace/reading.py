"""Traces read with suspicion: a file of any origin, checked before anything is computed from it."""

import json
import mmap
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from karat.check.trace.format import METADATA_KEY, VERSION, Array, LazyArrays, Trace, TraceInfo, make_info
from karat.checkpoint.files import open_regular
from karat.checkpoint.safetensors import TensorEntry, read_header
from karat.checkpoint.weights import Weight
from karat.checkpoint.wording import as_json, kind_of, shown
from karat.config import FloatName
from karat.errors import CheckpointError, TraceError
from karat.ops.integers import WIDTHS

LARGEST_TOKENS = 1 << 20
_STORED = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_FLOATS = get_args(FloatName)
_KINDS: dict[str, type] = dict.fromkeys(("prompt", "executor", "model", "digest"), str)
_KINDS |= {"config": dict, "messages": list, "sampling": dict, "ranks": int, "numeric_contract": int}
_ACTIVATIONS = ("ggml", "none", *WIDTHS)


def read_trace(path: Path) -> Trace:
    """Open and check a trace; an array is read at each access, and not kept.

    Raises TraceError, also for a broken file. The file is mapped: if another process shortens it while it is read, this
    process ends with SIGBUS.
    """
    try:
        header = read_header(path)
    except CheckpointError as fault:
        what = str(fault).split("download it again")[0].rstrip(" ;:")
        raise TraceError(f"{what}; a trace is a safetensors file: record it anew (docs/trace-format.md)") from fault
    if METADATA_KEY not in header.metadata:
        raise TraceError(
            f"{path}: is a safetensors file without {METADATA_KEY!r} in its metadata; a trace says there what its "
            "arrays are (docs/trace-format.md)"
        )
    try:
        raw = json.loads(header.metadata[METADATA_KEY])
    except (ValueError, RecursionError) as fault:
        raise TraceError(f"{path}: {METADATA_KEY!r} of its metadata is no JSON ({fault}); write it anew") from None
    info = _read_info(path, raw)
    for name, entry in header.entries.items():
        if entry.dtype not in (*_STORED, "BF16"):
            raise TraceError(f"{path}: {shown(name)} is {entry.dtype}; expected {', '.join((*_STORED, 'BF16'))}")
    file, size = open_regular(path)
    with file:
        data = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)

    def read(name: str) -> Array:
        return _array(path, name, header.entries[name], data)

    shapes = {name: entry.shape for name, entry in header.entries.items()}
    return Trace(info, LazyArrays(header.entries, read), path, shapes)


def _array(path: Path, name: str, entry: TensorEntry, data: NDArray[np.uint8]) -> Array:
    """One array of a file, in memory of its own."""
    stored = Weight(name, entry.dtype, entry.shape, data[entry.begin : entry.end], path)
    if entry.dtype == "BF16":
        array = stored.to_array(np.dtype(np.float32))
    else:
        kind = np.dtype(_STORED[entry.dtype]).newbyteorder("<")
        array = np.frombuffer(stored.data.tobytes(), kind).reshape(entry.shape)
    stored.release()
    return array


def _read_info(path: Path, raw: Any) -> TraceInfo:
    def fail(what: str) -> TraceError:
        return TraceError(f"{path}: {what}; see docs/trace-format.md")

    if not isinstance(raw, dict):
        raise fail(f"{METADATA_KEY!r} holds {as_json(raw)}, expected an object")
    if raw.get("version") != VERSION:
        raise fail(f"version {as_json(raw.get('version'))}; this Karat reads version {VERSION}")
    known = set(TraceInfo.__dataclass_fields__) | {"version"}
    if unknown := sorted(set(raw) - known):
        raise fail(f"unknown key {shown(unknown[0])}; expected some of {', '.join(sorted(known))}")
    fields = {key: value for key, value in raw.items() if key != "version" and value is not None}
    num_tokens = len(fields["token_ids"]) if isinstance(fields.get("token_ids"), list) else 0
    if not 0 < num_tokens <= LARGEST_TOKENS:
        raise fail(f"token_ids must be a list of 1 to {LARGEST_TOKENS} token ids")
    for key in ("token_ids", "positions", "sequences", "steps", "generated"):
        if key in fields:
            values = fields[key]
            if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
                raise fail(f"{key}: expected a list of integers of at least 0")
            if key in ("positions", "sequences") and len(values) != num_tokens:
                raise fail(f"{key} has {len(values)} entries for {num_tokens} tokens")
            fields[key] = tuple(values)
    for key in ("rows", "heads"):
        table = fields.get(key, {})
        if not isinstance(table, dict) or not all(
            isinstance(v, list) and all(type(i) is int and i >= 0 for i in v) for v in table.values()
        ):
            raise fail(f"{key}: expected an object of lists of integers of at least 0, by array name")
        fields[key] = {name: tuple(values) for name, values in table.items()}
    for name, rows in list(fields["rows"].items()):
        base, at, number = name.rpartition("@")
        if at and number.isdigit() and fields["rows"].setdefault(base, rows) != rows:
            raise fail(
                f"rows of {shown(name)} are not those of {shown(base)} or of another rank; ranks compute the same"
            )
    for name, rows in fields["rows"].items():
        if any(row >= num_tokens for row in rows):
            raise fail(f"rows of {shown(name)} go up to {max(rows)}, and there are {num_tokens} tokens")
    steps = fields.get("steps", (0,))
    if not steps or steps[0] != 0 or list(steps) != sorted(set(steps)) or steps[-1] >= num_tokens:
        raise fail(f"steps {as_json(list(steps))}: expected ascending token indices that begin with 0")
    for key in ("dtype", "kv_dtype"):
        if key in fields and fields[key] not in _FLOATS:
            raise fail(f"{key}={as_json(fields[key])}; expected one of {', '.join(_FLOATS)}")
    if fields.get("activations", "none") not in _ACTIVATIONS:
        expected = ", ".join(map(repr, _ACTIVATIONS))
        raise fail(f"activations={as_json(fields['activations'])}; expected one of {expected}, or nothing")
    if fields.get("activations") in WIDTHS and fields.get("dtype", "float32") != "float32":
        raise fail(
            f"activations={as_json(fields['activations'])} with dtype {as_json(fields['dtype'])}; expected float32"
        )
    for key, kind in _KINDS.items():
        if key in fields and (not isinstance(fields[key], kind) or isinstance(fields[key], bool)):
            raise fail(f"{key}={as_json(fields[key])}; expected {kind_of(kind)}")
    info = make_info(fields.pop("token_ids"), **fields)
    if info.ranks < 1:
        raise fail(f"ranks={info.ranks}; expected at least 1")
    return info
