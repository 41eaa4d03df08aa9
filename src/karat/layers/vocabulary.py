"""The two ends of a model, whose weights have a row for each token id. Ranks share out these rows."""

from karat.layers.place import Place
from karat.layers.shards import Piece, part, vocab_ends
from karat.ops.api import Loaded, Ops, Step, Tensor
from karat.ranks.group import Group, Share


class VocabParallelEmbedding:
    """Rows of a table [vocab, hidden] by token id; a rank takes those it lacks from the ranks that have them."""

    def __init__(self, place: Place, vocab_size: int, hidden_size: int) -> None:
        self.name = place.name
        self.share, pieces = _shared_out(vocab_size, place.group)
        self.weight: Loaded = place.weight(vocab_size, hidden_size, shard_axis=0, pieces=pieces)

    def __call__(self, ops: Ops, step: Step) -> Tensor:
        return ops.embedding(step, self.weight, share=self.share, name=self.name)


class ParallelLMHead:
    """Logits of the rows wanted, whole on every rank. A head that is tied to an embedding has the same weight."""

    def __init__(
        self, place: Place, vocab_size: int, hidden_size: int, *, tied_to: VocabParallelEmbedding | None = None
    ) -> None:
        self.name = place.name
        self._share, pieces = _shared_out(vocab_size, place.group)
        self.weight: Loaded = (
            tied_to.weight if tied_to else place.weight(vocab_size, hidden_size, shard_axis=0, pieces=pieces)
        )

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        if self._share is None:
            return ops.linear(x, self.weight, name=self.name)
        return ops.gather_columns(ops.linear(x, self.weight, name=f"{self.name}.part"), self._share, name=self.name)


def _shared_out(vocab_size: int, group: Group) -> tuple[Share | None, tuple[Piece, ...] | None]:
    if group.size == 1:
        return None, None
    ends = vocab_ends(vocab_size, group)
    return Share(group, ends), (part(ends, group),)
