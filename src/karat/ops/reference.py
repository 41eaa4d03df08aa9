"""The reference executor: every op is one plain NumPy function, in float64 (the standard of the checks) or float32."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import pi, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight
from karat.config import FLOAT_BYTES, Activations, FloatName, RopeConfig
from karat.errors import ExecutorError, NumericsError
from karat.ops import api
from karat.ops.api import HeadGroups, Op, Table, Tensor, table_of
from karat.ops.executor import CacheSpec, Executor, Held, StateSpec
from karat.ops.rope_table import CosSin, cos_sin_table
from karat.ranks.group import tree_sum

Array = NDArray[np.floating]


def require(condition: bool, op: str, message: str) -> None:
    """Raise ExecutorError for an op's arguments outside the contract."""
    if not condition:
        raise ExecutorError(f"{op}: {message}")


@dataclass(frozen=True, slots=True)
class ReferenceCache:
    """k [slots, kv_heads, k_dim] and v [slots, kv_heads, v_dim] of a layer, in the stored type (bfloat16 as 16 bits).

    `group` and `layer` are their numbers in the model.
    """

    k: NDArray[np.generic]
    v: NDArray[np.generic]
    dtype: FloatName
    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class MappedTable:
    """A table [rows, columns] that stays in its mapped file; table[ids] are the values of rows."""

    weight: Weight
    numbers: np.dtype[np.floating]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def __getitem__(self, ids: NDArray[np.integer]) -> Array:
        shape, order = (len(ids), self.shape[1]), ids.astype(np.intp)
        return replace(self.weight, shape=shape, whole_shape=self.shape, row_order=lambda: order).to_array(self.numbers)


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """The arrays [slots, *shape] of a layer."""

    arrays: tuple[Array, ...]


class ReferenceOps(Executor):
    """An executor (karat.ops.executor) on NumPy arrays. `dtype` is "float64" or "float32"."""

    executor = "reference"

    def __init__(self, dtype: FloatName = "float64") -> None:
        if dtype not in ("float64", "float32"):
            raise ExecutorError(f"dtype={dtype!r}: the reference executor computes in float64 or float32")
        self.dtype = self.default_kv_dtype = dtype
        self.activations: Activations = dtype
        self.numbers = np.dtype(dtype)

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        return prod(shape) * self.numbers.itemsize

    def load(self, weight: Weight, *, later: bool = False) -> Array:
        return weight.to_array(self.numbers)

    def gathers_mapped(self, weight: Weight) -> bool:
        return weight.is_mapped and weight.has_plain_rows

    def load_mapped(self, weight: Weight) -> MappedTable:
        return MappedTable(weight, self.numbers)

    def held(self, loaded: Array | MappedTable) -> Held:
        if isinstance(loaded, MappedTable):
            loaded = loaded.weight.to_array(self.numbers)
        return Held({8: "F64", 4: "F32"}[loaded.itemsize], np.ascontiguousarray(loaded).reshape(-1).view(np.uint8))

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int, growth: float = 0.0) -> CosSin:
        return cos_sin_table(rope, head_dim=head_dim, num_positions=num_positions, growth=growth, dtype=self.numbers)

    def cache_bytes(self, spec: CacheSpec) -> int:
        slots = spec.num_blocks * spec.block_size
        return len(spec.layers) * slots * spec.num_kv_heads * (spec.k_dim + spec.v_dim) * FLOAT_BYTES[spec.dtype]

    def new_cache(self, groups: Sequence[CacheSpec]) -> tuple[tuple[ReferenceCache, ...], ...]:
        return tuple(
            tuple(_empty_cache(spec, group, layer) for layer in spec.layers) for group, spec in enumerate(groups)
        )

    def state_bytes(self, spec: StateSpec) -> int:
        return len(spec.layers) * spec.num_slots * sum(map(prod, spec.shapes)) * self.numbers.itemsize

    def new_states(self, spec: StateSpec) -> tuple[ReferenceState, ...]:
        return tuple(
            ReferenceState(tuple(np.zeros((spec.num_slots, *shape), self.numbers) for shape in spec.shapes))
            for _ in spec.layers
        )

    def leaf_sums(self, x: Array, weight: Array, ends: Sequence[int]) -> list[Array]:
        """x @ weight.T of each leaf alone; `ends` are the columns where leaves end."""
        return [x[:, start:end] @ weight[:, start:end].T for start, end in pairwise((0, *ends))]

    def apply(self, op: Op[Any]) -> Any:
        op.check(lambda x: x.shape[1:])
        rows = {len(x) for x in op.given(Tensor).values()}
        require(len(rows) < 2, op.label, f"tensors with {' and '.join(map(str, sorted(rows)))} rows")
        return _FUNCTIONS[type(op)](self, op)


