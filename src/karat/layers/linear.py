"""Linear layers and the embedding, with the axis that tensor parallelism cuts."""

from karat.checkpoint.weights import WeightSpec
from karat.layers.weights import Take
from karat.ops.api import Loaded, Ops, Step, Tensor

COLUMN, ROW = 0, 1  # of a weight [out_features, in_features]


class Linear:
    """x @ weight.T + bias. `shard` is COLUMN (out_features) or ROW (in_features; its bias is never sharded).

    Of a ROW layer, `unit` input columns belong together and are never shared out to different ranks.
    """

    def __init__(
        self, take: Take, name: str, out_features: int, in_features: int, *, bias: bool, shard: int, unit: int = 1
    ) -> None:
        self.name = name
        self._unit = unit if shard == ROW else None
        self.weight: Loaded = take(WeightSpec(f"{name}.weight", (out_features, in_features), shard))
        bias_shard = 0 if shard == COLUMN else None
        self.bias: Loaded | None = take(WeightSpec(f"{name}.bias", (out_features,), bias_shard)) if bias else None

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias, unit=self._unit, name=self.name)


class Embedding:
    """Rows of a table [vocab, hidden] by token id; the vocabulary is what is sharded."""

    def __init__(self, take: Take, name: str, vocab_size: int, hidden_size: int) -> None:
        self.name = name
        self.weight: Loaded = take(WeightSpec(f"{name}.weight", (vocab_size, hidden_size), 0))

    def __call__(self, ops: Ops, step: Step) -> Tensor:
        return ops.embedding(step, self.weight, name=self.name)


class LMHead:
    """Logits of the rows wanted. A tied head is the embedding's own weight, loaded once."""

    def __init__(self, take: Take, embedding: Embedding, vocab_size: int, hidden_size: int, *, tied: bool) -> None:
        self.weight: Loaded = (
            embedding.weight if tied else take(WeightSpec("lm_head.weight", (vocab_size, hidden_size), 0))
        )

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, name="lm_head")
