"""A trace: what an engine computed on the way from token ids to logits, in one safetensors file (docs/trace-format.md).

Arrays have canonical names and one row a token; everything else is one JSON string in the file's metadata.
"""

import json
import mmap
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.files import open_regular, whole_file
from karat.checkpoint.safetensors import TensorEntry, read_header
from karat.checkpoint.weights import Weight
from karat.checkpoint.wording import shown
from karat.config import FloatName
from karat.errors import CheckpointError, TraceError

Array = NDArray[np.floating]

VERSION = 1
METADATA_KEY = "karat_trace"
LARGEST_TOKENS = 1 << 20
_STORED = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_WRITTEN = {np.dtype(np.float64): "F64", np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
_FLOATS = get_args(FloatName)
# Engines that mask by adding a large negative number write that; no score of a working model is near it.
MASKED = -6e4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """What a trace says of itself; every list is in the order in which the tokens were computed.

    token_ids   of all tokens, all steps and sequences
    positions   of each token in its sequence, from 0 on
    sequences   a number for each token: tokens with the same number attend to each other
    steps       index of the first token of each forward pass; [0] where there was one
    rows        {array name: token indices of its rows} where an array does not have all tokens
    heads       {array name: heads} where scores or weights do not have all query heads
    dtype       what the engine computes in; kv_dtype what its cache stores
    activations "ggml" if inputs of matrix products are rounded as ggml does it for the stored type of the weight;
                "none" if they are not; None where the trace does not say
    prompt, messages, generated   the text or conversation, and the ids chosen, where known
    sampling    {"temperature": …} and whatever else decided about `generated`
    model       path or name, for people; digest of the weights, to tell models apart
    config      the model's config.json, where there is no model to ask
    ranks       tensor-parallel ranks; arrays of rank r are called `name@r` (see karat.check.ranks)
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    sequences: tuple[int, ...]
    steps: tuple[int, ...] = (0,)
    dtype: FloatName = "float32"
    kv_dtype: FloatName | None = None
    activations: str | None = None
    executor: str = "unknown"
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    heads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    generated: tuple[int, ...] | None = None
    sampling: Mapping[str, Any] | None = None
    model: str | None = None
    digest: str | None = None
    config: Mapping[str, Any] | None = None
    ranks: int = 1

    @property
    def rounds_activations(self) -> bool:
        """Whether it says that inputs of products are rounded."""
        return self.activations == "ggml"

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class LazyArrays(Mapping[str, Array]):
    """Arrays that are made, or read, each time they are asked for: so they need not fit the memory together."""

    def __init__(self, names: Collection[str], make: Callable[[str], Array]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Arrays by name (float16, float32 or float64; bfloat16 is widened to float32, exactly), and their description.

    shapes: where they are known without the arrays.
    """

    info: TraceInfo
    arrays: Mapping[str, Array]
    path: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None

    def shape_of(self, name: str) -> tuple[int, ...]:
        """An array's shape."""
        return self.arrays[name].shape if self.shapes is None else self.shapes[name]

    def rows_of(self, name: str) -> NDArray[np.int64]:
        """Token indices of an array's rows."""
        return rows_of(self.info, name)


def rows_of(info: TraceInfo, name: str) -> NDArray[np.int64]:
    """Token indices of the rows of an array of this name."""
    return np.array(info.rows.get(name, range(info.num_tokens)), np.int64)


def make_info(token_ids: Sequence[int], **fields: Any) -> TraceInfo:
    """A TraceInfo with positions and sequences filled in: one sequence from position 0 on, unless they are given."""
    sequences = tuple(fields.pop("sequences", None) or (0,) * len(token_ids))
    positions = fields.pop("positions", None)
    if positions is None:
        seen: dict[int, int] = {}
        counted = []
        for sequence in sequences:
            counted.append(seen.get(sequence, 0))
            seen[sequence] = counted[-1] + 1
        positions = counted
    return TraceInfo(token_ids=tuple(token_ids), positions=tuple(positions), sequences=sequences, **fields)


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


def read_trace(path: Path) -> Trace:
    """Open and check a trace; its arrays are read when they are asked for, and not kept.

    Raises TraceError, also for a broken file. As with any mapping, another process that shortens the file in the
    meantime ends this one.
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
        raise fail(f"{METADATA_KEY!r} holds {shown(raw)}, expected an object")
    if raw.get("version") != VERSION:
        raise fail(f"version {shown(raw.get('version'))}; this Karat reads version {VERSION}")
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
    for name, rows in fields["rows"].items():
        if any(row >= num_tokens for row in rows):
            raise fail(f"rows of {shown(name)} go up to {max(rows)}, and there are {num_tokens} tokens")
    steps = fields.get("steps", (0,))
    if not steps or steps[0] != 0 or list(steps) != sorted(set(steps)) or steps[-1] >= num_tokens:
        raise fail(f"steps {shown(list(steps))}: expected ascending token indices that begin with 0")
    for key in ("dtype", "kv_dtype"):
        if key in fields and fields[key] not in _FLOATS:
            raise fail(f"{key}={shown(fields[key])}; expected one of {', '.join(_FLOATS)}")
    if fields.get("activations", "none") not in ("ggml", "none"):
        raise fail(f"activations={shown(fields['activations'])}; expected 'ggml' or 'none', or nothing")
    for key, kind in (("prompt", str), ("executor", str), ("model", str), ("digest", str), ("config", dict),
                      ("messages", list), ("sampling", dict), ("ranks", int)):  # fmt: skip
        if key in fields and (not isinstance(fields[key], kind) or isinstance(fields[key], bool)):
            raise fail(f"{key}={shown(fields[key])}; expected {kind.__name__}")
    info = make_info(fields.pop("token_ids"), **fields)
    if info.ranks < 1:
        raise fail(f"ranks={info.ranks}; expected at least 1")
    return info
