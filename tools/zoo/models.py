"""The healthy half of the zoo: random transformers models of every family, and the checkpoints they come from."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from karat.check.graph import Graph, build_graph
from karat.check.record import Steps
from karat.check.weights import CheckpointWeights
from karat.checkpoint.weights import Weight
from karat.models.registry import find_weights, read_config
from tests.support import random_models

_BYTES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One random model, as transformers runs it and as the diagnosis knows it, and what is computed with it."""

    raw: Mapping[str, Any]
    hf: Any
    graph: Graph
    weights: CheckpointWeights
    steps: Steps
    rng: random.Random


class Checkpoint:
    """A checkpoint in memory, in one stored type."""

    def __init__(self, model: Any, raw: Mapping[str, Any], stored: str) -> None:
        self.path = Path("in-memory")
        self.weights = {}
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and raw["tie_word_embeddings"]:
                continue
            data = tensor.detach().to(_BYTES[stored]).contiguous().view(-1).view(torch.uint8).numpy().copy()
            self.weights[name] = Weight(name, stored, tuple(tensor.shape), data, self.path)


def draw(
    seed: str, *, family: str | None = None, stored: str = "F32", dtype: torch.dtype = torch.float32,
    steps: str | None = None, changes: Mapping[str, Any] | None = None, gain: float = 1.0,
    lengths: tuple[int, int] | None = None,
) -> Subject:  # fmt: skip
    """A model and a prompt. steps: "whole", "chunks", "decode" or None for any of them."""
    rng = random.Random(seed)
    raw = random_models.draw_config(rng, family or rng.choice(random_models.FAMILIES))
    if changes:
        allowed = set(raw) | _OPTIONAL[raw["model_type"]]
        raw |= {key: value for key, value in changes.items() if key in allowed}
        raw.pop("layer_types", None)
    hf = random_models.build(raw, rng.randrange(2**31))
    with torch.no_grad():
        for layer in hf.model.layers:
            layer.mlp.up_proj.weight.mul_(gain)
            layer.mlp.gate_proj.weight.mul_(gain)
        for parameter in hf.parameters():
            parameter.copy_(parameter.to(_BYTES[stored]).to(dtype))
    length = rng.randrange(*(lengths or (24, 72)))
    ids = tuple(rng.randrange(raw["vocab_size"]) for _ in range(length))
    match steps or rng.choice(["whole", "chunks", "decode"]):
        case "whole":
            cuts: tuple[int, ...] = (0,)
        case "chunks":
            cuts = tuple(range(0, length, rng.choice([5, 9, 16])))
        case _:
            first = length - rng.randrange(3, 9)
            cuts = (0, *range(first, length))
    config = read_config(raw)
    weights = CheckpointWeights(find_weights(config, Checkpoint(hf, raw, stored)))
    frequencies = hf.model.rotary_emb.inv_freq.clone()
    hf = hf.to(dtype)
    hf.model.rotary_emb.inv_freq = frequencies  # as from_pretrained leaves it
    return Subject(raw, hf, build_graph(config), weights, Steps(ids, cuts), rng)


_OPTIONAL: Mapping[str, set[str]] = {
    "llama": {"attention_bias", "mlp_bias"},
    "qwen3": {"attention_bias", "head_dim"},
    "mistral": {"sliding_window", "head_dim"},
    "qwen2": set(),
}