def _embedding(ops: ReferenceOps, op: api.Embedding) -> Array:
    ids, share = op.step.token_ids, op.share
    if share is None:
        rows: Array = op.table[ids]
        return rows
    own = share.owners(ids) == share.group.rank
    rows = np.zeros((op.step.num_tokens, op.table.shape[1]), ops.numbers)
    rows[own] = op.table[ids[own] - share.first]
    return share.rows_of_owners(ids, rows)


def _rms_norm(ops: ReferenceOps, op: api.RmsNorm) -> Array:
    x, weight = op.x, op.weight
    x = x.reshape(len(x), prod(x.shape[1:]) // weight.size, weight.size)  # of a step without rows, too
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    factor = 1 + weight if op.plus_one else weight
    result: Array = x * (1 / np.sqrt(mean_square + ops.numbers.type(op.eps))) * factor
    return result.reshape(op.x.shape)


def _square_sums(ops: ReferenceOps, op: api.SquareSums) -> Array:
    def whole(x: Array, first: int, ends: tuple[int, ...]) -> Array:
        flat, starts = x.reshape(len(x), -1), (first, *ends[:-1])
        return tree_sum([np.sum(flat[:, start:end] ** 2, axis=1) for start, end in zip(starts, ends, strict=True)])

    sums: Array = np.stack((whole(op.q, 0, op.q_leaves), whole(op.k, op.k_first, op.k_leaves)), axis=1)
    return sums if op.group is None else tree_sum(op.group.all_gather(sums))


def _part_norm(ops: ReferenceOps, op: api.PartNorm) -> Array:
    mean_square = op.squares[:, op.part, None] / op.count
    scaled = op.x.reshape(len(op.x), -1) * (1 / np.sqrt(mean_square + ops.numbers.type(op.eps)))
    result: Array = scaled * op.weight
    return result.reshape(op.x.shape)


def _l2_norm(ops: ReferenceOps, op: api.L2Norm) -> Array:
    squares = np.sum(op.x * op.x, axis=-1, keepdims=True)
    result: Array = op.x * (1 / np.sqrt(squares + ops.numbers.type(op.eps))) * ops.numbers.type(op.factor)
    return result


def _linear(ops: ReferenceOps, op: api.Linear) -> Array:
    require_fits(op)
    return whole_sum(op, op.x @ op.weight.T)


def require_fits(op: api.Linear) -> None:
    """Raise ExecutorError unless the rows of x fit the weight."""
    columns, shape = op.x.shape[-1], op.weight.shape
    require(columns == shape[1], op.name, f"weight [out, in] {shape} for rows of {columns}")


def whole_sum(op: api.Linear, part: Array) -> Array:
    """The op's result, of this rank's part of the sum."""
    if op.group is not None:
        part = tree_sum(op.group.all_gather(part))
    return part if op.bias is None else part + op.bias


def _gather_columns(ops: ReferenceOps, op: api.GatherColumns) -> Array:
    return op.share.group.gather_columns(op.x, op.share)


def _qkv(ops: ReferenceOps, op: api.Qkv) -> tuple[Array, ...]:
    return tuple(ops.apply(linear).reshape(len(op.x), -1, op.head_dim) for linear in op.alone())


def _linears(ops: ReferenceOps, op: api.Linears) -> tuple[Array, ...]:
    return tuple(ops.apply(linear) for linear in op.alone())


def _silu_mul(ops: ReferenceOps, op: api.SiluMul) -> Array:
    result: Array = op.gate * _sigmoid(op.gate) * op.up
    return result


def _gelu_mul(ops: ReferenceOps, op: api.GeluMul) -> Array:
    slope, third = ops.numbers.type(sqrt(2 / pi)), ops.numbers.type(0.044715)
    result: Array = op.gate / 2 * (1 + np.tanh(slope * (op.gate + third * op.gate**3))) * op.up
    return result


def _sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + decay), decay / (1 + decay))


