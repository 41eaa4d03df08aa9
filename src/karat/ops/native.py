"""The native executor: C++ kernels on the CPU. Every build of them gives the same bits (csrc/contract/kernels.h).

`NativeOps` runs op by op on arrays, each op as a plan of its own. `NativeOps.runner` records a whole model as one plan
(karat.ops.native_plan) and runs it in one call a step. Both give the same bits. Ranks without shared memory (a group
without a channel) run op by op and exchange results between ops.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch, plain_batch
from karat.checkpoint.weights import Weight, num_stored_bytes
from karat.config import DEFAULT_ACTIVATIONS, FLOAT_BYTES, Activations, FloatName, LayerShape, RopeConfig
from karat.errors import ExecutorError
from karat.machine.cores import num_physical_cores
from karat.machine.extension import native, unavailable_reason
from karat.ops.api import (
    DeltaRule,
    Embedding,
    Experts,
    GatherColumns,
    Linear,
    Loaded,
    Observer,
    Op,
    Ops,
    PagedAttention,
    SquareSums,
    State,
    Step,
    Tensor,
)
from karat.ops.executor import AtOnce, CacheSpec, Executor, Held, Runner, StateSpec, StepLimits, Traits
from karat.ops.expert_biases import with_late_biases
from karat.ops.integers import WIDTHS
from karat.ops.native_plan import Handle, PlanRecorder
from karat.ops.rope_table import cos_sin_table
from karat.ranks.group import Share, tree_sum

Array = NDArray[np.floating]

REGION_SLOTS = 256  # of a cache; karat.kv.cache shows the layout
_SPLIT_KEYS, _PART_STATS = 256, 16  # of attention: keys of a part, and numbers beside its values (contract/kernels.h)
_STATE_COLUMNS = 64  # of a strip of a head's state (contract/kernels.h)
_PACKED_AT_ONCE = 128 * 1024**2  # bytes as they are stored, some tenth of a second

_log = logging.getLogger(__name__)

__all__ = ["NativeOps", "compiled_isas", "refused_isas", "supported_isas", "unavailable_reason"]


def _one_token(state_read: int, state_write: int) -> ForwardBatch:
    """A step of one token; what it reads and writes of a state are these slots."""
    return ForwardBatch.of(
        1,
        token_ids=[0],
        positions=[0],
        query_starts=[0, 1],
        context_lens=[1],
        logit_rows=[],
        slots=[],
        block_tables=[],
        state_reads=[state_read],
        state_writes=[state_write],
    )


def compiled_isas() -> tuple[str, ...]:
    """Kernel builds of this installation, those that this CPU cannot run included; none without the extension."""
    return () if unavailable_reason() else tuple(native().compiled_isas())


def supported_isas() -> tuple[str, ...]:
    """Kernel builds that this CPU can run, from generic to the fastest; none without the extension."""
    return () if unavailable_reason() else tuple(native().supported_isas())


def refused_isas() -> Mapping[str, str]:
    """Kernel builds that this CPU could run and the system does not allow, with the reason."""
    return {} if unavailable_reason() else dict(native().refused_isas())


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _cannot_run(isa: str, runnable: Sequence[str]) -> str:
    """The message for a kernel build that this CPU cannot run or that this installation does not have."""
    advice = f"set KARAT_ISA to one of {', '.join(runnable)}, or unset it for the fastest"
    if isa in compiled_isas():
        reason = refused_isas().get(isa, "this CPU cannot run it")
        return f"kernel build {isa!r}: {reason}; {advice}"
    return (
        f"kernel build {isa!r}: this installation has {', '.join(compiled_isas())}; {advice}; `make demo` compiles "
        "only what this CPU would choose, `make test` what it can run, and a wheel has all builds"
    )


class NativeOps(Executor):
    """An executor (karat.ops.executor) on NumPy arrays in float32.

    `isa` is the kernel build, one of `supported_isas()`; None takes the fastest. `threads` is the number of threads
    that work on an op; None takes one for each physical core that the process may use. Raises ExecutorError for a
    dtype, a build, a number of threads or activations that are not available.
    """

    executor = "native"
    dtype: FloatName = "float32"
    default_kv_dtype: FloatName = "float16"
    traits = Traits(chunk_invariant=True, chooses_activations=True)

    def __init__(
        self,
        dtype: FloatName = "float32",
        *,
        isa: str | None = None,
        threads: int | None = None,
        activations: Activations = DEFAULT_ACTIVATIONS,
    ) -> None:
        if dtype != "float32":
            raise ExecutorError(f"dtype={dtype!r}: the native executor computes in float32")
        if activations not in WIDTHS:
            raise ExecutorError(f"activations={activations!r}: the native executor reads {', '.join(WIDTHS)}")
        if reason := unavailable_reason():
            raise ExecutorError(f"the native executor is not available: {reason}; or use the reference executor")
        runnable = supported_isas()
        if isa is not None and isa not in runnable:
            raise ExecutorError(_cannot_run(isa, runnable))
        most = native().MAX_THREADS
        if threads is not None and not 1 <= threads <= most:
            raise ExecutorError(f"threads={threads}: expected from 1 to {most}")
        self._held_as_float32: set[str] = set()
        self.activations: Activations = activations
        self.isa = isa or runnable[-1]
        self.threads = min(num_physical_cores(), most) if threads is None else threads
        self._packer = native().Packer(self.threads)

    @property
    def options(self) -> Mapping[str, Any]:
        return {"threads": self.threads, "isa": self.isa, "activations": self.activations}

    def bytes_of(self, dtype: str, shape: tuple[int, ...]) -> int:
        if len(shape) == 1 or dtype not in native().formats():
            return 4 * prod(shape)
        rows = -(-shape[0] // native().GROUP_ROWS) * native().GROUP_ROWS
        return num_stored_bytes(dtype, (rows, *shape[1:]))

    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        """The tensor in the layout of the kernels: a matrix packed in its stored type, a vector in float32.

        A matrix of a type without kernels is packed in float32; a warning says so once for each type. With `later`,
        matrices of mapped files wait for `load_pending`, which packs them together without the interpreter's lock:
        another Python thread can run all the while.
        """
        if len(weight.shape) == 1:
            return native().vector(np.ascontiguousarray(weight.to_array(np.dtype(np.float32))))
        weight = self.with_kernels(weight)
        order = None if weight.row_order is None else np.ascontiguousarray(weight.row_order(), np.int64)
        first_byte = 0 if weight.row_span is None else weight.row_span[0]
        try:
            mapped = weight.is_mapped
            take = self._packer.add if later and mapped else partial(native().pack, num_threads=self.threads)
            place = {"mapped": mapped, "row_bytes": weight.row_bytes, "first_byte": first_byte, "order": order}
            return take(weight.dtype, *weight.shape, weight.stored, **place)
        except RuntimeError as refusal:  # the system refuses threads
            raise ExecutorError(str(refusal)) from refusal

    def gathers_mapped(self, weight: Weight) -> bool:
        return weight.is_mapped and weight.has_plain_rows and weight.dtype in native().formats()

    def load_mapped(self, weight: Weight) -> Loaded:
        return native().stored_table(weight.dtype, *weight.shape, weight.stored)

    def with_kernels(self, weight: Weight) -> Weight:
        """A matrix in a type that has kernels: its own, or float32. Raises ExecutorError for other shapes."""
        if len(weight.shape) != 2:
            raise ExecutorError(f"{weight.name}: {weight.shape} is neither a matrix nor a vector")
        if weight.dtype in native().formats():
            return weight.settled()
        if weight.dtype not in self._held_as_float32:
            _log.warning("weights of %s are held as float32: there are no native kernels for them", weight.dtype)
            self._held_as_float32.add(weight.dtype)
        values = weight.to_array(np.dtype(np.float32)).reshape(-1).view(np.uint8)
        weight.release()
        return Weight(weight.name, "F32", weight.shape, values, weight.file)

    @property
    def packed_layout(self) -> int | None:
        return int(native().PACKED_LAYOUT)

    def packed(self, loaded: Loaded) -> NDArray[np.uint8]:
        packed: NDArray[np.uint8] = loaded.packed
        return packed

    def load_packed(self, dtype: str, shape: tuple[int, ...], packed: NDArray[np.uint8]) -> Loaded:
        return native().mapped_matrix(dtype, *shape, packed)

    @property
    def pending_bytes(self) -> int:
        return int(self._packer.pending)

    def load_pending(self, *, spares_core: bool = False) -> None:
        try:
            self._packer.run(_PACKED_AT_ONCE, spared=int(spares_core))
        except RuntimeError as refusal:  # the system refuses threads
            raise ExecutorError(str(refusal)) from refusal

    def held(self, loaded: Loaded) -> Held:
        if isinstance(loaded, native().Matrix | native().StoredTable):
            return Held(loaded.format, loaded.stored())
        return Held("F32", loaded.values().view(np.uint8))

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int, growth: float = 0.0) -> Loaded:
        table = cos_sin_table(
            rope, head_dim=head_dim, num_positions=num_positions, growth=growth, dtype=np.dtype(np.float32)
        )
        return native().rope_table(np.ascontiguousarray(table.cos), np.ascontiguousarray(table.sin))

    def step_bytes(self, shapes: Collection[LayerShape], *, num_seqs: int, context: int) -> int:
        """Of attention's parts in the layer with the most of them, as attention.cpp asks for them."""
        splits = num_seqs * (_up(context, _SPLIT_KEYS) // _SPLIT_KEYS)
        rows = (
            shape.num_kv_heads * (shape.num_heads // shape.num_kv_heads) * (_up(shape.head_dim, 16) + _PART_STATS)
            for shape in shapes
        )
        return splits * max(rows, default=0) * FLOAT_BYTES["float32"]

    def cache_bytes(self, spec: CacheSpec) -> int:
        slots = _up(spec.num_blocks * spec.block_size, REGION_SLOTS)
        width = spec.k_dim + _up(spec.v_dim, 16)
        return len(spec.layers) * slots * spec.num_kv_heads * width * FLOAT_BYTES[spec.dtype]

    def check_cache(self, spec: CacheSpec) -> None:
        """Raise ExecutorError for a cache that kernels cannot read."""
        if spec.dtype == "float64":
            raise ExecutorError("kv_dtype='float64': the native executor has float16, bfloat16 and float32 caches")
        if spec.k_dim != spec.v_dim:
            raise ExecutorError(
                f"keys of {spec.k_dim} numbers and values of {spec.v_dim}: the native executor has caches where "
                "both are equal; take the reference executor"
            )

    def new_cache(self, groups: Sequence[CacheSpec]) -> tuple[tuple[Loaded, ...], ...]:
        for spec in groups:
            self.check_cache(spec)
        return tuple(self._cache_group(spec, group) for group, spec in enumerate(groups))

    def _cache_group(self, spec: CacheSpec, group: int) -> tuple[Loaded, ...]:
        num_slots = spec.num_blocks * spec.block_size
        return tuple(native().cache(spec.dtype, spec.layers, num_slots, spec.num_kv_heads, spec.k_dim, group))

    def state_bytes(self, spec: StateSpec) -> int:
        numbers = sum(prod(shape[:-1]) * _up(shape[-1], 16) for shape in spec.shapes)
        return len(spec.layers) * spec.num_slots * numbers * FLOAT_BYTES["float32"]

    def new_states(self, spec: StateSpec) -> tuple[Loaded, ...]:
        return tuple(native().states(len(spec.layers), spec.num_slots, spec.shapes))

    def runner(self, forward: Callable[[Ops, Step], Tensor], limits: StepLimits) -> Runner:
        """`forward` recorded as one plan, for steps within `limits`. The next step overwrites the result."""
        recorder = PlanRecorder(self.isa, self.threads, self.activations)
        result = forward(recorder, None)
        assert isinstance(result, Handle), "a model returns the result of an op"
        recorder.finish(limits, [result])

        def compute(batch: ForwardBatch) -> Array:
            recorder.run(batch)
            return recorder.value(result)

        return AtOnce(compute)

    def apply(self, op: Op[Any]) -> Any:
        match op:
            case Embedding(share=Share() as share) if share.group.channel is None:
                return self._embedding_over(op, share)
            case Linear(group=group) if group is not None and group.channel is None:
                whole = tree_sum(group.all_gather(self.apply(replace(op, bias=None, group=None))))
                return whole if op.bias is None else whole + op.bias.values()
            case SquareSums(group=group) if group is not None and group.channel is None:
                return tree_sum(group.all_gather(self.apply(replace(op, group=None))))
            case Experts(group=group) if group is not None and group.channel is None:
                part = op.of_this_rank()
                assert part is not None
                whole = tree_sum(group.all_gather(self.apply(part)))
                return with_late_biases(whole, op, op.ids, op.weights, lambda bias: bias.values())
            case GatherColumns(share=share) if share.group.channel is None:
                return share.group.gather_columns(op.x, share)
            case PagedAttention(observe=observe) if observe is not None:
                alone = replace(op, observe=None)
                self._show_scores(alone, observe)
                return self._run(alone)
            case DeltaRule(observe=observe) if observe is not None:
                alone_rule = replace(op, observe=None)
                self._show_norms(alone_rule, observe)
                return self._run(alone_rule)
        return self._run(op)

    def _embedding_over(self, op: Embedding, share: Share) -> Array:
        ids = op.step.token_ids
        own = share.group.rank == share.owners(ids)
        local = plain_batch(np.where(own, ids - share.first, 0).tolist())
        return share.rows_of_owners(ids, self.read(self.apply(replace(op, step=local, share=None))))

    def _show_scores(self, op: PagedAttention, observe: Observer) -> None:
        step = op.step
        for seq, context_len in enumerate(step.context_lens):
            new = int(step.query_starts[seq + 1] - step.query_starts[seq])
            scores = np.full((op.q.shape[1], new, int(context_len)), -np.inf, np.float32)
            self._run(op, scores, seq)
            top, sinks = scores.max(axis=-1, keepdims=True).astype(np.float64), self._sinks(op)
            top = top if sinks is None else np.maximum(top, sinks)
            shifted = np.exp(scores - top)
            total = shifted.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - top))
            observe("scores", scores)
            observe("weights", (shifted / total).astype(np.float32))

    def _show_norms(self, op: DeltaRule, observe: Observer) -> None:
        """Each sequence token by token, in a state of its own: how a text is cut changes no bit."""
        given: dict[str, Any] = {name: self.read(getattr(op, name)) for name in ("q", "k", "v", "decay", "beta")}
        for seq, (first, last) in enumerate(pairwise(op.step.query_starts.tolist())):
            own = self._copy_of(op.state, int(op.step.state_reads[seq]))
            norms = []
            for turn, token in enumerate(range(first, last)):
                read, write = turn % 2, 1 - turn % 2
                rows: dict[str, Any] = {name: x[token : token + 1] for name, x in given.items()}
                self._run(replace(op, state=own, step=_one_token(read, write), **rows))
                norms.append(np.linalg.norm(self._rule_state(own, write).astype(np.float64), axis=(1, 2)))
            with np.errstate(over="ignore"):
                observe("state_norm", np.array(norms, np.float32))

    def _copy_of(self, state: State, slot: int) -> State:
        """Two slots like those of a layer's state; the delta rule's part of the first is that of `slot`, 0 for -1."""
        (own,) = native().states(1, 2, state.shapes)
        own.array(1, 0)[:] = 0 if slot < 0 else state.array(1, slot)
        return own

    def _rule_state(self, state: State, slot: int) -> Array:
        """The delta rule's part of a slot [heads, k_dim, v_dim]."""
        heads, k_dim, v_dim = state.shapes[1]
        stored, strips = state.array(1, slot).reshape(heads, -1), []
        for first in range(0, v_dim, _STATE_COLUMNS):
            width = min(_STATE_COLUMNS, _up(v_dim - first, 16))
            strips.append(stored[:, first * k_dim : (first + width) * k_dim].reshape(heads, k_dim, width))
        found: Array = np.concatenate(strips, axis=2)[:, :, :v_dim]
        return found

    def _sinks(self, op: PagedAttention) -> NDArray[np.float64] | None:
        """[heads, 1, 1]"""
        if op.sinks is None:
            return None
        return self.held(op.sinks).data.view(np.float32).astype(np.float64)[:, None, None]

    def _run(self, op: Op[Any], scores: NDArray[np.float32] | None = None, score_seq: int = 0) -> Any:
        """The result of an op, run as a plan of its own on copies of its inputs [rows, …]."""
        inputs, kept = op.given(Tensor), []
        for x in inputs.values():
            if x.dtype not in (np.float32, np.int32):
                raise ExecutorError(f"an input of {x.dtype}; native kernels compute in float32")
        recorder = PlanRecorder(self.isa, self.threads, self.activations)
        handles = {field: recorder.input(x.shape[1:], x.dtype.name) for field, x in inputs.items()}
        result = recorder.apply(replace(op, **handles))

        def keep(name: str, handle: Handle) -> Handle:
            kept.append(handle)
            return handle

        op.each(keep, result)
        steps = op.given(Step)
        batch = steps["step"] if steps else plain_batch(range(len(next(iter(inputs.values())))))
        recorder.finish(
            StepLimits(
                num_tokens=batch.num_tokens,
                num_logit_rows=len(batch.logit_rows),
                num_seqs=batch.num_seqs,
                context_len=int(batch.context_lens.max()),
            ),
            kept,
        )
        for field, x in inputs.items():
            recorder.fill(handles[field], x)
        recorder.run(batch, scores, score_seq)
        return op.each(lambda name, handle: recorder.value(handle).copy(), result)
