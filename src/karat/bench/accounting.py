"""What a step must read and compute at least, counted from the model and the batch alone.

Bytes: each stored weight that takes part, once a step; the keys and values that the step's tokens see, once for each
sequence; and the states of recurrent layers, which each sequence reads, unless it begins, and writes. Of a mixture's N
experts, k of which a token chooses, a step of one token reads k; one of n tokens reads N (1 - (1 - k/N)^n), as many as
tokens that choose at random meet on average. FLOPs, a multiply-add as two: the linear layers, the scores and the
weighted sums of the keys that each token sees (the causal half of attention, exactly), the logits of the wanted rows,
and of a recurrent layer the taps of each channel, and three of each number of a matrix: what it gives for k, its
change, what it gives for q. Norms, rotations, activation functions, biases, writes of keys and values, and activations
that are read again are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod

import numpy as np

from karat.batch import ForwardBatch
from karat.config import FloatName, ModelConfig
from karat.kv.groups import State, bytes_of_state, bytes_per_token, keys_read
from karat.models.decoder import outline, weight_specs
from karat.models.mixtures import MixtureConfig

_EXPERTS = ".experts."
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Bytes and FLOPs of one or several steps."""

    weight_bytes: int = 0
    cache_bytes: int = 0
    linear_flops: int = 0
    attention_flops: int = 0
    state_bytes: int = 0
    recurrent_flops: int = 0

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.state_bytes

    @property
    def flops(self) -> int:
        return self.linear_flops + self.attention_flops + self.recurrent_flops

    def __add__(self, other: "TokenWork") -> "TokenWork":
        return TokenWork(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


class Account:
    """Counts the work of batches for a model whose tensors are stored in `stored_bytes` (Hugging Face name → bytes).

    States are of `dtype`, in which an executor computes. A tied head is the embedding. An embedding of its own is read
    by rows, one for each token.
    """

    def __init__(
        self, config: ModelConfig, stored_bytes: Mapping[str, int], kv_dtype: FloatName, dtype: FloatName = "float32"
    ) -> None:
        specs = {spec.source: spec.shape for spec in weight_specs(config)}
        layers = {name: shape for name, shape in specs.items() if name not in (_EMBEDDING, _HEAD)}
        self._config = config
        experts = {name: shape for name, shape in layers.items() if _EXPERTS in name}
        self._share = config.share if isinstance(config, MixtureConfig) else 1.0
        self._expert_bytes = sum(stored_bytes[name] for name in experts)
        self._layer_bytes = sum(stored_bytes[name] for name in layers) - self._expert_bytes
        self._layer_params = _params(layers) - _params(experts) + round(self._share * _params(experts))
        self._head_bytes = stored_bytes[_EMBEDDING if config.tie_word_embeddings else _HEAD]
        self._head_params = config.vocab_size * config.hidden_size
        self._row_bytes = stored_bytes[_EMBEDDING] // config.vocab_size
        keeps = outline(config).keeps
        self._state_bytes = bytes_of_state(keeps, dtype)
        shapes = [shape for keep in keeps if isinstance(keep, State) for shape in keep.shapes]
        self._recurrent_flops = 2 * sum(
            3 * prod(shape) if len(shape) == 3 else (shape[0] + 1) * shape[1] for shape in shapes
        )
        read = keys_read(keeps)
        self._attention = [  # of each layer: its keys, their bytes a token, its query heads
            (keys, bytes_per_token([keys], kv_dtype), shape.num_heads)
            for keys, shape in zip(read, config.shapes, strict=True)
            if keys is not None
        ]

    def of(self, batch: ForwardBatch) -> TokenWork:
        """The work of one step."""
        config, num_tokens, num_logits = self._config, batch.num_tokens, len(batch.logit_rows)
        weight_bytes = self._layer_bytes + round(self._expert_bytes * (1 - (1 - self._share) ** num_tokens))
        if num_logits:
            weight_bytes += self._head_bytes
        if not (num_logits and config.tie_word_embeddings):
            weight_bytes += num_tokens * self._row_bytes
        visible = batch.positions.astype(np.int64) + 1  # [tokens] keys that each token sees
        first_new = batch.context_lens.astype(np.int64) - np.diff(batch.query_starts)  # [seqs]
        attention_flops, cache_bytes = 0, 0  # summed over layers
        for keys, key_bytes, num_heads in self._attention:
            window = keys.window
            oldest = 0 if window is None else np.maximum(0, first_new - window + 1)  # key that the first new token sees
            num_seen = int((visible if window is None else np.minimum(visible, window)).sum())
            attention_flops += 2 * num_heads * (keys.k_dim + keys.v_dim) * num_seen
            cache_bytes += key_bytes * int((batch.context_lens - oldest).sum())
        return TokenWork(
            weight_bytes=weight_bytes,
            cache_bytes=cache_bytes,
            linear_flops=2 * (self._layer_params * num_tokens + self._head_params * num_logits),
            attention_flops=attention_flops,
            state_bytes=self._state_bytes * int((first_new > 0).sum() + len(first_new)),
            recurrent_flops=self._recurrent_flops * num_tokens,
        )


def _params(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers of matrices, each of which a token multiplies once."""
    return sum(prod(shape) for shape in shapes.values() if len(shape) == 2)
