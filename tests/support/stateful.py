"""A family of the tests alone, of layers that keep a state and others with attention, in any order.

It is known in this process where `with_toy` was called; no release has states alone, which these may.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from karat.layers.block import Block, Branch
from karat.layers.delta_net import DeltaShape, GatedDeltaNet
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RMSNorm
from karat.layers.place import Place
from karat.models import qwen3
from karat.models.families import FAMILIES
from karat.models.family import Family, read_decoder
from karat.models.reader import ConfigReader

SHAPE = DeltaShape(key_heads=2, value_heads=4, key_dim=6, value_dim=10, taps=4)
CONFIG: dict[str, Any] = {
    "architectures": ["ToyForCausalLM"],
    "model_type": "toy",
    "num_hidden_layers": 3,
    "kinds": "SKS",
    "head_dim": 8,
    "use_sliding_window": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig(qwen3.Qwen3Config):
    kinds: str  # S keeps a state, K keys


def layer(place: Place, config: ToyConfig, index: int) -> Block:
    if config.kinds[index] == "K":
        return qwen3.layer(place, config, index)
    size, eps = config.hidden_size, config.rms_norm_eps
    delta = GatedDeltaNet(place / "linear_attn", size, SHAPE, eps=eps, of_log=True)
    mlp = GatedMLP(place / "mlp", size, config.shape(index).inner_size)
    norms = (RMSNorm(place / name, size, eps) for name in ("input_layernorm", "post_attention_layernorm"))
    first, second = norms
    return Block(place.name, Branch(first, delta), Branch(second, mlp))


def read(reader: ConfigReader) -> ToyConfig:
    kinds = reader.get(str, "kinds")
    reader.get(bool, "use_sliding_window", False)
    return read_decoder(
        reader,
        ToyConfig,
        layer_windows=(None,) * len(kinds),
        num_kv_heads=reader.get(int, "num_key_value_heads"),
        head_dim=reader.get(int, "head_dim"),
        attention_bias=False,
        kinds=kinds,
    )


@contextmanager
def with_toy() -> Iterator[None]:
    """The family is known inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "toy", Family("toy", "ToyForCausalLM", read, layer, qwen3.GGUF))  # type: ignore[arg-type]
        yield
