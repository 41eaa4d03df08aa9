"""The ops that every model is written in. An op is a record of its arguments, and its docstring is the contract.

A model calls `Ops` and computes nothing else, so the same code runs on any executor and can be recorded as a plan. A
method of `Ops` makes the record and hands it to `apply`. So whatever computes, records or watches ops is a function of
records. Results are opaque handles: a model must not read their values, shapes or truth. `dtype` below is the
executor's compute dtype (float32, or float64 in the reference). `name` is the canonical name under which a tap records
the result: the Hugging Face module path where one exists (`model.layers.3.self_attn.q_proj`), else a name beside it
(`….self_attn.q_rope`).

Weights are [out_features, in_features]. Every row of a batch is computed independently of the others. Arguments outside
the contract raise ExecutorError.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from math import inf, isfinite, prod
from typing import Annotated, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from karat.errors import ExecutorError
from karat.ranks.group import Group, Share

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")

# What an argument of an op is; `Op.given` finds arguments by it.
Tensor = Annotated[Any, "a result, opaque to models: an array, or a register of a plan"]
Loaded = Annotated[Any, "a weight in the executor's own layout"]
Step = Annotated[Any, "the batch of one forward pass, as the executor holds it"]
Cache = Annotated[Any, "K and V of one layer"]
State = Annotated[Any, "what one layer keeps of each sequence: arrays by slot"]
RopeTable = Annotated[Any, "cosines and sines by position"]

Observer = Callable[[str, NDArray[np.floating]], None]
Row = Callable[[Tensor], tuple[int, ...]]  # the shape of each row of a tensor


@dataclass(frozen=True, slots=True)
class HeadGroups:
    """Which KV head a query head reads: query head h reads KV head (first + h) // size.

    The first and the last group may have fewer than `size` query heads, where ranks split a group.
    """

    size: int
    first: int = 0

    @classmethod
    def equal(cls, num_heads: int, num_kv_heads: int) -> "HeadGroups":
        """Groups of num_heads // num_kv_heads. `fit` is False for them where the heads do not divide evenly."""
        return cls(max(1, num_heads // num_kv_heads))

    def fit(self, num_heads: int, num_kv_heads: int) -> bool:
        """Whether `num_heads` query heads read all of `num_kv_heads` KV heads and no others."""
        return 0 <= self.first < self.size and (self.first + num_heads - 1) // self.size + 1 == num_kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class Op(Generic[R]):
    """An op with its arguments. R is its result: a Tensor, a tuple of them, or None."""

    def given(self, kind: object) -> dict[str, Any]:
        """The arguments that are a Tensor, or a Step, … as fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.type is kind}

    def each(self, change: Callable[[str, Tensor], Tensor], result: R) -> R:
        """`result` of this op, in which change(name, tensor) takes the place of each tensor."""
        return result

    def of_this_rank(self) -> "Single | None":
        """Of a sum over ranks, the op whose result is this rank's part; None of any other op."""
        return None

    @property
    def label(self) -> str:
        """What an error calls the op."""
        return type(self).__name__

    def fault(self, row: Row) -> str | None:
        """What is outside the contract, as far as shapes of rows and numbers say it; None if nothing is."""
        return None

    def check(self, row: Row) -> None:
        """Raise ExecutorError for arguments outside the contract."""
        if fault := self.fault(row):
            raise ExecutorError(f"{self.label}: {fault}")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Single(Op[Tensor]):
    """An op with one result."""

    name: str

    @property
    def label(self) -> str:
        return self.name

    def each(self, change: Callable[[str, Tensor], Tensor], result: Tensor) -> Tensor:
        return change(self.name, result)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Several(Op[tuple[Tensor, ...]]):
    """An op with several results, called `names`."""

    names: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.names[0]

    def each(self, change: Callable[[str, Tensor], Tensor], result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(change(name, tensor) for name, tensor in zip(self.names, result, strict=True))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Observed(Single):
    """An op that shows steps of its work: `observe` is called for each sequence with each of `parts` and its value."""

    parts: ClassVar[tuple[str, ...]]
    observe: Observer | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Embedding(Single):
    """table[token_ids]: [tokens, hidden].

    With `share`, the table holds this rank's rows of the vocabulary. Each rank looks up the rows it holds, and the
    owner's row is copied to the others. Nothing is added.
    """

    step: Step
    table: Loaded
    _: KW_ONLY
    share: Share | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(Single):
    """x * (1 / sqrt(mean(x²) + eps)) * weight; shape of x.

    The mean is over the last axis, or over the whole row if `weight` has as many elements. Of a row in one piece it is
    over each len(weight) of its elements. With `plus_one` 1 + weight takes the place of weight.
    """

    x: Tensor
    weight: Loaded
    eps: float
    plus_one: bool = False

    def fault(self, row: Row) -> str | None:
        shape, size = row(self.x), len(self.weight)
        if size not in (shape[-1], prod(shape)) and (len(shape) > 1 or not size or shape[0] % size):
            return f"a weight of {size} for rows of {shape[-1]}"
        return None if 0 <= self.eps < np.inf else f"eps={self.eps}; expected a finite number of at least 0"


@dataclass(frozen=True, slots=True, eq=False)
class SquareSums(Single):
    """The sum of x² over each row of q, and over each row of k: [rows, 2].

    `q_leaves` and `k_leaves` are the numbers of a row at which each leaf of its sum ends; their count is a power of
    two. A leaf is a sum, and the result is the sum of a binary tree over the leaves. With `group` q and k are this
    rank's heads, the tree continues over ranks, and every rank gets the whole sums. The first `k_first` numbers of a
    row of k are those of a head that another rank has too, which counts them.
    """

    q: Tensor
    k: Tensor
    _: KW_ONLY
    q_leaves: tuple[int, ...]
    k_leaves: tuple[int, ...]
    k_first: int = 0
    group: Group | None = None

    def of_this_rank(self) -> "SquareSums | None":
        return None if self.group is None else replace(self, group=None)

    def fault(self, row: Row) -> str | None:
        sizes, ends = (prod(row(self.q)), prod(row(self.k))), (self.q_leaves[-1], self.k_leaves[-1])
        fits = sizes == ends and 0 <= self.k_first <= self.k_leaves[0]
        return None if fits else f"leaves that end at {ends}, from 0 and {self.k_first}, for rows of {sizes}"


@dataclass(frozen=True, slots=True, eq=False)
class PartNorm(Single):
    """x * (1 / sqrt(sum / count + eps)) * weight, where a row of x is a part of `count` numbers; shape of x.

    The sum of their squares is column `part` of `squares`, which is what SquareSums gives: 0 for q, 1 for k.
    """

    x: Tensor
    squares: Tensor
    weight: Loaded
    eps: float
    part: int
    count: int

    def fault(self, row: Row) -> str | None:
        size = prod(row(self.x))
        if len(self.weight) != size or size > self.count or row(self.squares) != (2,) or self.part not in (0, 1):
            return f"a weight of {len(self.weight)}, part {self.part} of {self.count}, for rows of {size}"
        return None if 0 <= self.eps < inf else f"eps={self.eps}; expected a finite number of at least 0"


@dataclass(frozen=True, slots=True, eq=False)
class L2Norm(Single):
    """x * (1 / sqrt(sum(x²) + eps)) * factor, the sum over the last axis; shape of x."""

    x: Tensor
    eps: float
    factor: float = 1.0

    def fault(self, row: Row) -> str | None:
        fits = 0 <= self.eps < inf and isfinite(self.factor)
        return None if fits else f"eps={self.eps}, factor={self.factor}; expected finite numbers, and eps at least 0"


@dataclass(frozen=True, slots=True, eq=False)
class Linear(Single):
    """x @ weight.T + bias: [rows, out_features]; bias added after the whole sum.

    `leaves` are the columns at which each leaf of the sum ends (karat.ops.leaves); their number is a power of two.
    A leaf is a sum over its columns, and the result is the sum of a binary tree over the leaves. With `group`, x
    and weight hold this rank's columns, the tree continues over ranks, and every rank gets the whole sum.
    """

    x: Tensor
    weight: Loaded
    bias: Loaded | None = None
    _: KW_ONLY
    leaves: tuple[int, ...] | None = None
    group: Group | None = None

    def of_this_rank(self) -> "Linear | None":
        return None if self.group is None else replace(self, bias=None, group=None)


@dataclass(frozen=True, slots=True, eq=False)
class GatherColumns(Single):
    """All ranks' columns of x side by side: [rows, share.total]. Allowed once in a step."""

    x: Tensor
    share: Share


@dataclass(frozen=True, slots=True, eq=False)
class Linears(Several):
    """Linear layers of one x."""

    x: Tensor
    weights: tuple[Loaded, ...]
    biases: tuple[Loaded, ...] | None

    def alone(self) -> list[Linear]:
        """Each layer as an op of its own."""
        biases = self.biases or (None,) * len(self.weights)
        return [
            Linear(self.x, weight, bias, name=name)
            for weight, bias, name in zip(self.weights, biases, self.names, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Qkv(Linears):
    """Linears of one x, one to three: q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]."""

    _: KW_ONLY
    head_dim: int


@dataclass(frozen=True, slots=True, eq=False)
class GateUp(Linears):
    """Two linears of one x: gate and up, each [tokens, intermediate]."""


@dataclass(frozen=True, slots=True, eq=False)
class GatedUnit(Single):
    """An activation of gate, times up."""

    gate: Tensor
    up: Tensor

    def fault(self, row: Row) -> str | None:
        gate, up = row(self.gate), row(self.up)
        return None if gate == up else f"gate {gate} and up {up} differ"


@dataclass(frozen=True, slots=True, eq=False)
class SiluMul(GatedUnit):
    """gate * sigmoid(gate) * up."""


@dataclass(frozen=True, slots=True, eq=False)
class GeluMul(GatedUnit):
    """gelu(gate) * up, where gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x³)))."""


@dataclass(frozen=True, slots=True, eq=False)
class SigmoidMul(Single):
    """x * sigmoid(gate); shape of x.

    A row of `gate` has a number for each element of a row of x, for each head of it, or one for the whole row: each is
    for as many adjoining elements.
    """

    x: Tensor
    gate: Tensor

    def fault(self, row: Row) -> str | None:
        x, gate = row(self.x), row(self.gate)
        fits = prod(gate) > 0 and prod(x) % prod(gate) == 0
        return None if fits else f"a gate {gate} for rows of {x}"


@dataclass(frozen=True, slots=True, eq=False)
class Add(Single):
    """x + y; both have the same shape."""

    x: Tensor
    y: Tensor

    def fault(self, row: Row) -> str | None:
        x, y = row(self.x), row(self.y)
        return None if x == y else f"rows of {x} + rows of {y}"


@dataclass(frozen=True, slots=True, eq=False)
class Mul(Single):
    """x * y; both have the same shape."""

    x: Tensor
    y: Tensor

    def fault(self, row: Row) -> str | None:
        x, y = row(self.x), row(self.y)
        return None if x == y else f"rows of {x} * rows of {y}"


@dataclass(frozen=True, slots=True, eq=False)
class Sigmoid(Single):
    """1 / (1 + exp(-x)); shape of x."""

    x: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Split(Several):
    """Parts of each row of x, whose rows have these `shapes`.

    A row of x is `groups` equal pieces. A piece has its share of the first part, then its share of the second, …:

        1 group       | q | k | v |
        2 groups      | half of q | half of gate | half of q | half of gate |
    """

    x: Tensor
    shapes: tuple[tuple[int, ...], ...]
    groups: int = 1

    def fault(self, row: Row) -> str | None:
        sizes = [prod(shape) for shape in self.shapes]
        if sum(sizes) != prod(row(self.x)) or self.groups < 1 or any(size < 1 or size % self.groups for size in sizes):
            return f"parts of {self.shapes} in {self.groups} groups for rows of {row(self.x)}"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Single):
    """x * factor, a finite number that is rounded to dtype first; shape of x."""

    x: Tensor
    factor: float

    def fault(self, row: Row) -> str | None:
        return None if isfinite(self.factor) else f"factor={self.factor}; expected a finite number"


@dataclass(frozen=True, slots=True, eq=False)
class ScaleBy(Single):
    """x * the one number of `weight`; shape of x."""

    x: Tensor
    weight: Loaded

    def fault(self, row: Row) -> str | None:
        return None if len(self.weight) == 1 else f"a factor of {len(self.weight)} numbers; expected one"


@dataclass(frozen=True, slots=True, eq=False)
class SoftCap(Single):
    """cap * tanh(x / cap), with a finite cap above 0 that is rounded to dtype first; shape of x."""

    x: Tensor
    cap: float

    def fault(self, row: Row) -> str | None:
        return None if 0 < self.cap < inf else f"cap={self.cap}; expected a finite number above 0"


@dataclass(frozen=True, slots=True, eq=False)
class Rope(Single):
    """x [tokens, heads, head_dim], each pair (i, i + dim/2) turned by the angle of its token's position.

    `dim` is the table's: at most head_dim. What stands behind the first `dim` numbers of a head stays as it is.
    """

    x: Tensor
    table: RopeTable
    step: Step


@dataclass(frozen=True, slots=True, eq=False)
class KvWrite(Op[None]):
    """Store k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim] at the step's slots, in the cache's dtype.

    Numbers are rounded to it. The slots are those of the cache's group. k_dim and v_dim may differ: an executor that
    has no such caches refuses to make one (`Executor.new_cache`).

    Raises NumericsError for a finite value that the cache's dtype cannot hold.
    """

    k: Tensor
    v: Tensor
    cache: Cache
    step: Step


@dataclass(frozen=True, slots=True, eq=False)
class PagedAttention(Observed):
    """Causal attention of q [tokens, heads, k_dim] over the cache: [tokens, heads * v_dim].

    Blocks are those of the cache's group. A token at position p sees keys 0 … p, or the last `window` of them; what
    stands before the first key that a token of the step sees is not read. `groups` maps query heads to KV heads
    (None: equal groups); every KV head of the cache is read. Masked keys are skipped, not multiplied by zero.
    "scores" and "weights" are each [heads, new_tokens, context_len]: masked scores are -inf, masked weights 0.
    With a `cap` a score becomes cap * tanh(score / cap) after `scale`. `sinks` [heads] are scores of one more key for
    each head, which neither changes. It has a weight, so the others add up to less than 1, and no value.
    """

    parts = ("scores", "weights")
    q: Tensor
    cache: Cache
    step: Step
    _: KW_ONLY
    scale: float
    window: int | None
    groups: HeadGroups | None = None
    sinks: Loaded | None = None
    cap: float | None = None

    def fault(self, row: Row) -> str | None:
        fits = self.cap is None or 0 < self.cap < inf
        return None if fits else f"a cap of {self.cap}; expected a finite number above 0"


@dataclass(frozen=True, slots=True)
class Groups:
    """Of `count` groups of equally many experts `num_chosen` take part; the others' experts are ranked `outside`."""

    count: int
    num_chosen: int
    outside: float = -inf


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts a router chooses, and what they weigh.

    The score of an expert is the softmax of its logit among all, or its sigmoid. Experts are ranked by score + `bias`
    [experts], and of `groups` those take part whose two first experts have the largest sums; with neither, logits are
    ranked, which rounding makes no equals of. The first `num_chosen` are chosen, the largest first; of equal ones,
    groups too, the smaller number comes first, and NaN last.

    A weight is the score, without the bias; if `renormalised` it is divided by max(sum of the chosen scores + `plus`,
    `least`). It is multiplied by `scale`, and by that of `scales` [experts]. Numbers are rounded to dtype.
    """

    num_chosen: int
    renormalised: bool
    score: Literal["softmax", "sigmoid"] = "softmax"
    bias: Loaded | None = None
    groups: Groups | None = None
    plus: float = 0.0
    least: float = 0.0
    scale: float = 1.0
    scales: Loaded | None = None

    @property
    def by_logit(self) -> bool:
        """Whether logits are ranked, not scores."""
        return self.bias is None and self.groups is None

    @property
    def over_chosen(self) -> bool:
        """Whether weights are the softmax of the chosen logits, whatever the others are."""
        return self.score == "softmax" and self.by_logit and self.renormalised and not (self.plus or self.least)

    def for_kernels(self) -> tuple[Any, ...]:
        """Its numbers in the order in which `route` of a plan and of a device take them, behind the logits."""
        groups = self.groups or Groups(1, 1)
        ranked = (self.num_chosen, self.score == "sigmoid", self.renormalised)
        return (
            *ranked,
            *(groups.count, groups.num_chosen, groups.outside),
            *(self.plus, self.least, self.scale),
            *(self.bias, self.scales),
        )

    def fault(self, experts: int) -> str | None:
        """What does not fit a router of so many experts."""
        groups = self.groups or Groups(1, 1)
        if groups.count < 1 or experts % groups.count:
            return f"{experts} experts in {groups.count} groups"
        if not 1 <= groups.num_chosen <= groups.count:
            return f"{groups.num_chosen} chosen of {groups.count} groups"
        among = experts // groups.count * groups.num_chosen
        if not 1 <= self.num_chosen <= among:
            return f"{self.num_chosen} chosen of {among} experts"
        if any(values is not None and len(values) != experts for values in (self.bias, self.scales)):
            return f"other biases or scales than one for {experts} experts"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Route(Several):
    """The chosen experts of each row of logits [rows, experts]: ids (int32) and weights, each [rows, num_chosen]."""

    logits: Tensor
    routing: Routing

    def fault(self, row: Row) -> str | None:
        (experts,) = row(self.logits)
        return self.routing.fault(experts)


@dataclass(frozen=True, slots=True)
class Clamp:
    """Of SwiGLU: (up + 1) * gate * sigmoid(alpha * gate), with gate at most `limit`, and up from -limit to limit.

    Both numbers are finite and are rounded to dtype first. NaN stays NaN.
    """

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True, eq=False)
class Experts(Single):
    """The sum over a row's chosen experts of weight * down(f(gate(x)) * up(x)): [rows, hidden]. f is silu, or gelu.

    x is [rows, hidden], ids and weights are those of `Route`. `gates`, `ups` and `downs` are the matrices of each
    expert from id `first` on. `biases` are the vectors that are added to the products of gates, of ups and of downs;
    with `by_gelu` f is that of GeluMul; with `clamp` the activation is another. `leaves` are the ids, counted from
    `first`, before which each leaf of the sum ends; or with `by_columns` the columns of `downs`, and then their biases
    are added to the whole sum. The number of leaves is a power of two. A leaf is a sum in order of id, and the result
    is the sum of a binary tree over the leaves. With `group`, this rank has some of the experts, or some inner columns
    of all, the tree continues over ranks, and every rank gets the whole sum.
    """

    x: Tensor
    ids: Tensor
    weights: Tensor
    gates: tuple[Loaded, ...]
    ups: tuple[Loaded, ...]
    downs: tuple[Loaded, ...]
    _: KW_ONLY
    leaves: tuple[int, ...]
    by_columns: bool = False
    first: int = 0
    biases: tuple[tuple[Loaded, ...], tuple[Loaded, ...], tuple[Loaded, ...]] | None = None
    by_gelu: bool = False
    clamp: Clamp | None = None
    group: Group | None = None

    @property
    def late_biases(self) -> tuple[Loaded, ...]:
        """Those of downs, if they are added to the whole sum."""
        return self.biases[2] if self.by_columns and self.biases is not None else ()

    def of_this_rank(self) -> "Experts | None":
        if self.group is None:
            return None
        biases = self.biases if self.biases is None or not self.by_columns else (*self.biases[:2], ())
        return replace(self, biases=biases, group=None)


@dataclass(frozen=True, slots=True, eq=False)
class CausalConv(Single):
    """A convolution over the last tokens of each sequence, a channel by itself; x and it are [tokens, channels].

    result[t] = f(sum over j of weight[:, j] * x[t - taps + 1 + j] + bias), where weight is [channels, taps] as one
    vector: the last tap is the token's own. f(y) = y, or y * sigmoid(y) with `silu`. Before a text x is 0.

    The layer keeps the last taps - 1 rows of x: they are array 0 of `state` [taps - 1, channels], the oldest first.
    A sequence reads slot step.state_reads (-1: zeros), and writes slot step.state_writes, which is another one.
    """

    x: Tensor
    weight: Loaded
    state: State
    step: Step
    _: KW_ONLY
    bias: Loaded | None = None
    silu: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Decay(Single):
    """exp(rate * softplus(a + bias)), of a [tokens, heads]; bias and rate are [heads].

    softplus(y) = log(1 + exp(y)), or y where y > 20. With `of_log`, -exp(rate) takes the place of rate.
    """

    a: Tensor
    bias: Loaded
    rate: Loaded
    of_log: bool

    def fault(self, row: Row) -> str | None:
        heads, sizes = row(self.a), {len(self.bias), len(self.rate)}
        return None if {prod(heads)} == sizes else f"biases and rates of {sizes} for rows of {heads}"


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRule(Observed):
    """The gated delta rule (arXiv 2412.06464), token by token: [tokens, heads * v_dim].

    q and k are [tokens, key_heads, k_dim], v is [tokens, heads, v_dim], decay and beta are [tokens, heads]; value head
    h reads key head key_heads[h]. Of a head with state S [k_dim, v_dim], which is zeros before a text, a token makes

        S = S * decay
        S = S + k (v - kᵀ S)ᵀ * beta
        result = qᵀ S

    S is array 1 of `state` [heads, k_dim, v_dim], in slots as for CausalConv. The native executor takes one pass over
    S a token: csrc/contract/kernels.h states the order of every operation, which is the same however a text is cut.
    "state_norm" of a sequence is [new_tokens, heads]: the root of the sum of squares of S after each token.
    """

    parts = ("state_norm",)
    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    state: State
    step: Step
    _: KW_ONLY
    key_heads: tuple[int, ...]

    def fault(self, row: Row) -> str | None:
        q, k, v, heads = row(self.q), row(self.k), row(self.v), len(self.key_heads)
        if q != k or len(k) != 2 or len(v) != 2 or v[0] != heads:
            return f"q {q}, k {k} and v {v} for {heads} heads"
        if (heads,) != row(self.decay) or (heads,) != row(self.beta):
            return f"decay {row(self.decay)} and beta {row(self.beta)} for {heads} heads"
        wrong = [each for each in self.key_heads if not 0 <= each < k[0]]
        return f"key head {wrong[0]} of {k[0]}" if wrong else None


@dataclass(frozen=True, slots=True, eq=False)
class SelectRows(Single):
    """The rows whose logits are wanted: [rows, hidden]."""

    x: Tensor
    step: Step


class Method(Generic[P, R]):
    """A method of Ops: takes what the record takes, and returns its result."""

    def __init__(self, record: Callable[P, Op[R]]) -> None:
        self.record = record
        self.__doc__ = record.__doc__

    def __get__(self, ops: "Ops", kind: object = None) -> Callable[P, R]:
        def call(*args: P.args, **given: P.kwargs) -> R:
            return ops.apply(self.record(*args, **given))

        return call


class Ops(ABC):
    """What a model calls."""

    embedding = Method(Embedding)
    rms_norm = Method(RmsNorm)
    square_sums = Method(SquareSums)
    part_norm = Method(PartNorm)
    l2_norm = Method(L2Norm)
    linear = Method(Linear)
    linears = Method(Linears)
    gather_columns = Method(GatherColumns)
    qkv = Method(Qkv)
    gate_up = Method(GateUp)
    silu_mul = Method(SiluMul)
    gelu_mul = Method(GeluMul)
    sigmoid_mul = Method(SigmoidMul)
    add = Method(Add)
    mul = Method(Mul)
    sigmoid = Method(Sigmoid)
    split = Method(Split)
    scale = Method(Scale)
    scale_by = Method(ScaleBy)
    soft_cap = Method(SoftCap)
    rope = Method(Rope)
    kv_write = Method(KvWrite)
    paged_attention = Method(PagedAttention)
    route = Method(Route)
    experts = Method(Experts)
    causal_conv = Method(CausalConv)
    decay = Method(Decay)
    delta_rule = Method(DeltaRule)
    select_rows = Method(SelectRows)

    @abstractmethod
    def apply(self, op: Op[R]) -> R:
        """The result of an op."""


# Every record, and the name of the method that makes it.
OPS: Mapping[Any, str] = {each.record: name for name, each in vars(Ops).items() if isinstance(each, Method)}

Table = Mapping[type[Op[Any]], Callable[[E, Any], Any]]  # what E does with an op, by record


def table_of(functions: Table[E]) -> Table[E]:
    """`functions`, which must have one for each op, or else TypeError is raised when the module is imported."""
    if wrong := OPS.keys() ^ functions.keys():
        raise TypeError(
            f"a table needs one function for each op; look at {', '.join(sorted(op.__name__ for op in wrong))}"
        )
    return functions
