"""The healthy half of the zoo: random transformers models of every family, and the checkpoints they come from."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from karat.check.model.graph import Graph, build_graph
from karat.check.model.weights import CheckpointWeights
from karat.check.record.executors import Steps
from karat.check.record.hf_modules import part_of
from karat.checkpoint.weights import Weight
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS
from tests.support import random_models
from tools.zoo.placeholder_blocks import placeholder

# Rows of whole blocks of every format.
_WHOLE_BLOCKS = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 1,
}
_BYTES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Checkpoint:
    """A checkpoint in memory, in one stored type; of a block format, matrices are blocks and the rest float32.

    Of formats that Karat does not write the blocks are random.
    """

    def __init__(self, model: Any, raw: Mapping[str, Any], stored: str) -> None:
        self.path = Path("in-memory")
        self.weights = {}
        self.is_quantised = stored in FORMATS
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and raw["tie_word_embeddings"]:
                continue
            if self.is_quantised:
                self.weights[name] = _blocks(name, tensor, stored, self.path)
                continue
            data = tensor.detach().to(_BYTES[stored]).contiguous().view(-1).view(torch.uint8).numpy().copy()
            self.weights[name] = Weight(name, stored, tuple(tensor.shape), data, self.path)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One random model, as transformers runs it and as the diagnosis knows it, and the tokens and steps of its run."""

    raw: Mapping[str, Any]
    hf: Any
    checkpoint: Checkpoint
    graph: Graph
    weights: CheckpointWeights
    steps: Steps
    rng: random.Random


FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # of which the rates in docs/diagnosis.md were measured


def _blocks(name: str, tensor: torch.Tensor, stored: str, path: Path) -> Weight:
    values = tensor.detach().float().numpy()
    if values.ndim < 2:
        return Weight(name, "F32", values.shape, values.copy().view(np.uint8), path)
    format_ = FORMATS[stored]
    rows = values.reshape(-1, format_.block_size)
    blocks = placeholder(format_, rows) if format_.pack is None else format_.quantize(rows)
    return Weight(name, stored, values.shape, blocks.reshape(-1), path)


def draw(
    seed: str,
    *,
    family: str | None = None,
    stored: str | tuple[str, ...] = "F32",
    dtype: torch.dtype = torch.float32,
    steps: str | None = None,
    changes: Mapping[str, Any] | None = None,
    gain: float = 1.0,
    lengths: tuple[int, int] | None = None,
    small_keys: bool = False,
) -> Subject:
    """A model and a prompt. steps: "whole", "chunks", "decode", "mixed" (both), or None: one of the first three.

    stored: one type, or one of several; small_keys: q and k of delta nets are so small that the eps of their lengths
    counts.
    """
    rng = random.Random(seed)
    if isinstance(stored, tuple):
        stored = rng.choice(stored)
    raw = random_models.draw_config(rng, family or rng.choice(FAMILIES))
    if stored in FORMATS:
        changes = {**_WHOLE_BLOCKS, **(changes or {})}
    if changes:
        allowed = set(raw) | _OPTIONAL.get(raw["model_type"], set())
        raw |= {key: value for key, value in changes.items() if key in allowed}
        if not raw.keys() & {"linear_num_key_heads", "conv_L_cache"}:
            raw.pop("layer_types", None)
        if isinstance(by_layer := raw.get("no_rope_layers"), list):  # there may be more layers now, or fewer
            num_layers = raw["num_hidden_layers"]
            raw["no_rope_layers"] = (by_layer * num_layers)[:num_layers]
    hf = random_models.build(raw, rng.randrange(2**31))
    with torch.no_grad():
        for layer in hf.model.layers:
            if small_keys and hasattr(layer, "linear_attn"):
                layer.linear_attn.conv1d.weight[: 2 * layer.linear_attn.key_dim] *= 1e-3
            mlp = part_of(layer, "mlp")
            if hasattr(mlp, "experts"):
                mlp.experts.gate_up_proj.mul_(gain)
            else:
                part_of(mlp, "up_proj").weight.mul_(gain)
                part_of(mlp, "gate_proj").weight.mul_(gain)
        if stored not in FORMATS:
            for parameter in hf.parameters():
                parameter.copy_(parameter.to(_BYTES[stored]).to(dtype))
        checkpoint = Checkpoint(hf, raw, stored)
        if stored in FORMATS:
            for name, weight in checkpoint.weights.items():
                hf.get_parameter(name).copy_(torch.from_numpy(weight.to_array(np.dtype(np.float32))))
    length = rng.randrange(*(lengths or (24, 72)))
    ids = tuple(rng.randrange(raw["vocab_size"]) for _ in range(length))
    match steps or rng.choice(["whole", "chunks", "decode"]):
        case "whole":
            cuts: tuple[int, ...] = (0,)
        case "chunks":
            cuts = tuple(range(0, length, rng.choice([5, 9, 16])))
        case "mixed":  # a prompt in chunks, then token by token
            first = length - rng.randrange(3, 9)
            cuts = (*range(0, first, rng.choice([5, 9, 16])), *range(first, length))
        case _:
            first = length - rng.randrange(3, 9)
            cuts = (0, *range(first, length))
    config = read_config(raw)
    weights = CheckpointWeights(find_weights(config, checkpoint))
    rotary = part_of(hf.model, "rotary_emb")
    frequencies = {name: buffer.clone() for name, buffer in rotary.named_buffers()}
    hf = hf.to(dtype)
    for name, buffer in frequencies.items():  # as from_pretrained leaves them
        setattr(rotary, name, buffer)
    return Subject(raw, hf, checkpoint, build_graph(config), weights, Steps(ids, cuts), rng)


_OPTIONAL: Mapping[str, set[str]] = {
    "llama": {"attention_bias", "mlp_bias"},
    "qwen3": {"attention_bias", "head_dim"},
    "mistral": {"sliding_window", "head_dim"},
    "qwen2": set(),
}
