"""One tensor-parallel rank: its weights, its cache, and the forward pass."""

import numpy as np

from tools.zoo.strangers import ops
from tools.zoo.strangers.cache import Cache
from tools.zoo.strangers.checkpoint import Config
from tools.zoo.strangers.comm import Comm
from tools.zoo.strangers.recorder import Recorder
from tools.zoo.strangers.scheduler import Batch, Span
from tools.zoo.strangers.shards import Layer, Shards


class Worker:
    """Computes batches. Everything between two collectives is this rank's own."""

    def __init__(self, config: Config, shards: Shards, cache: Cache, comm: Comm, recorder: Recorder) -> None:
        self.config, self.cache, self.comm, self.recorder = config, cache, comm, recorder
        self.rank = shards.rank
        self.heads, self.kv_heads = shards.heads, shards.kv_heads
        self.vocabulary = shards.vocabulary()
        self.embedding, self.head_weight, self.final_weight = shards.embedding(), shards.head(), shards.final_norm()
        self.layers = shards.layers()
        self.cos, self.sin = self.tables()
        self.scale = np.float32(config.head_dim**-0.5)
        self.i = 0  # the layer that is being computed

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of all positions."""
        return ops.rope_tables(ops.inverse_frequencies(self.config), 512)

    def forward(self, batch: Batch) -> np.ndarray:
        """Logits of the wanted rows, of the whole vocabulary."""
        x = self.comm.all_reduce(self.embed(batch.ids))
        self.recorder.add("model.embed_tokens", x)
        for i, layer in enumerate(self.layers):
            self.i = i
            x = self.layer(layer, x, batch)
            self.recorder.add(f"model.layers.{i}", x)
        return self.logits(x, batch)

    def layer(self, layer: Layer, x: np.ndarray, batch: Batch) -> np.ndarray:
        x = self.add(x, self.attention(layer, x, batch))
        self.record("attention_residual", x)
        return self.add(x, self.mlp(layer, x))

    def record(self, name: str, x: np.ndarray) -> None:
        self.recorder.add(f"model.layers.{self.i}.{name}", x)

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Rows of this rank's tokens, 0 for those of other ranks. [tokens, hidden]"""
        mine = self.is_mine(ids)
        rows = self.embedding[np.where(mine, ids - self.vocabulary.start, 0)]
        return np.where(mine[:, None], rows, np.float32(0))

    def is_mine(self, ids: np.ndarray) -> np.ndarray:
        return (ids >= self.vocabulary.start) & (ids < self.vocabulary.stop)

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return ops.rms_norm(x, weight, self.config.eps)

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def attention(self, layer: Layer, x: np.ndarray, batch: Batch) -> np.ndarray:
        x = self.norm(x, layer.input_norm)
        self.record("input_layernorm", x)
        q, k, v = self.project(layer, x)
        for name, part in (("q", q), ("k", k), ("v", v)):
            self.record(f"self_attn.{name}_proj", part)
        q, k = self.rope(q, batch), self.rope(k, batch)
        self.record("self_attn.q_rope", q)
        self.record("self_attn.k_rope", k)
        self.store(k, v, batch)
        x = self.attend(q, batch)
        self.record("self_attn.attention", x)
        x = self.out(layer, x)
        self.record("self_attn.o_proj", x)
        return x

    def store(self, k: np.ndarray, v: np.ndarray, batch: Batch) -> None:
        self.cache.write(self.i, batch.slots, k, v)

    def out(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        return self.comm.all_reduce(x @ layer.o.T)

    def project(self, layer: Layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k, v: each [tokens, heads, head_dim]."""
        return self.split(x @ layer.qkv.T + layer.qkv_bias)

    def split(self, qkv: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        qkv = qkv.reshape(len(qkv), -1, self.config.head_dim)
        at = self.heads, self.heads + self.kv_heads
        return qkv[:, : at[0]], qkv[:, at[0] : at[1]], qkv[:, at[1] :]

    def rope(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        return ops.rotate(x, self.cos[batch.positions], self.sin[batch.positions])

    def attend(self, q: np.ndarray, batch: Batch) -> np.ndarray:
        """[tokens, heads · head_dim]"""
        out = np.zeros_like(q)
        scores, weights = [], []
        for span in batch.spans:
            k, v = self.read(span)
            k, v = self.repeat(k), self.repeat(v)  # [keys, heads, head_dim]
            s = np.einsum("qhd,khd->hqk", q[span.rows], k) * self.scale
            s = self.hide(s, self.mask(span, s.shape[-1]))
            w = self.softmax(s)
            out[span.rows] = np.einsum("hqk,khd->qhd", w, v)
            scores.append(s)
            weights.append(w)
        self.recorder.add_keys(f"model.layers.{self.i}.self_attn.scores", scores, -np.inf)
        self.recorder.add_keys(f"model.layers.{self.i}.self_attn.weights", weights, 0)
        return self.join(out)

    def read(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        """The span's keys and values, those of this step included."""
        return self.cache.read(self.i, span.table, span.length)

    def repeat(self, x: np.ndarray) -> np.ndarray:
        """A KV head for each query head. [keys, heads, head_dim]"""
        return np.repeat(x, self.heads // self.kv_heads, axis=1)

    def mask(self, span: Span, keys: int) -> np.ndarray:
        """True where a row sees a key. [rows, keys]"""
        rows = np.arange(span.start, span.length)
        return np.arange(keys) <= rows[:, None]

    def hide(self, scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
        return np.where(seen, scores, np.float32(-np.inf))

    def softmax(self, scores: np.ndarray) -> np.ndarray:
        return ops.softmax(scores)

    def join(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1)

    def mlp(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        x = self.norm(x, layer.post_norm)
        self.record("post_attention_layernorm", x)
        gate, up = self.halves(x @ layer.gate_up.T)
        self.record("mlp.gate_proj", gate)
        self.record("mlp.up_proj", up)
        x = self.act(gate, up)
        self.record("mlp.act", x)
        x = self.down(layer, x)
        self.record("mlp.down_proj", x)
        return x

    def down(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        return self.comm.all_reduce(x @ layer.down.T)

    def halves(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gate, up = np.split(x, 2, axis=-1)
        return gate, up

    def act(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return ops.silu(gate) * up

    def logits(self, x: np.ndarray, batch: Batch) -> np.ndarray:
        x = self.norm(x, self.final_weight)
        self.recorder.add("model.norm", x)
        x = self.comm.all_gather(self.head(x[self.rows(batch)]))
        self.recorder.add("lm_head", x)
        return x

    def rows(self, batch: Batch) -> np.ndarray:
        return batch.logit_rows

    def head(self, x: np.ndarray) -> np.ndarray:
        """Logits of this rank's part of the vocabulary."""
        return x @ self.head_weight.T
