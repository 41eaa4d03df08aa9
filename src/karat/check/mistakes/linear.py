"""Ways to compute a linear layer wrongly: bias, shards, sums, and the weight as a loader reads it."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.quantised import mistakes
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import DEGREES, Params, Scope
from karat.check.mistakes.weight_readings import Effective, Made
from karat.check.model.context import Array
from karat.check.model.graph import Node
from karat.check.model.kinds import Op
from karat.check.model.right.linear import Biased, Product, biased, product
from karat.check.model.right.norm import Norm, norm
from karat.check.model.right.rows import Select, select
from karat.check.model.rounding import rounded
from karat.check.model.tokens import Tokens
from karat.checkpoint.weights import PLAIN_BYTES

BUGS: Mapping[str, Bug] = {
    "bias-missing": Bug(
        "a bias is not added", "load the bias and add it; check that every tensor of the checkpoint is used"
    ),
    "bias-times-tp": Bug(
        "the bias is added once a rank", "add the bias of a row-parallel layer after the reduction, or on one rank only"
    ),
    "shard-dim": Bug(
        "the weight is sharded along the wrong axis",
        "cut column-parallel weights along out_features, row-parallel ones along in_features",
    ),
    "shard-order": Bug(
        "a rank has the part of another rank",
        "rank r takes part r of every weight, and gathers parts in the order of ranks",
    ),
    "reduce-missing": Bug(
        "partial sums are not reduced, or reduced twice", "reduce a row-parallel layer's output exactly once"
    ),
    "reduce-mean": Bug(
        "partial sums are divided by the number of ranks",
        "all_reduce adds the ranks' parts (SUM), and takes no mean of them",
    ),
    "weight-missing": Bug(
        "a weight is zeros", "load it: a tensor, or a rank's part of it, that nobody filled stays as it was allocated"
    ),
    "transposed": Bug(
        "the weight is read as [in, out] (row-major taken for column-major)",
        "weights are stored [out_features, in_features], row-major",
    ),
    "weight-element": Bug(
        "one element of a weight is another number", "compare the file with the original; load it anew"
    ),
    "tie-ignored": Bug(
        "lm_head is not the embedding although config.json ties them", "use model.embed_tokens.weight as the head"
    ),
    "head-other": Bug(
        "lm_head is none of the model's matrices", "load lm_head.weight of this very checkpoint; check how it is cut"
    ),
    "tie-wrong": Bug("the embedding serves as lm_head although the model has a head of its own", "load lm_head.weight"),
    "logits-row": Bug(
        "the logits are those of another token",
        "take the row of the last token of each sequence in the batch: cu_seqlens[1:] - 1",
    ),
    "dtype-trunc": Bug("float32 weights are truncated to bfloat16", "round to nearest even"),
    "dtype-narrow": Bug(
        "weights are rounded to a narrower type", "keep the stored type, or say in the trace what is computed in"
    ),
    "dtype-misread": Bug("float16 is read as bfloat16, or the reverse", "read the tensor's own dtype"),
    "byte-order": Bug("the bytes of the weights are swapped", "safetensors and GGUF are little-endian"),
}

ROW_PARALLEL = ("o_proj", "out_proj", "down_proj")  # ends of the roles whose parts are added over ranks
ROWS = {
    "before": "the row of the token before",
    "after": "the row of the token after",
    "last": "the last row of the step, of whatever sequence",
    "first": "the first row of the step",
}


@mistake("linear", of=product, name="rows_of")
def _rows_of(product: Op[Product], a: Product, of: tuple[str, str, float, str]) -> Array:
    """Logits of other rows; the last input is what the final norm selects its rows from, before it.

    of: the kind of rows, the norm's weight and eps, and the head's weight, which says how it reads the norm.
    """
    kind, weight, eps, head = of
    context, dtype = a.context, a.x.dtype
    rows = other_rows(kind, context.logit_rows, context.tokens)
    given = Norm(a.others[-1][rows], context.weights.array(weight, dtype), dtype.type(eps), context)
    return product(replace(a, x=context.read(norm(given), head)))


@mistake("select", of=select, name="rows_of", choices=tuple(ROWS))
def _selected(select: Op[Select], a: Select, kind: str) -> Array:
    return select(replace(a, rows=other_rows(kind, a.rows, a.tokens)))


def other_rows(kind: str, rows: NDArray[np.int64], tokens: Tokens) -> NDArray[np.int64]:
    """Rows of the same step, in place of those whose logits are wanted."""
    first = np.searchsorted(tokens.steps, tokens.steps[rows])
    last = np.searchsorted(tokens.steps, tokens.steps[rows], side="right") - 1
    of_kind = {"before": np.maximum(rows - 1, first), "after": np.minimum(rows + 1, last), "last": last, "first": first}
    return of_kind[kind]


@mistake("linear", of=product)
def input_part(product: Op[Product], a: Product, rank_of: tuple[int, int]) -> Array:
    """Only one of n ranks adds up its part of the inputs: (rank, n)."""
    rank, n = rank_of
    size = a.x.shape[-1] // n
    is_mine = np.arange(a.x.shape[-1]) // size == rank
    return product(replace(a, x=np.where(is_mine, a.x, 0)))


@mistake("linear", of=product, choices=(True,))
def of_zeros(product: Op[Product], a: Product, _: bool) -> Array:
    """The weight is zeros."""
    return np.zeros_like(product(a))


@mistake("linear", of=product)
def elements(product: Op[Product], a: Product, changes: Sequence[tuple[int, int, float]]) -> Array:
    """Some elements of the weight are other numbers: (row, column, by how much)."""
    y = product(a)
    for row, column, change in changes:
        y[:, row] += a.x[:, column] * a.x.dtype.type(change)
    return y


@mistake("linear", of=product, choices=(True,))
def fp16_sum(product: Op[Product], a: Product, _: bool) -> Array:
    """The sum is stored as float16 before the bias is added."""
    return rounded(product(a), "float16")


@mistake("linear", of=product)
def effective(product: Op[Product], a: Product, reading: Effective) -> Array:
    """The weight is read wrongly."""
    return product(replace(a, weight=Made.of(reading, a.weight)))


@mistake("linear", of=biased)
def factor(biased: Op[Biased], a: Biased, number: float) -> Array:
    return biased(a) * a.dtype.type(number)


@mistake("linear", of=biased)
def bias_elements(biased: Op[Biased], a: Biased, changes: Sequence[tuple[int, float]]) -> Array:
    """Some elements of the bias are other numbers: (row, by how much)."""
    y = biased(a).copy()
    for row, change in changes:
        y[:, row] += a.dtype.type(change)
    return y


@mistake("linear", of=biased)
def effective_bias(biased: Op[Biased], a: Biased, reading: Effective) -> Array:
    """The bias is read wrongly."""
    return biased(a if a.bias is None else replace(a, bias=reading(a.weights, a.dtype)))


@mistake("linear", of=biased)
def bias_factor(biased: Op[Biased], a: Biased, number: float) -> Array:
    """The bias is added as often as the parameter says; 0: never."""
    if a.bias is None or number == 0:
        return a.y
    return biased(replace(a, bias=a.bias * a.dtype.type(number)))


def other_layers(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    """The weight of the same part of each other layer, with its bias."""
    for other in range(scope.config.num_layers if node.layer is not None else 0):
        if other != node.layer and (found := scope.same_part(node, other)):
            taken = {key: found.params[key] for key in ("weight", "bias") if found.params.get(key)}
            yield "layer-prefix", f"the weight of layer {other}", taken


def averaged(node: Node, ranks: int) -> Params:
    """The parts of a row-parallel layer, divided by the number of ranks; a bias is added after that."""
    return {"output_factor": 1 / ranks} | ({"bias_factor": ranks} if node.params.get("bias") else {})


def zeros(node: Node) -> Params:
    """Neither weight nor bias is loaded."""
    return {"of_zeros": True} | ({"bias_factor": 0} if node.params.get("bias") else {})


def linears(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    weight, role = node.params["weight"], node.role
    out_features, in_features = scope.weights.shape(weight)
    if node.params.get("bias"):
        yield "bias-missing", "no bias", {"bias_factor": 0}
        for n in (2, 3, *DEGREES[1:]):
            yield "bias-times-tp", f"the bias is added {n} times", {"bias_factor": n}
    if node.layer is not None:  # zeros as logits say nothing
        yield "weight-missing", "zeros", zeros(node)
        if node.params.get("bias"):
            yield "weight-missing", "zeros beside its bias", {"of_zeros": True}
    for how in ("as columns", "as rows"):
        yield "transposed", f"read {how}", {"effective": Effective("transposed", (weight,), (how,))}
    yield from other_layers(scope, node)
    yield from of_ranks(scope, node)
    for n in DEGREES:
        if in_features % n == 0 and out_features % n == 0:
            kind = "row" if role.endswith(ROW_PARALLEL) else "column"
            yield "shard-dim", f"over {n} ranks", {"effective": Effective(f"{kind}-shards", (weight,), (n,))}
        if role.endswith(ROW_PARALLEL):
            if in_features % n == 0:
                for rank in range(n):
                    yield "reduce-missing", f"only the part of rank {rank} of {n}", {"input_part": (rank, n)}
            bias = " (bias included)" if node.params.get("bias") else ""
            yield "reduce-missing", f"added up {n} times{bias}", {"output_factor": float(n)}
            if bias:
                yield "reduce-missing", f"added up {n} times", {"output_factor": float(n), "bias_factor": 1 / n}
            yield "reduce-mean", f"divided by {n}", averaged(node, n)
    for how, bug, detail in misreadings(scope, weight):
        yield bug, detail, {"effective": Effective("bits", (weight,), (how,))}
        if len(both := misread(scope, node, how)) == 2:
            yield bug, f"{detail}, the bias too", both
    yield from _regrouped(scope, node)
    if role in ("self_attn.q_proj", "self_attn.k_proj"):
        for direction in ("to-pairs", "from-pairs"):
            params: Params = {"effective": Effective("permuted", (weight,), (node.params["head_dim"], direction))}
            yield "gguf-permute", direction, params
            if bias_name := node.params.get("bias"):
                both = {"effective_bias": Effective("permuted", (bias_name,), (node.params["head_dim"], direction))}
                yield "gguf-permute", f"{direction}, the bias too", {**params, **both}


def _regrouped(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    """The rows of a projection's heads taken as those of features."""
    head_dim = node.params.get("head_dim")
    if head_dim is None:
        return
    heads = scope.weights.shape(node.params["weight"])[0] // head_dim
    for n in (n for n in (1, *scope.degrees) if heads % n == 0 and heads > n):
        names = {"effective": node.params["weight"], "effective_bias": node.params.get("bias")}
        params: Params = {key: Effective("regrouped", (name,), (head_dim, n)) for key, name in names.items() if name}
        yield "heads-order", f"taken as [head_dim, heads]{f' by each of {n} ranks' if n > 1 else ''}", params