def _sigmoid_mul(ops: ReferenceOps, op: api.SigmoidMul) -> Array:
    columns, gates = prod(op.x.shape[1:]), prod(op.gate.shape[1:])
    by_element = np.repeat(_sigmoid(op.gate).reshape(-1), columns // gates)
    result: Array = op.x * by_element.reshape(op.x.shape)
    return result


def _add(ops: ReferenceOps, op: api.Add) -> Array:
    result: Array = op.x + op.y
    return result


def _mul(ops: ReferenceOps, op: api.Mul) -> Array:
    result: Array = op.x * op.y
    return result


def _split(ops: ReferenceOps, op: api.Split) -> tuple[Array, ...]:
    pieces = op.x.reshape(len(op.x), op.groups, -1)
    ends = np.cumsum([prod(shape) // op.groups for shape in op.shapes])
    parts = np.split(pieces, ends[:-1], axis=-1)
    return tuple(part.reshape(len(part), *shape) for part, shape in zip(parts, op.shapes, strict=True))


def _scale(ops: ReferenceOps, op: api.Scale) -> Array:
    result: Array = op.x * ops.numbers.type(op.factor)
    return result


def _soft_cap(ops: ReferenceOps, op: api.SoftCap) -> Array:
    return _capped(op.x, ops.numbers.type(op.cap))


def _capped(x: Array, cap: np.floating) -> Array:
    result: Array = cap * np.tanh(x / cap)
    return result


def _rope(ops: ReferenceOps, op: api.Rope) -> Array:
    x, table, half = op.x, op.table, op.table.cos.shape[-1]
    require(2 * half <= x.shape[-1], op.name, f"a table for head_dim {2 * half}, got {x.shape[-1]}")
    cos, sin = (part[op.step.positions][:, None] for part in (table.cos, table.sin))  # [tokens, 1, half]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate((left * cos - right * sin, right * cos + left * sin, rest), axis=-1)


def _empty_cache(spec: CacheSpec, group: int, layer: int) -> ReferenceCache:
    stored = np.uint16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
    shape = (spec.num_blocks * spec.block_size, spec.num_kv_heads)
    k, v = (np.zeros((*shape, dim), stored) for dim in (spec.k_dim, spec.v_dim))
    return ReferenceCache(k, v, spec.dtype, group, layer)


def _kv_write(ops: ReferenceOps, op: api.KvWrite) -> None:
    cache = op.cache
    for label, values, store in (("K", op.k, cache.k), ("V", op.v, cache.v)):
        store[op.step.slots(cache.group)] = _store(values, cache.dtype, f"{label} of layer {cache.layer}")


def _paged_attention(ops: ReferenceOps, op: api.PagedAttention) -> Array:
    step, cache, observe = op.step, op.cache, op.observe
    num_tokens, num_heads, k_dim = op.q.shape
    _, num_kv_heads, v_dim = cache.v.shape
    groups = op.groups or HeadGroups.equal(num_heads, num_kv_heads)
    fits = groups.fit(num_heads, num_kv_heads)
    require(fits, op.name, f"{num_heads} heads in {groups} over {num_kv_heads} KV heads")
    require(op.sinks is None or op.sinks.shape == (num_heads,), op.name, f"other sinks than one for {num_heads} heads")
    # A cut group is filled up with queries of zero; their results are left out.
    held = slice(groups.first, groups.first + num_heads)
    padded = np.zeros((num_tokens, num_kv_heads * groups.size, k_dim), op.q.dtype)
    padded[:, held] = op.q
    sinks = np.full(num_kv_heads * groups.size, -np.inf, op.q.dtype)
    sinks[held] = -np.inf if op.sinks is None else op.sinks
    sinks = sinks.reshape(num_kv_heads, groups.size, 1)
    grouped = padded.reshape(num_tokens, num_kv_heads, groups.size, k_dim)
    out = np.empty((*grouped.shape[:-1], v_dim), op.q.dtype)
    for seq, context_len in enumerate(step.context_lens):
        rows = range(step.query_starts[seq], step.query_starts[seq + 1])
        seen = 0 if op.window is None else max(0, int(step.positions[rows.start]) + 1 - op.window)
        k, v = (_read(store, cache, step, seq, range(seen, int(context_len)), ops) for store in (cache.k, cache.v))
        keys = np.ascontiguousarray(k.transpose(1, 2, 0))  # [kv_heads, k_dim, keys]
        values = np.ascontiguousarray(v.swapaxes(0, 1))  # [kv_heads, keys, v_dim]
        shape = (num_heads, len(rows), int(context_len))
        all_scores, all_weights = (np.full(shape, -np.inf), np.zeros(shape)) if observe else (None, None)
        for row in rows:
            end = int(step.positions[row]) + 1
            start = 0 if op.window is None else max(0, end - op.window)
            scores = (grouped[row] @ keys[:, :, start:end]) * ops.numbers.type(op.scale)  # [kv_heads, group, keys]
            if op.cap is not None:
                scores = _capped(scores, ops.numbers.type(op.cap))
            top = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
            weights = np.exp(scores - top)
            weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
            out[row] = weights @ values[:, start:end]
            if all_scores is not None and all_weights is not None:
                all_scores[:, row - rows.start, start:end] = scores.reshape(-1, end - start)[held]
                all_weights[:, row - rows.start, start:end] = weights.reshape(-1, end - start)[held]
        if observe and all_scores is not None and all_weights is not None:
            observe("scores", all_scores)
            observe("weights", all_weights)
    return out.reshape(num_tokens, -1, v_dim)[:, held].reshape(num_tokens, num_heads * v_dim)


def _route(ops: ReferenceOps, op: api.Route) -> tuple[NDArray[np.int32], Array]:
    logits, routing = op.logits, op.routing
    if routing.score == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    else:
        scores = np.exp(logits - np.fmax.reduce(logits, axis=-1, keepdims=True))
        if not routing.over_chosen:
            scores /= scores.sum(axis=-1, keepdims=True)
    if routing.by_logit:
        ranked = logits
    else:
        ranked = scores if routing.bias is None else scores + routing.bias
        if routing.groups is not None:
            ranked = _of_groups(ranked, routing.groups)
    ids = _first(ranked, routing.num_chosen)
    weights: Array = np.take_along_axis(scores, ids, axis=-1)
    number = ops.numbers.type
    if routing.renormalised:
        total = weights.sum(axis=-1, keepdims=True) + number(routing.plus)
        weights = weights / np.maximum(total, number(routing.least))
    weights = weights * number(routing.scale)
    return ids.astype(np.int32), weights if routing.scales is None else weights * routing.scales[ids]


def _first(ranked: Array, count: int) -> NDArray[np.int64]:
    """The numbers of the largest [rows, count]: of equal ones the smaller number first, NaN last."""
    return np.argsort(-ranked, axis=-1, kind="stable")[:, :count]


def _of_groups(ranked: Array, groups: api.Groups) -> Array:
    by_group = ranked.reshape(len(ranked), groups.count, -1)
    two = -np.sort(-by_group, axis=-1)[..., :2]
    taking_part = np.zeros(by_group.shape[:2], bool)
    np.put_along_axis(taking_part, _first(two.sum(axis=-1), groups.num_chosen), True, axis=-1)
    return np.where(taking_part[..., None], by_group, ranked.dtype.type(groups.outside)).reshape(ranked.shape)


def _experts(ops: ReferenceOps, op: api.Experts) -> Array:
    leaves, late = [np.zeros_like(op.x) for _ in op.leaves], np.zeros_like(op.x)
    for number in range(len(op.gates)):
        rows, choice = np.nonzero(op.ids == op.first + number)
        if not len(rows):
            continue
        weights = op.weights[rows, choice][:, None]
        of_gate, of_up, of_down = (each[number] if each else None for each in op.biases or ((), (), ()))
        gate = ops.linear(op.x[rows], op.gates[number], of_gate, name=op.name)
        up = ops.linear(op.x[rows], op.ups[number], of_up, name=op.name)
        times = ops.gelu_mul if op.by_gelu else ops.silu_mul
        inner = times(gate, up, name=op.name) if op.clamp is None else _clamped(gate, up, op.clamp)
        if not op.by_columns:
            given = ops.linear(inner, op.downs[number], of_down, name=op.name)
            leaves[bisect_right(op.leaves, number)][rows] += weights * given
            continue
        for sums, given in zip(leaves, ops.leaf_sums(inner, op.downs[number], op.leaves), strict=True):
            sums[rows] += weights * given
        if of_down is not None:
            late[rows] += weights * of_down
    whole = tree_sum(leaves)
    result: Array = late + (whole if op.group is None else tree_sum(op.group.all_gather(whole)))
    return result


def _clamped(gate: Array, up: Array, clamp: api.Clamp) -> Array:
    limit, alpha = gate.dtype.type(clamp.limit), gate.dtype.type(clamp.alpha)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    result: Array = gate * _sigmoid(alpha * gate) * (up + 1)
    return result


def _sequences(step: ForwardBatch) -> Iterator[tuple[slice, int, int]]:
    """Of each sequence of a step its rows, and the slots of the states that it reads (-1: none) and writes."""
    starts = step.query_starts.tolist()
    for seq, (read, write) in enumerate(zip(step.state_reads.tolist(), step.state_writes.tolist(), strict=True)):
        require(read != write, "a state", f"slot {read} is read and written")
        yield slice(starts[seq], starts[seq + 1]), read, write


def _before(states: Array, slot: int) -> Array:
    """A copy of the state in this slot."""
    before: Array = states[slot].copy() if slot >= 0 else np.zeros_like(states[0])
    return before


def _causal_conv(ops: ReferenceOps, op: api.CausalConv) -> Array:
    x, kept = op.x, op.state.arrays[0]
    weight = op.weight.reshape(x.shape[1], -1)
    taps = weight.shape[1]
    require(kept.shape[1:] == (taps - 1, x.shape[1]), op.name, f"a state {kept.shape[1:]} for {weight.shape} weights")
    out: Array = np.empty_like(x)
    for rows, read, write in _sequences(op.step):
        seen = np.concatenate((_before(kept, read), x[rows]))
        count = len(seen) - taps + 1
        out[rows] = sum(seen[tap : tap + count] * weight[:, tap] for tap in range(taps))
        kept[write] = seen[count:]
    if op.bias is not None:
        out += op.bias
    if op.silu:
        out *= _sigmoid(out)
    return out


def _decay(ops: ReferenceOps, op: api.Decay) -> Array:
    y = op.a + op.bias
    softplus = np.where(y > 20, y, np.log1p(np.exp(np.minimum(y, 20))))
    result: Array = np.exp((-np.exp(op.rate) if op.of_log else op.rate) * softplus)
    return result


def _delta_rule(ops: ReferenceOps, op: api.DeltaRule) -> Array:
    states, heads = op.state.arrays[1], list(op.key_heads)
    shape = (*op.v.shape[1:2], op.k.shape[2], *op.v.shape[2:])
    require(states.shape[1:] == shape, op.name, f"a state {states.shape[1:]} for {shape}")
    out: Array = np.empty_like(op.v)
    for rows, read, write in _sequences(op.step):
        state = _before(states, read)  # [heads, k_dim, v_dim]
        norms: list[Array] = []
        for token in range(rows.start, rows.stop):
            q, k = op.q[token, heads], op.k[token, heads]
            state *= op.decay[token][:, None, None]
            change = (op.v[token] - np.einsum("hi,hij->hj", k, state)) * op.beta[token][:, None]
            state += k[:, :, None] * change[:, None]
            out[token] = np.einsum("hi,hij->hj", q, state)
            if op.observe:
                norms.append(np.linalg.norm(state, axis=(1, 2)))
        states[write] = state
        if op.observe:
            op.observe("state_norm", np.array(norms))
    return out.reshape(len(out), -1)


def _select_rows(ops: ReferenceOps, op: api.SelectRows) -> Array:
    rows: Array = op.x[op.step.logit_rows]
    return rows


def _read(
    store: NDArray[np.generic], cache: ReferenceCache, step: ForwardBatch, seq: int, seen: range, ops: ReferenceOps
) -> Array:
    """K or V [keys, kv_heads, dim] of a sequence. Of keys before those in `seen` nothing is read: they are 0."""
    positions, size = np.arange(seen.start, seen.stop), step.block_size
    slots = step.block_tables(cache.group)[seq, positions // size] * size + positions % size
    found = np.zeros((seen.stop, *store.shape[1:]), ops.numbers)
    found[seen.start :] = _restore(store[slots], cache.dtype, ops.numbers)
    return found


def _store(values: Array, dtype: FloatName, what: str) -> NDArray[np.generic]:
    """`values` rounded to the cache's dtype, ties to even; to bfloat16 by way of float32."""
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            bits = values.astype(np.float32).view(np.uint32)
            rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            nan = np.isnan(values)
            stored: NDArray[np.generic] = np.where(nan, np.uint16(0x7FC0), rounded)
        else:
            stored = values.astype(dtype)
    kept = _restore(stored, dtype, np.dtype(np.float64))
    lost = np.isfinite(values) & ~np.isfinite(kept)
    if lost.any():
        token, head, _ = np.argwhere(lost)[0]
        raise NumericsError(
            f"{what}, KV head {head}, token {token} of the step: {values[lost][0]:.6g} does not fit a {dtype} cache; "
            "choose a wider one (--kv-dtype float32, or LLM(kv_dtype='float32'))"
        )
    return stored


def _restore(stored: NDArray[np.generic], dtype: FloatName, compute: np.dtype[np.floating]) -> Array:
    """The cache's values in the compute dtype: exact, except that a float64 cache read in float32 is rounded."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(compute)
    return stored.astype(compute)


_FUNCTIONS: Table[ReferenceOps] = table_of(
    {
        api.Embedding: _embedding,
        api.RmsNorm: _rms_norm,
        api.SquareSums: _square_sums,
        api.PartNorm: _part_norm,
        api.L2Norm: _l2_norm,
        api.Linear: _linear,
        api.GatherColumns: _gather_columns,
        api.Qkv: _qkv,
        api.GateUp: _linears,
        api.Linears: _linears,
        api.SiluMul: _silu_mul,
        api.GeluMul: _gelu_mul,
        api.SigmoidMul: _sigmoid_mul,
        api.Add: _add,
        api.Mul: _mul,
        api.Sigmoid: lambda ops, op: _sigmoid(op.x),
        api.Split: _split,
        api.Scale: _scale,
        api.ScaleBy: lambda ops, op: op.x * op.weight,
        api.SoftCap: _soft_cap,
        api.Rope: _rope,
        api.KvWrite: _kv_write,
        api.PagedAttention: _paged_attention,
        api.Route: _route,
        api.Experts: _experts,
        api.CausalConv: _causal_conv,
        api.Decay: _decay,
        api.DeltaRule: _delta_rule,
        api.SelectRows: _select_rows,
    }
)
