"""The resumable state of a run in one safetensors file: weights, their running average, optimizer buffers and
counters.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


@dataclass
class Progress:
    """Counters of a run. `seconds` is training time, evaluation included; `chunk` the next chunk of samples."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    chunk: int = 0


def save_state(
    path: Path,
    model: nn.Module,
    average: dict[str, Tensor],
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    """Write the state atomically (a temporary file, then a rename)."""
    tensors = {f"model.{name}": value.detach() for name, value in model.named_parameters()}
    tensors |= {f"average.{name}": value for name, value in average.items()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, buffers in optimizer.state.items():
            tensors |= {f"optimizer.{names[parameter]}:{key}": value.detach() for key, value in buffers.items()}
    temporary = path.with_suffix(".tmp")
    save_file(
        {k: v.contiguous().clone().cpu() for k, v in tensors.items()},
        temporary,
        {"progress": json.dumps(asdict(progress))},
    )
    temporary.replace(path)


def load_state(
    path: Path, model: nn.Module, average: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]
) -> Progress:
    """Fill model, average and optimizers in place from a file of `save_state`; a name that fits nothing raises
    KeyError.
    """
    parameters = dict(model.named_parameters())
    owner = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    with safe_open(path, "pt") as file, torch.no_grad():
        for key in file.keys():  # noqa: SIM118 (not a dict)
            kind, name = key.split(".", 1)
            value = file.get_tensor(key)
            if kind == "model":
                parameters[name].copy_(value)
            elif kind == "average":
                average[name].copy_(value)
            elif kind == "optimizer":
                name, buffer = name.split(":")
                parameter = parameters[name]
                owner[parameter].state[parameter][buffer] = value.to(
                    value.device if buffer == "step" else parameter.device
                )
            else:
                raise KeyError(f"{path}: unknown entry {key}")
        return Progress(**json.loads(file.metadata()["progress"]))
