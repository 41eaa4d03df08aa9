"""The weights of one tensor-parallel rank: heads, inner features and the vocabulary are split, the rest is whole."""

from dataclasses import dataclass

import numpy as np

from tools.zoo.strangers.checkpoint import Config, Weights


@dataclass
class Layer:
    """One layer's weights on one rank; products are x @ w.T."""

    input_norm: np.ndarray  # [hidden]
    qkv: np.ndarray  # [(heads + 2 · KV heads) · head_dim, hidden], of this rank
    qkv_bias: np.ndarray  # the same rows; 0 where the model has none
    o: np.ndarray  # [hidden, heads · head_dim]
    post_norm: np.ndarray  # [hidden]
    gate_up: np.ndarray  # [2 · inner, hidden], gate first
    down: np.ndarray  # [hidden, inner]


class Shards:
    """Cuts a checkpoint for rank `rank` of `ranks`."""

    def __init__(self, weights: Weights, config: Config, rank: int, ranks: int) -> None:
        self.weights, self.config, self.rank, self.ranks = weights, config, rank, ranks
        self.heads = config.heads // ranks
        self.kv_heads = max(config.kv_heads // ranks, 1)

    def part(self, x: np.ndarray, axis: int = 0) -> np.ndarray:
        """This rank's part of an axis that is split evenly."""
        size = x.shape[axis] // self.ranks
        return x.take(range(self.rank * size, (self.rank + 1) * size), axis)

    def first_kv_head(self) -> int:
        """With more ranks than KV heads several ranks have a copy of the same head."""
        return self.rank * self.config.kv_heads // self.ranks

    def kv_part(self, x: np.ndarray) -> np.ndarray:
        """This rank's KV heads: rows of k_proj or v_proj."""
        first, size = self.first_kv_head(), self.config.head_dim
        return x[first * size : (first + self.kv_heads) * size]

    def vocabulary(self) -> range:
        """This rank's token ids. All shards are equally long, but for the last."""
        size = -(-self.config.vocabulary // self.ranks)
        return range(self.rank * size, min((self.rank + 1) * size, self.config.vocabulary))

    def embedding(self) -> np.ndarray:
        rows = self.vocabulary()
        return self.weights["model.embed_tokens.weight"][rows.start : rows.stop]

    def head(self) -> np.ndarray:
        rows = self.vocabulary()
        name = "model.embed_tokens.weight" if self.config.tied else "lm_head.weight"
        return self.weights[name][rows.start : rows.stop]

    def final_norm(self) -> np.ndarray:
        return self.weights["model.norm.weight"]

    def tensor(self, i: int, name: str) -> np.ndarray:
        return self.weights[f"model.layers.{i}.{name}"]

    def qkv(self, i: int) -> np.ndarray:
        q, k, v = (self.tensor(i, f"self_attn.{x}_proj.weight") for x in "qkv")
        return np.concatenate([self.part(q), self.kv_part(k), self.kv_part(v)])

    def qkv_bias(self, i: int) -> np.ndarray:
        if not self.config.biases:
            return np.zeros((self.heads + 2 * self.kv_heads) * self.config.head_dim, np.float32)
        q, k, v = (self.tensor(i, f"self_attn.{x}_proj.bias") for x in "qkv")
        return np.concatenate([self.part(q), self.kv_part(k), self.kv_part(v)])

    def gate_up(self, i: int) -> np.ndarray:
        return np.concatenate([self.part(self.tensor(i, f"mlp.{x}_proj.weight")) for x in ("gate", "up")])

    def o(self, i: int) -> np.ndarray:
        return self.part(self.tensor(i, "self_attn.o_proj.weight"), 1)

    def down(self, i: int) -> np.ndarray:
        return self.part(self.tensor(i, "mlp.down_proj.weight"), 1)

    def layer(self, i: int) -> Layer:
        return Layer(
            self.tensor(i, "input_layernorm.weight"),
            self.qkv(i),
            self.qkv_bias(i),
            self.o(i),
            self.tensor(i, "post_attention_layernorm.weight"),
            self.gate_up(i),
            self.down(i),
        )

    def layers(self) -> list[Layer]:
        return [self.layer(i) for i in range(self.config.layers)]
