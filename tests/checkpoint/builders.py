"""Safetensors files, right ones written by the safetensors package and wrong ones byte by byte."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize

TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64", "U8": "uint8"}

Stored = tuple[str, tuple[int, ...], bytes]  # type, shape, data

# One file, rewritten for each example.
REWRITTEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda name: name != "__metadata__")


def official(tensors: Mapping[str, Stored], metadata: dict[str, str] | None = None) -> bytes:
    """The file that the safetensors package writes."""
    kept: list[NDArray[np.uint8]] = []
    specs = {}
    for name, (dtype, shape, data) in tensors.items():
        kept.append(np.frombuffer(data, np.uint8))
        specs[name] = TensorSpec(
            dtype=TORCH_NAMES[dtype], shape=list(shape), data_ptr=kept[-1].ctypes.data, data_len=len(data)
        )
    return bytes(serialize(specs, metadata))


def f32(shape: tuple[int, ...], seed: int = 0) -> Stored:
    """A random float32 tensor."""
    return "F32", shape, np.random.default_rng(seed).standard_normal(shape, np.float32).tobytes()


def raw(header: bytes | str | object, data: bytes = b"") -> bytes:
    """A file of any header (an object is written as JSON) with the right length before it."""
    if not isinstance(header, bytes | str):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return len(header).to_bytes(8, "little") + header + data


def entry(begin: int, end: int, dtype: str = "F32", shape: list[int] | None = None) -> dict[str, object]:
    """A header's entry, of one dimension unless `shape` is given."""
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def write_folder(folder: Path, shards: Mapping[str, Mapping[str, Stored]], config: object = None) -> Path:
    """A model's folder; with an index unless its only file is model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        (folder / name).write_bytes(official(tensors))
    if set(shards) != {"model.safetensors"}:
        write_index(folder, {tensor: name for name, tensors in shards.items() for tensor in tensors})
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    """The index of a sharded model."""
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )
