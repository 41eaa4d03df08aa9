"""Mixture of experts (arXiv 1701.06538): each token is computed by a few of many MLPs, which a router chooses."""

from typing import Literal

from karat.layers.linear import COLUMN, ROW, ColumnParallelLinear
from karat.layers.mixer import Mixer, RopeTables
from karat.layers.mlp import GatedMLP
from karat.layers.norm import RowLayer
from karat.layers.place import Place
from karat.layers.shards import Cut, cut_by_columns, own_leaves, part, tree_ends
from karat.ops.api import Cache, Clamp, Loaded, Ops, Routing, Step, Tensor


class ExpertMixture(Mixer):
    """A weighted sum of those of `num_experts` gated MLPs that `routing` chooses; x and it are [tokens, hidden].

    Their inner size is `inner_size`. With `bias` the router and the experts' matrices have biases. `clamp` is of the
    experts' activation. A rank holds inner columns of all experts; where these have fewer than 8 units it holds a range
    of the experts, or none if there are fewer than ranks. Every rank computes the router, which is called `router`. The
    experts read `before(x)`, and the router `router_before(x)`; None is x. The sum has the name `result`, or else the
    mixture's. `cuts` has the weights that units are counted in.
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
        experts = [place / "experts" / str(number) for number in range(num_experts)]
        cut = Cut(inner_size, 1, of_experts=True)
        self.cuts = {f"{(each / 'down_proj').name}.weight": cut for each in experts}
        self._by_columns = cut_by_columns(inner_size, place.units[cut])
        shared_out = (inner_size, place.units[cut], group) if self._by_columns else (num_experts, 1, group)
        self._leaves, own = own_leaves(*shared_out), part(tree_ends(*shared_out), group)
        self._first = 0 if self._by_columns else own[0]
        pieces = (own,) if self._by_columns and self._group else None
        held = experts if self._by_columns else experts[slice(*own)]

        def into(name: str) -> tuple[Loaded, ...]:
            return tuple(
                (each / name).weight(inner_size, hidden_size, shard_axis=COLUMN, pieces=pieces) for each in held
            )

        self.gates, self.ups = into("gate_proj"), into("up_proj")
        self.downs = tuple(
            (each / "down_proj").weight(hidden_size, inner_size, shard_axis=ROW, pieces=pieces) for each in held
        )
        self._biases = None
        if bias:
            gates, ups = (
                tuple((each / name).bias(inner_size, pieces) for each in held) for name in ("gate_proj", "up_proj")
            )
            self._biases = gates, ups, tuple((each / "down_proj").bias(hidden_size) for each in held)

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
            by_columns=self._by_columns,
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
        self.name, self.cuts = experts.name, {**experts.cuts, **shared.cuts}
        self.experts, self.shared, self.gate = experts, shared, gate

    def __call__(self, ops: Ops, x: Tensor, step: Step, cache: Cache, ropes: RopeTables) -> Tensor:
        given = self.experts(ops, x, step, cache, ropes)
        shared, gate = self.shared(ops, x, step, cache, ropes), self.gate(ops, x)
        return ops.add(given, ops.sigmoid_mul(shared, gate, name=f"{self.shared.name}_gated"), name=self.name)
