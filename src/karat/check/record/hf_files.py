"""The tensors of a model folder, as the safetensors library reads them for transformers' models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from karat.checkpoint.joins import joins_of, renamed
from karat.checkpoint.sideways import Sideways
from karat.checkpoint.weights import WeightSpec
from karat.errors import CheckpointError

_STACKED = {"gate_up_proj": ("gate_proj.weight", "up_proj.weight"), "down_proj": ("down_proj.weight",)}
INDEX = "model.safetensors.index.json"


class HfFiles:
    """The tensors of a model folder, as the safetensors library reads them.

    Those of the text model in a folder with several models have the names that a text model's have. `shapes` are those
    that a model needs, by name: what the files join to one tensor is its rows (karat.checkpoint.joins).
    """

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]] = {}) -> None:
        index = folder / INDEX
        if index.exists():
            names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            # A file name must not lead out of the folder; Karat's own reader has refused such an index already.
            files = {name: folder / Path(file).name for name, file in names.items()}
        else:
            with safe_open(folder / "model.safetensors", "pt") as file:
                files = dict.fromkeys(file.keys(), folder / "model.safetensors")
        self._files = {
            renamed(name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)): (file, name)
            for name, file in files.items()
        }
        self.names = tuple(self._files)
        self._parts: dict[str, tuple[str, int, int]] = {}  # of a joined tensor: its name, and its rows
        self._turned: dict[str, tuple[str, int, int, int]] = {}  # the same of Sideways: expert, first row, step
        for join in joins_of([WeightSpec(renamed(name), shape) for name, shape in shapes.items()], self.names):
            if isinstance(join, Sideways):
                whole = join.specs[0].source.removesuffix("_blocks")
                for number, part in enumerate(join.parts):
                    self._turned[part.source] = whole, *divmod(number, join.num_each), join.num_each
                continue
            stop = 0
            for part in join.parts:
                start, stop = stop, stop + part.shape[0]
                self._parts[part.source] = join.spec.source, start, stop

    def tensor(self, name: str) -> torch.Tensor:
        """The stored tensor; CheckpointError if no file has it. Of experts that files have one by one: all of them."""
        name = renamed(name)
        if name in self._parts:
            whole, start, stop = self._parts[name]
            rows = self.tensor(whole)
            return (rows.flatten(0, 1) if rows.ndim == 3 else rows)[start:stop]  # matrices, one after the other
        if name in self._turned:
            whole, expert, first, step = self._turned[name]
            columns = self.tensor(whole)[expert]
            return (columns.T if columns.ndim == 2 else columns)[first::step]
        if name not in self._files and (experts := self._experts(name)):
            return torch.stack([torch.cat([self.tensor(part) for part in parts]) for parts in experts])
        if name not in self._files and f"{name}_blocks" in self._files:
            return _upright(self.tensor(f"{name}_blocks"), self.tensor(f"{name}_scales"))
        if name not in self._files:
            raise CheckpointError(f"{name}: transformers' model needs it, and the files do not have it")
        path, stored = self._files[name]
        with safe_open(path, "pt") as file:
            return file.get_tensor(stored)

    def _experts(self, name: str) -> list[list[str]]:
        """The tensors of each expert that are the rows of its matrix in the stack `name`; none if it is no stack."""
        prefix, _, last = name.rpartition("experts.")
        of_each = _STACKED.get(last, ()) if prefix else ()
        found: list[list[str]] = []
        while of_each and f"{prefix}experts.{len(found)}.{of_each[0]}" in self._files:
            found.append([f"{prefix}experts.{len(found)}.{part}" for part in of_each])
        return found

    def stored_bytes(self, name: str) -> Any:
        """The bytes of the tensor, a flat uint8 array."""
        return self.tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy()


def _upright(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values of MXFP4 [experts, rows, blocks, 16] as transformers' gpt-oss has them: [experts, columns, rows]."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((numbers, -numbers))
    pairs = torch.stack((numbers[(blocks & 15).int()], numbers[(blocks >> 4).int()]), dim=-1)
    values = torch.ldexp(pairs.flatten(-2), scales[..., None].int() - 127)
    return values.flatten(-2).transpose(1, 2).contiguous()
