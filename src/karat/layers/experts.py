"""Mixture of experts (arXiv 1701.06538): each token is computed by a few of many MLPs, which a router chooses."""

from typing import Literal

from karat.layers.linear import ColumnParallelLinear
from karat.layers.mixer import Mixer, RopeTables
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RowLayer
from karat.layers.place import Place
from karat.layers.shards import own_leaves, part, tree_ends
from karat.ops.api import Cache, Clamp, Ops, Routing, Step, Tensor


class ExpertMixture(Mixer):
    """A weighted sum of those of `num_experts` gated MLPs that `routing` chooses; x and it are [tokens, hidden].

    Their inner size is `inner_size`. With `bias` the router and the experts' matrices have biases. `clamp` is of the
    experts' activation. A rank holds a range of the experts, or none if there are fewer than ranks; every rank computes
    the router, which is called `router`. The experts read `before(x)`, and the router `router_before(x)`; None is x.
    The sum has the name `result`, or else the mixture's.
    """

    def __init__(
        self,
        place: Place,
        hidden_size: int,
        inner_size: int,
        *,
        num_experts: int,
        routing: Routing,
        bias: bool = False,
        activation: Literal["silu", "gelu"] = "silu",
        clamp: Clamp | None = None,
        before: RowLayer | None = None,
        router: str = "gate",
        router_before: RowLayer | None = None,
        result: str | None = None,
    ) -> None:
        self.name = place.name
        self._before, self._router_before, self._by_gelu = before, router_before, activation == "gelu"
        self._result = result or place.name
        self.router = ColumnParallelLinear(place / router, num_experts, hidden_size, bias=bias, pieces=None)
        self._routing, self._clamp = routing, clamp
        group = place.group
        self._group = group if group.size > 1 else None
        self._leaves = own_leaves(num_experts, 1, group)
        self._first, end = part(tree_ends(num_experts, 1, group), group)
        experts = [place / "experts" / str(number) for number in range(self._first, end)]
        sizes = dict.fromkeys(("gate_proj", "up_proj"), (inner_size, hidden_size))
        sizes["down_proj"] = hidden_size, inner_size
        self.gates, self.ups, self.downs = (
            tuple((each / name).weight(*size) for each in experts) for name, size in sizes.items()
        )
        self._biases = None
        if bias:
            gates, ups, downs = (tuple((each / name).bias(size[0]) for each in experts) for name, size in sizes.items())
            self._biases = gates, ups, downs

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        logits = self.router(ops, x if self._router_before is None else self._router_before(ops, x))
        names = f"{self.name}.chosen_ids", f"{self.name}.chosen_weights"
        ids, weights = ops.route(logits, self._routing, names=names)
        return ops.experts(
            x if self._before is None else self._before(ops, x),
            ids,
            weights,
            self.gates,
            self.ups,
            self.downs,
            leaves=self._leaves,
            first=self._first,
            biases=self._biases,
            by_gelu=self._by_gelu,
            clamp=self._clamp,
            group=self._group,
            name=self._result,
        )


class SharedMixture(Mixer):
    """experts(x) + sigmoid(gate(x)) * shared(x): `shared` is an MLP of all tokens, and gate(x) one number a token."""

    def __init__(self, experts: ExpertMixture, shared: GatedMLP, gate: ColumnParallelLinear) -> None:
        self.name, self.cuts = experts.name, shared.cuts
        self.experts, self.shared, self.gate = experts, shared, gate

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        given = self.experts(ops, x, step, cache, ropes)
        shared, gate = self.shared(ops, x, step, cache, ropes), self.gate(ops, x)
        return ops.add(given, ops.sigmoid_mul(shared, gate, name=f"{self.shared.name}_gated"), name=self.name)
