"""Block: the one form of a decoder's layer. Families differ in the parts they put into it.

norms before the parts (llama)     Block(name, Branch(norm, attention), Branch(norm, mlp))
norms around the parts             Block(name, Branch(norm, attention, norm), Branch(norm, mlp, norm))
norms after the parts              Block(name, Branch(None, attention, norm), Branch(None, mlp, norm))
one part a layer                   Block(name, Branch(norm, mixer))
branches times a number            Block(name, Branch(norm, attention, multiplier=m), Branch(norm, mlp, multiplier=m))
parts side by side                 Block(name, Branch(norm, mixer)), where the mixer is SideBySide
something of the tokens besides    Block(name, Branch(norm, attention), Branch(norm, mlp), third=InputBranch(…))
"""

from dataclasses import dataclass

from karat.kv.groups import Keep
from karat.layers.layer_inputs import InputBranch
from karat.layers.mixer import Mixer, RopeTables, Rotation
from karat.layers.norm import RowLayer
from karat.layers.shards import Cut
from karat.ops.api import Cache, Ops, Step, Tensor


@dataclass(frozen=True, slots=True)
class Branch:
    """after(mixer(before(x))) * multiplier, which a block adds to x. None is no layer and no multiplication.

    The product is recorded as `name`.
    """

    before: RowLayer | None
    mixer: Mixer
    after: RowLayer | None = None
    multiplier: float | None = None

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables, *, name: str) -> Tensor:
        x = x if self.before is None else self.before(ops, x)
        x = self.mixer(ops, x, step, cache, ropes)
        x = x if self.after is None else self.after(ops, x)
        return x if self.multiplier is None else ops.scale(x, self.multiplier, name=name)


class SideBySide(Mixer):
    """first(x) + second(x), which is recorded as `name`. Neither keeps anything."""

    def __init__(self, name: str, first: Branch, second: Branch) -> None:
        self.name = name
        self.first, self.second = first, second
        self.cuts = {**first.mixer.cuts, **second.mixer.cuts}

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        one, other = (
            branch(ops, x, step, cache, ropes, name=f"{self.name}.{part}_scaled")
            for branch, part in ((self.first, "first"), (self.second, "second"))
        )
        return ops.add(one, other, name=self.name)


@dataclass(frozen=True, slots=True)
class Block:
    """x + first(x), then x + second(x), then x + third(x, given), then scale(x); x is [tokens, hidden].

    The last of them is recorded as `name`, sums before it as `name.attention_residual`, `name.mlp_residual` and
    `name.input_residual`, and what branches with multipliers add as `name.attention_scaled` and `name.mlp_scaled`.
    """

    name: str
    first: Branch
    second: Branch | None = None
    third: InputBranch | None = None
    scale: RowLayer | None = None

    @property
    def branches(self) -> tuple[Branch, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def keeps(self) -> Keep:
        """What a later step needs of this one. One branch at most keeps something."""
        kept = [branch.mixer.keeps for branch in self.branches if branch.mixer.keeps is not None]
        assert len(kept) <= 1, f"{self.name} keeps {kept}"
        return kept[0] if kept else None

    @property
    def rotations(self) -> frozenset[Rotation]:
        """The RoPE tables that it takes."""
        return frozenset(rotation for branch in self.branches for rotation in branch.mixer.rotations)

    @property
    def cuts(self) -> dict[str, Cut]:
        """Its row-parallel weights by name: what ranks cut, and what they may not."""
        return {name: cut for branch in self.branches for name, cut in branch.mixer.cuts.items()}

    def __call__(
        self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables, given: Tensor | None = None
    ) -> Tensor:
        """The layer's result. `given` is what it gets of the tokens besides x, if it has a third branch."""
        parts = [f"{self.name}.{part}" for part in ("attention", "mlp")][: len(self.branches)]
        sums = [f"{part}_residual" for part in parts]
        if self.third is not None:
            sums.append(f"{self.name}.input_residual")
        if self.scale is None:
            sums[-1] = self.name
        for branch, part, name in zip(self.branches, parts, sums, strict=False):
            x = ops.add(x, branch(ops, x, step, cache, ropes, name=f"{part}_scaled"), name=name)
        if self.third is not None:
            x = ops.add(x, self.third(ops, x, given), name=sums[-1])
        return x if self.scale is None else self.scale(ops, x)
