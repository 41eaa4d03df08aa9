"""What a device computes for each op: arrays in its memory in, arrays in its memory out (karat.ops.device)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.errors import ExecutorError, NumericsError
from karat.ops import api
from karat.ops.api import HeadGroups, Op, Step, Tensor
from karat.ops.reference import require

SPLIT_KEYS, DIGIT_COLUMNS = 256, 32  # kSplitKeys, kDigitColumns in csrc/contract

PRODUCT_FLOATS = 1 << 24  # of experts' products that wait for their sum; which changes no bit


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """K and V of a layer. `layout` is the device's; `group` and `layer` are their numbers in the model."""

    layout: Any
    num_kv_heads: int
    head_dim: int
    num_slots: int
    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The arrays [slots, …] that a layer keeps of each sequence."""

    arrays: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Cosines and sines by position [positions, head_dim / 2]."""

    cos: Any
    sin: Any


class DeviceStep:
    """A batch in the memory of the device: `flat` is all of it, and columns are views.

    `splits` of attention hold its longest sequence. `ends` is from and below what the numbers of its columns had to be,
    by name and cache group.
    """

    def __init__(self, device: Any, batch: ForwardBatch, splits: int | None = None) -> None:
        self.batch = batch
        self.flat = device.array(batch.flat)
        self.splits = splits or num_splits(batch)
        self.ends: dict[tuple[str, int], tuple[int, int]] = {}

    def column(self, name: str, end: int | None = None, group: int = 0, *, least: int = 0) -> Any:
        """A column [length], or [seqs, max_blocks]. Its numbers are from `least` to end - 1, or else ExecutorError."""
        if end is not None and self.ends.setdefault((name, group), (least, end))[1] >= end:
            self.ends[name, group] = least, end
            require_within(self.batch, name, group, least, end)
        place = self.batch.place(name, group)
        length = place.stop - place.start
        shape = [self.batch.num_seqs, length // self.batch.num_seqs] if name == "block_tables" else [length]
        return self.flat.view(place.start, shape)


def num_splits(batch: ForwardBatch) -> int:
    """Parts of attention that hold the longest sequence of a batch."""
    return -(-int(batch.context_lens.max()) // SPLIT_KEYS)


def require_within(batch: ForwardBatch, name: str, group: int, least: int, end: int) -> None:
    """Raise ExecutorError unless the numbers of a column are from `least` to end - 1."""
    numbers = batch.flat[batch.place(name, group)]
    if len(numbers) and not (numbers.min() >= least and numbers.max() < end):
        raise ExecutorError(f"{name} from {numbers.min()} to {numbers.max()}; expected {least} to {end - 1}")


@dataclass(slots=True)
class DeviceKernels:
    """A device of `module`, and the bytes of the integers that linear layers on blocks read.

    `losses` [ops, 2] int32 tells for each op that writes to a cache of a number that does not fit. While it is None
    such an op looks for itself; else whoever made it looks when the step has ended, and `num_losses` counts the ops.
    """

    module: Any
    device: Any
    width: int
    losses: Any = None
    num_losses: int = 0
    _step: DeviceStep | None = None
    _digits: tuple[Any, Any] | None = None  # of the last rows that were made digits: layers of one x follow each other
    _made: dict[Any, tuple[Any, Any]] = field(default_factory=dict)  # of weights, with these: see `once`

    def compute(
        self, op: Op[Any], scores: NDArray[np.float32] | None = None, score_seq: int = 0, *, digits: bool = False
    ) -> Any:
        """The result of an op. If `scores` is given, attention writes those of sequence `score_seq` to it.

        With `digits`, layers on blocks will read the result: its digits are made in the same launch, if there is one
        for both. Raises ExecutorError for what has no kernels and for arguments outside the contract, NumericsError for
        a K or V that the cache's dtype cannot hold.
        """
        width = self.width if digits else 0
        if isinstance(op, api.PagedAttention):
            return _paged_attention(self, op, scores, score_seq, width)
        op.check(lambda x: tuple(x.shape[1:]))
        if (with_digits := _WITH_DIGITS.get(type(op))) is not None:
            return with_digits(self, op, width)
        function = _FUNCTIONS.get(type(op))
        if function is None:
            raise ExecutorError(f"{type(op).__name__}: a GPU has no kernels for this op yet")
        return function(self, op)

    def floats(self, x: Any) -> Any:
        """x in the memory of the device."""
        if isinstance(x, np.ndarray):
            if x.dtype != np.float32:
                raise ExecutorError(f"an input of {x.dtype}; the kernels of a GPU compute in float32")
            return self.device.array(np.ascontiguousarray(x))
        return x

    def step(self, batch: ForwardBatch | DeviceStep) -> DeviceStep:
        """A batch on the device; all ops of a step have the same one."""
        if isinstance(batch, DeviceStep):
            return batch
        if self._step is None or self._step.batch is not batch:
            self._step = DeviceStep(self.device, batch)
        return self._step

    def keep_digits(self, x: Any, digits: Any) -> Any:
        """x, whose digits are known."""
        if digits is not None:
            self._digits = (x, digits)
        return x

    def digits(self, x: Any) -> Any:
        """The digits of rows of x [rows, columns]."""
        if self._digits is None or self._digits[0] is not x:
            self._digits = (x, self.device.quantise(x, self.width))
        return self._digits[1]

    def forget(self) -> None:
        """Let go of what was kept of a step."""
        self._step = self._digits = None

    def linears(self, ops: Sequence[api.Linear], residual: Any = None) -> list[Any]:
        """Layers of one x, side by side; `residual` is added to the result of the only one."""
        first = ops[0]
        x, weights = self.floats(first.x), [op.weight for op in ops]
        for op in ops:
            shape = (op.weight.rows, op.weight.columns)
            require(x.shape[-1] == shape[1], op.name, f"weight [out, in] {shape} for rows of {x.shape[-1]}")
        digits = self.digits(x) if any(weight.in_blocks for weight in weights) else None
        leaves, biases = list(first.leaves or (weights[0].columns,)), [op.bias for op in ops]
        made: list[Any] = self.device.linears(weights, x, digits, self.width, leaves, biases, residual)
        return made

    def once(self, weights: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What `make` makes the first time of these weights, or of what else a model keeps."""
        key = tuple(map(id, weights))
        if key not in self._made:
            self._made[key] = (weights, make())
        return self._made[key][1]

    def table(self, matrices: tuple[Any, ...]) -> Any:
        """Where each of these matrices lies, as an array on the device."""
        return self.once(matrices, lambda: self.module.MatrixTable(self.device, list(matrices)))

    def vector(self, *vectors: Any, plus: float = 0.0) -> Any:
        """Vectors behind each other, and `plus` to each number: an array on the device."""

        def values(vector: Any) -> NDArray[np.float32]:
            found = np.empty(vector.shape, np.float32)
            vector.read(found)
            return found + np.float32(plus)

        return self.once(vectors, lambda: self.device.array(np.concatenate([values(each) for each in vectors])))

    def new_loss(self) -> Any:
        """The place [2] of one more op that writes to a cache: there is nothing lost yet."""
        if self.losses is not None:
            self.num_losses += 1
            return self.losses.view(2 * (self.num_losses - 1), [2])
        return self.device.array(np.full(2, -1, np.int32))


def _embedding(on: DeviceKernels, op: api.Embedding) -> Any:
    return on.device.embedding(op.table, on.step(op.step).column("token_ids", op.table.rows))


def _rms_norm(on: DeviceKernels, op: api.RmsNorm, width: int) -> Any:
    weight = on.vector(op.weight, plus=1.0) if op.plus_one else op.weight
    return on.keep_digits(*on.device.rms_norm(on.floats(op.x), weight, op.eps, width))


def _square_sums(on: DeviceKernels, op: api.SquareSums) -> Any:
    return on.device.square_sums(on.floats(op.q), on.floats(op.k), op.q_leaves, op.k_leaves, op.k_first)


def _part_norm(on: DeviceKernels, op: api.PartNorm) -> Any:
    return on.device.part_norm(on.floats(op.x), on.floats(op.squares), op.weight, op.eps, op.part, op.count)


def _l2_norm(on: DeviceKernels, op: api.L2Norm) -> Any:
    return on.device.l2_norm(on.floats(op.x), op.eps, op.factor)


def _silu_mul(on: DeviceKernels, op: api.SiluMul, width: int) -> Any:
    return on.keep_digits(*on.device.silu_mul(on.floats(op.gate), on.floats(op.up), width))


def _gelu_mul(on: DeviceKernels, op: api.GeluMul, width: int) -> Any:
    return on.keep_digits(*on.device.gelu_mul(on.floats(op.gate), on.floats(op.up), width))


def _linear(on: DeviceKernels, op: api.Linear) -> Any:
    return on.linears([op])[0]


def _linear_plus(on: DeviceKernels, op: "LinearPlus") -> Any:
    return on.linears([op], op.residual)[0]


def _qkv(on: DeviceKernels, op: api.Qkv) -> tuple[Any, ...]:
    parts = on.linears(op.alone())
    return tuple(part.reshape([part.shape[0], part.shape[1] // op.head_dim, op.head_dim]) for part in parts)


def _linears(on: DeviceKernels, op: api.Linears) -> tuple[Any, ...]:
    return tuple(on.linears(op.alone()))


def _sigmoid_mul(on: DeviceKernels, op: api.SigmoidMul) -> Any:
    return on.device.sigmoid_mul(on.floats(op.x), on.floats(op.gate))


def _add(on: DeviceKernels, op: api.Add) -> Any:
    return on.device.add(on.floats(op.x), on.floats(op.y))


def _mul(on: DeviceKernels, op: api.Mul) -> Any:
    return on.device.mul(on.floats(op.x), on.floats(op.y))


def _sigmoid(on: DeviceKernels, op: api.Sigmoid) -> Any:
    return on.device.sigmoid(on.floats(op.x))


def _scale(on: DeviceKernels, op: api.Scale) -> Any:
    return on.device.scale(on.floats(op.x), op.factor)


def _scale_by(on: DeviceKernels, op: api.ScaleBy) -> Any:
    return on.device.scale_by(on.floats(op.x), op.weight)


def _soft_cap(on: DeviceKernels, op: api.SoftCap) -> Any:
    return on.device.soft_cap(on.floats(op.x), op.cap)


def _split(on: DeviceKernels, op: api.Split) -> tuple[Any, ...]:
    parts = on.device.split(on.floats(op.x), [prod(shape) for shape in op.shapes], op.groups)
    return tuple(part.reshape([part.shape[0], *shape]) for part, shape in zip(parts, op.shapes, strict=True))


def _rope(on: DeviceKernels, op: api.Rope) -> Any:
    x = on.floats(op.x)
    return on.device.rope(x, *_angles(on, op, x))


def _angles(on: DeviceKernels, op: "api.Rope | RopeKvWrite", x: Any) -> tuple[Any, Any, Any]:
    """Positions, cosines and sines for x."""
    cos, sin = op.table.cos, op.table.sin
    held = 2 * cos.shape[-1]
    require(held <= x.shape[-1], op.label, f"a table for head_dim {held}, got {x.shape[-1]}")
    return on.step(op.step).column("positions", cos.shape[0]), cos, sin


def _slots(on: DeviceKernels, op: "api.KvWrite | RopeKvWrite") -> Any:
    cache = op.cache
    return on.step(op.step).column("slots", cache.num_slots, cache.group)


def _kv_write(on: DeviceKernels, op: api.KvWrite) -> None:
    loss = on.new_loss()
    on.device.kv_write(on.floats(op.k), on.floats(op.v), op.cache.layout, _slots(on, op), loss)
    if on.losses is None:
        found = np.empty(2, np.int32)
        loss.read(found)
        look_for_losses(found, [op.cache], on.step(op.step).batch.num_tokens)


def _rope_kv_write(on: DeviceKernels, op: "RopeKvWrite") -> Any:
    q, k, v = (on.floats(x) for x in (op.q, op.k, op.v))
    loss, slots = on.new_loss(), _slots(on, op)
    return on.device.rope_kv_write(q, k, v, *_angles(on, op, q), op.cache.layout, slots, loss)


def look_for_losses(found: NDArray[np.int32], caches: Sequence[DeviceCache], num_tokens: int) -> None:
    """Raise NumericsError if a number did not fit one of these caches; `found` [caches, 2] is what kernels wrote."""
    for cache, loss in zip(caches, found.view(np.uint64).reshape(-1).tolist(), strict=True):
        if loss == 2**64 - 1:
            continue
        row = cache.num_kv_heads * cache.head_dim
        part, at = divmod(loss >> 32, num_tokens * row)
        number = np.uint32(loss & 0xFFFFFFFF).view(np.float32)
        raise NumericsError(
            f"{'KV'[part]} of layer {cache.layer}, KV head {at % row // cache.head_dim}, token {at // row} of the "
            f"step: {number:.6g} does not fit the KV cache; choose a wider one (--kv-dtype float32, or "
            "LLM(kv_dtype='float32'))"
        )


def _paged_attention(
    on: DeviceKernels, op: api.PagedAttention, scores: NDArray[np.float32] | None, score_seq: int, width: int
) -> Any:
    step, cache, q = on.step(op.step), op.cache, on.floats(op.q)
    heads = q.shape[1]
    groups = op.groups or HeadGroups.equal(heads, cache.num_kv_heads)
    fits = groups.fit(heads, cache.num_kv_heads)
    require(fits, op.name, f"{heads} heads in {groups} over {cache.num_kv_heads} KV heads")
    require(op.sinks is None or len(op.sinks) == heads, op.name, f"other sinks than one for {heads} heads")
    columns = step.column("positions"), step.column("query_starts"), step.column("block_tables", group=cache.group)
    made = on.device.attention(
        q,
        cache.layout,
        *columns,
        step.splits,
        step.batch.block_size,
        groups.size,
        groups.first,
        op.scale,
        op.cap or 0.0,
        op.sinks,
        op.window or 0,
        scores,
        score_seq,
        width if cache.head_dim % DIGIT_COLUMNS == 0 else 0,
    )
    return on.keep_digits(*made)


def _route(on: DeviceKernels, op: api.Route) -> tuple[Any, Any]:
    ids, weights = on.device.route(on.floats(op.logits), *op.routing.for_kernels())
    return ids, weights


def _experts(on: DeviceKernels, op: api.Experts) -> Any:
    for role in (op.gates, op.ups, op.downs):
        types = sorted({each.format for each in role})
        require(len(types) == 1, op.name, f"experts in {' and '.join(types)}: a GPU's kernels read one type a role")
    ids = on.device.array(np.ascontiguousarray(op.ids, np.int32)) if isinstance(op.ids, np.ndarray) else op.ids
    given = (on.floats(op.x), ids, on.floats(op.weights))
    tables = (on.table(role) for role in (op.gates, op.ups, op.downs))
    biases = [on.vector(*role) if role else None for role in op.biases or ()]
    clamp = None if op.clamp is None else (op.clamp.limit, op.clamp.alpha)
    require(clamp is None or all(map(isfinite, clamp)), op.name, f"{op.clamp}; expected finite numbers")
    sums = (op.first, list(op.leaves), op.by_columns)
    return on.device.experts(*given, *tables, *sums, on.width, biases, clamp, op.by_gelu, PRODUCT_FLOATS)


def _causal_conv(on: DeviceKernels, op: api.CausalConv) -> Any:
    x, state = on.floats(op.x), op.state.arrays[0]
    channels = x.shape[-1]
    fits = list(state.shape[1:]) == [len(op.weight) // channels - 1, channels] and len(op.weight) % channels == 0
    require(fits, op.name, f"a state {state.shape[1:]} for {len(op.weight)} weights of {channels} channels")
    return on.device.causal_conv(x, op.weight, op.bias, state, *_state_slots(on, op, state), op.silu)


def _decay(on: DeviceKernels, op: api.Decay) -> Any:
    return on.device.decay(on.floats(op.a), op.bias, op.rate, op.of_log)


def _delta_rule(on: DeviceKernels, op: api.DeltaRule) -> Any:
    q, k, v, decay, beta = (on.floats(x) for x in (op.q, op.k, op.v, op.decay, op.beta))
    state, key_heads = op.state.arrays[1], op.key_heads
    sizes = (v.shape[1], k.shape[2], v.shape[2])
    require(state.shape[1:] == sizes, op.name, f"a state {state.shape[1:]} for {sizes}")
    heads = on.once((key_heads,), lambda: on.device.array(np.array(key_heads, np.int32)))
    return on.device.delta_rule(q, k, v, decay, beta, state, *_state_slots(on, op, state), heads)


def _state_slots(on: DeviceKernels, op: "api.CausalConv | api.DeltaRule", state: Any) -> tuple[Any, Any, Any]:
    """Where sequences begin, the slots that they read (-1: none) and those that they write."""
    step = on.step(op.step)
    slots = (step.column(name, state.shape[0], least=-1) for name in ("state_reads", "state_writes"))
    return (step.column("query_starts"), *slots)


def _select_rows(on: DeviceKernels, op: api.SelectRows) -> Any:
    x = on.floats(op.x)
    return on.device.select_rows(x, on.step(op.step).column("logit_rows", x.shape[0]))


@dataclass(frozen=True, slots=True, eq=False)
class LinearPlus(api.Linear):
    """The result of a linear layer + residual, which is as it."""

    residual: Tensor = None


@dataclass(frozen=True, slots=True, eq=False)
class RopeKvWrite(api.Single):
    """q after RoPE; K, which is k after RoPE, and v are written to the cache."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: api.RopeTable
    cache: api.Cache
    step: Step


# Ops that can make the digits of their result, too.
_WITH_DIGITS: Mapping[type[Op[Any]], Callable[[DeviceKernels, Any, int], Any]] = {
    api.RmsNorm: _rms_norm,
    api.SiluMul: _silu_mul,
    api.GeluMul: _gelu_mul,
}

_FUNCTIONS: Mapping[type[Op[Any]], Callable[[DeviceKernels, Any], Any]] = {
    api.Embedding: _embedding,
    api.Linear: _linear,
    LinearPlus: _linear_plus,
    api.Qkv: _qkv,
    api.GateUp: _linears,
    api.Linears: _linears,
    api.SquareSums: _square_sums,
    api.PartNorm: _part_norm,
    api.L2Norm: _l2_norm,
    api.SigmoidMul: _sigmoid_mul,
    api.Add: _add,
    api.Mul: _mul,
    api.Sigmoid: _sigmoid,
    api.Scale: _scale,
    api.ScaleBy: _scale_by,
    api.SoftCap: _soft_cap,
    api.Split: _split,
    api.Rope: _rope,
    api.KvWrite: _kv_write,
    RopeKvWrite: _rope_kv_write,
    api.Route: _route,
    api.Experts: _experts,
    api.CausalConv: _causal_conv,
    api.Decay: _decay,
    api.DeltaRule: _delta_rule,
    api.SelectRows: _select_rows,
}