def of_ranks(scope: Scope, node: Node) -> Iterator[tuple[str, str, Params]]:
    """What ranks do with their own parts of a weight: the parts of others, or each read as columns."""
    weight, bias = node.params["weight"], node.params.get("bias")
    axis = 1 if node.role.endswith(ROW_PARALLEL) else 0
    length, head_dim = scope.weights.shape(weight)[axis], node.params.get("head_dim") or 1
    for n in (n for n in scope.degrees if length // head_dim % n == 0 and length > n):
        how = ("as columns", axis, n)
        yield (
            "transposed",
            f"read as columns by each of {n} ranks",
            {"effective": Effective("transposed", (weight,), how)},
        )
        for order in _orders(n):
            yield "shard-order", order_text(order), in_order(weight, None if axis else bias, axis, order)


def _orders(n: int) -> list[tuple[int, ...]]:
    """Whose part each of n ranks has: of two any, else each other's, the next one's or the last one's first."""
    if n == 2:
        return [(1, 0), (0, 0), (1, 1)]
    own = tuple(range(n))
    swapped = [(*own[:i], i + 1, i, *own[i + 2 :]) for i in range(n - 1)]
    return [own[::-1], own[1:] + own[:1], own[-1:] + own[:-1], *swapped]


def order_text(order: Sequence[int]) -> str:
    wrong = [f"rank {rank} has that of rank {other}" for rank, other in enumerate(order) if rank != other]
    return f"of the parts of {len(order)} ranks {', '.join(wrong)}"


def in_order(weight: str, bias: str | None, axis: int, order: tuple[int, ...]) -> Params:
    """Parameters of a weight, and of a bias if there is one, whose parts are in another order."""
    params: Params = {"effective": Effective("slices", (weight,), (axis, order))}
    return params | ({"effective_bias": Effective("slices", (bias,), (0, order))} if bias else {})


def misread(scope: Scope, node: Node, how: str) -> Params:
    """The weight read in the wrong way `how`, and the bias too if its stored type can be read that way."""
    params: Params = {"effective": Effective("bits", (node.params["weight"],), (how,))}
    bias = node.params.get("bias")
    if bias and how in {known for known, _, _ in misreadings(scope, bias)}:
        params["effective_bias"] = Effective("bits", (bias,), (how,))
    return params


def misreadings(scope: Scope, weight: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(how, bug, detail) of each way to read the bytes wrongly."""
    stored = scope.weights.stored[weight or scope.graph.head.params["weight"]].dtype
    if stored not in PLAIN_BYTES:
        yield from mistakes(stored)
        return
    if stored == "F32":
        yield "truncated", "dtype-trunc", "cut to bfloat16"
        yield "rounded bfloat16", "dtype-narrow", "rounded to bfloat16"
        yield "rounded float16", "dtype-narrow", "rounded to float16"
    else:
        yield "misread", "dtype-misread", f"{stored} read as {'bfloat16' if stored == 'F16' else 'float16'}"
    yield "swapped", "byte-order", "big-endian"
