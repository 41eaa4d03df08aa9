"""What one rank computed, and the trace that is written of all of them (docs/trace-format.md)."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

KINDS: dict[str, Callable[[str], bool]] = {
    "full": lambda name: True,
    "layers": lambda name: name in ("model.embed_tokens", "lm_head") or name.rpartition(".")[2].isdigit(),
    "logits": lambda name: name == "lm_head",
}


class Recorder:
    """Collects arrays of one rank, step by step."""

    def __init__(self, kind: str) -> None:
        self.wants = KINDS[kind]
        self.parts: dict[str, list[np.ndarray]] = {}
        self.keys: dict[str, tuple[list[np.ndarray], float]] = {}

    def add(self, name: str, x: np.ndarray) -> None:
        """x: rows first."""
        if self.wants(name):
            self.parts.setdefault(name, []).append(np.array(x, np.float32))

    def add_keys(self, name: str, of_spans: list[np.ndarray], fill: float) -> None:
        """Scores or weights, one array a sequence: [heads, rows, keys]."""
        if self.wants(name):
            self.keys.setdefault(name, ([], fill))[0].extend(np.array(x, np.float32) for x in of_spans)

    def arrays(self) -> dict[str, np.ndarray]:
        """All steps one after the other; rows with fewer keys are filled up."""
        found = {name: np.concatenate(parts) for name, parts in self.parts.items()}
        for name, (parts, fill) in self.keys.items():
            most = max(x.shape[-1] for x in parts)
            wide = [np.pad(x, ((0, 0), (0, 0), (0, most - x.shape[-1])), constant_values=fill) for x in parts]
            found[name] = np.concatenate(wide, axis=1)
        return found


def write_trace(path: Path, arrays: dict[str, np.ndarray], **info: Any) -> None:
    """The writer of docs/trace-format.md."""
    header: dict[str, Any] = {"__metadata__": {"karat_trace": json.dumps({"version": 1, **info})}}
    parts, end = [], 0
    for name, x in arrays.items():
        parts.append(np.ascontiguousarray(x, "<f4").tobytes())
        header[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + b"".join(parts))
