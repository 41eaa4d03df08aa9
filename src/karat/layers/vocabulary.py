"""The two ends of a model, whose weights have a row for each token id. Ranks share out these rows."""

from karat.checkpoint.weights import WeightSpec
from karat.dist.group import Group, Share
from karat.layers.shards import part, vocab_ends
from karat.layers.weights import Take
from karat.ops.api import Loaded, Ops, Step, Tensor


class VocabParallelEmbedding:
    """Rows of a table [vocab, hidden] by token id; a rank takes those it has not from who has them (no sum)."""

    def __init__(self, take: Take, name: str, vocab_size: int, hidden_size: int, group: Group) -> None:
        self.name = name
        self.share, pieces = _shared_out(vocab_size, group)
        self.weight: Loaded = take(WeightSpec(f"{name}.weight", (vocab_size, hidden_size), 0, pieces))

    def __call__(self, ops: Ops, step: Step) -> Tensor:
        return ops.embedding(step, self.weight, share=self.share, name=self.name)


class ParallelLMHead:
    """Logits of the rows wanted, whole on every rank. A tied head is the embedding's own weight, loaded once."""

    def __init__(
        self, take: Take, embedding: VocabParallelEmbedding, vocab_size: int, hidden_size: int, *, tied: bool,
        group: Group,
    ) -> None:  # fmt: skip
        self._share, pieces = _shared_out(vocab_size, group)
        self.weight: Loaded = (
            embedding.weight if tied else take(WeightSpec("lm_head.weight", (vocab_size, hidden_size), 0, pieces))
        )

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        if self._share is None:
            return ops.linear(x, self.weight, name="lm_head")
        return ops.gather_columns(ops.linear(x, self.weight, name="lm_head.part"), self._share, name="lm_head")


def _shared_out(vocab_size: int, group: Group) -> tuple[Share | None, tuple[tuple[int, int], ...] | None]:
    if group.size == 1:
        return None, None
    ends = vocab_ends(vocab_size, group)
    return Share(group, ends), (part(ends, group),)
