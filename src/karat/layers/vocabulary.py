"""The two ends of a model, embedding and head. Their weights have a row for each token id, and ranks share the rows."""

from karat.layers.norm import UnitNorm
from karat.layers.place import Place
from karat.layers.shards import Piece, part, vocab_ends
from karat.ops.api import Loaded, Ops, Step, Tensor
from karat.ranks.group import Group, Share


class VocabParallelEmbedding:
    """The rows [tokens, hidden] of a table [vocab, hidden] by token id.

    Each rank looks up the rows it holds; the owner's row is copied to the others. Nothing is added. With `scale` they
    are multiplied by it, and recorded as `name_scaled`; with `norm_eps` they are normalised, without a weight, and
    recorded as `name_normed`. With `is_head` a tied head uses the table, too.
    """

    def __init__(
        self,
        place: Place,
        vocab_size: int,
        hidden_size: int,
        *,
        is_head: bool,
        scale: float | None = None,
        norm_eps: float | None = None,
    ) -> None:
        self.name = place.name
        self._scale = scale
        self._norm = None if norm_eps is None else UnitNorm(f"{place.name}_normed", hidden_size, norm_eps)
        self.share, pieces = _shared_out(vocab_size, place.group)
        self.weight: Loaded = place.weight(vocab_size, hidden_size, shard_axis=0, pieces=pieces, gathered=not is_head)

    def __call__(self, ops: Ops, step: Step) -> Tensor:
        x = ops.embedding(step, self.weight, share=self.share, name=self.name)
        x = x if self._norm is None else self._norm(ops, x)
        return x if self._scale is None else ops.scale(x, self._scale, name=f"{self.name}_scaled")


class ParallelLMHead:
    """Logits [rows, vocab] of x [rows, hidden], whole on every rank. A tied head uses the embedding's weight.

    With `scale` x is multiplied by it first, and recorded as `name_input`. With a `cap` logits are cap * tanh(logits /
    cap), and what they were before is recorded as `name_uncapped`.
    """

    def __init__(
        self,
        place: Place,
        vocab_size: int,
        hidden_size: int,
        *,
        tied_to: VocabParallelEmbedding | None = None,
        scale: float | None = None,
        cap: float | None = None,
    ) -> None:
        self.name = place.name
        self._scale, self._cap = scale, cap
        self._share, pieces = _shared_out(vocab_size, place.group)
        self._part = "" if self._share is None else ".part"
        self.weight: Loaded = (
            tied_to.weight if tied_to else place.weight(vocab_size, hidden_size, shard_axis=0, pieces=pieces)
        )

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        x = x if self._scale is None else ops.scale(x, self._scale, name=f"{self.name}_input")
        logits = self.product(ops, x)
        if self._cap is not None:
            logits = ops.soft_cap(logits, self._cap, name=f"{self.name}{self._part}")
        return logits if self._share is None else ops.gather_columns(logits, self._share, name=self.name)

    def product(self, ops: Ops, x: Tensor) -> Tensor:
        """The head without `scale` and `cap`: the logits of this rank's ids."""
        uncapped = "" if self._cap is None else "_uncapped"
        return ops.linear(x, self.weight, name=f"{self.name}{uncapped}{self._part}")


def _shared_out(vocab_size: int, group: Group) -> tuple[Share | None, tuple[Piece, ...] | None]:
    if group.size == 1:
        return None, None
    ends = vocab_ends(vocab_size, group)
    return Share(group, ends), (part(ends, group),)
