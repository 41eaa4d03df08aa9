"""The native executor: C++ kernels on the CPU. Every build of them gives the same bits (csrc/contract/kernels.h).

`NativeOps` runs op by op on arrays, each op as a plan of its own. `NativeOps.runner` records a whole model as one plan
(karat.ops.native_plan) and runs it in one call a step. Both give the same bits. Ranks without shared memory (a group
without a channel) run op by op and exchange results between ops.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.checkpoint.weights import Weight, num_stored_bytes
from karat.config import DEFAULT_ACTIVATIONS, FLOAT_BYTES, Activations, FloatName, RopeConfig
from karat.errors import ExecutorError
from karat.machine.cores import num_physical_cores
from karat.ops.api import CacheSpec, HeadGroups, Held, Loaded, Observer, Runner, StepLimits
from karat.ops.integers import WIDTHS
from karat.ops.native_plan import Handle, PlanRecorder, native, unavailable_reason
from karat.ops.rope_table import cos_sin_table
from karat.ranks.group import Group, Share, tree_sum

Array = NDArray[np.floating]

REGION_SLOTS = 256  # of a cache; karat.kv.cache shows the layout
_SPLIT_KEYS, _PART_STATS = 256, 16  # of attention: keys of a part, and numbers beside its values (contract/kernels.h)
_PACKED_AT_ONCE = 128 * 1024**2  # bytes as they are stored, some tenth of a second

_log = logging.getLogger(__name__)

__all__ = ["NativeOps", "compiled_isas", "supported_isas", "unavailable_reason"]


def compiled_isas() -> tuple[str, ...]:
    """Kernel builds of this installation, those that this CPU cannot run included; none without the extension."""
    return () if unavailable_reason() else tuple(native().compiled_isas())


def supported_isas() -> tuple[str, ...]:
    """Kernel builds that this CPU can run, from generic to the fastest; none without the extension."""
    return () if unavailable_reason() else tuple(native().supported_isas())


def parts_bytes(*, num_heads: int, num_kv_heads: int, head_dim: int, num_seqs: int, context: int) -> int:
    """Bytes of attention's parts in a plan for so many sequences of this length: what `Plan::allocate` asks for."""
    splits = _up(context, _SPLIT_KEYS) // _SPLIT_KEYS
    per_token = num_heads // num_kv_heads * (_up(head_dim, 16) + _PART_STATS)
    return num_seqs * num_kv_heads * splits * per_token * FLOAT_BYTES["float32"]


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _cannot_run(isa: str, runnable: Sequence[str]) -> str:
    """The message for a kernel build that this CPU cannot run or that this installation does not have."""
    advice = f"set KARAT_ISA to one of {', '.join(runnable)}, or unset it for the fastest"
    if isa in compiled_isas():
        return f"kernel build {isa!r}: this CPU cannot run it; {advice}"
    return (
        f"kernel build {isa!r}: this installation has {', '.join(compiled_isas())}; {advice}; `make demo` compiles "
        "only what this CPU would choose, `make test` and a wheel have all builds"
    )


class NativeOps:
    """Ops (karat.ops.api) on NumPy arrays in float32.

    `isa` is the kernel build, one of `supported_isas()`; None takes the fastest. `threads` is the number of threads
    that work on an op; None takes one for each physical core that the process may use. Raises ExecutorError for a
    dtype, a build, a number of threads or activations that are not available.
    """

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
    def executor(self) -> str:
        return "native"

    @property
    def dtype(self) -> FloatName:
        return "float32"

    @property
    def default_kv_dtype(self) -> FloatName:
        return "float16"

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
        if len(weight.shape) != 2:
            raise ExecutorError(f"{weight.name}: {weight.shape} is neither a matrix nor a vector")
        if weight.dtype not in native().formats():
            if weight.dtype not in self._held_as_float32:
                _log.warning("weights of %s are held as float32: there are no native kernels for them", weight.dtype)
                self._held_as_float32.add(weight.dtype)
            values = weight.to_array(np.dtype(np.float32)).reshape(-1).view(np.uint8)
            weight.release()
            weight = Weight(weight.name, "F32", weight.shape, values, weight.file)
        order = None if weight.row_order is None else np.ascontiguousarray(weight.row_order(), np.int64)
        first_byte = 0 if weight.row_span is None else weight.row_span[0]
        try:
            mapped = weight.is_mapped
            take = self._packer.add if later and mapped else partial(native().pack, num_threads=self.threads)
            place = {"mapped": mapped, "row_bytes": weight.row_bytes, "first_byte": first_byte, "order": order}
            return take(weight.dtype, *weight.shape, weight.stored, **place)
        except RuntimeError as refusal:  # the system refuses threads
            raise ExecutorError(str(refusal)) from refusal

    @property
    def pending_bytes(self) -> int:
        return int(self._packer.pending)

    def load_pending(self, *, spares_core: bool = False) -> None:
        try:
            self._packer.run(_PACKED_AT_ONCE, spared=int(spares_core))
        except RuntimeError as refusal:  # the system refuses threads
            raise ExecutorError(str(refusal)) from refusal

    def held(self, loaded: Loaded) -> Held:
        if isinstance(loaded, native().Matrix):
            return Held(loaded.format, loaded.stored())
        return Held("F32", loaded.values().view(np.uint8))

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int) -> Loaded:
        table = cos_sin_table(rope, head_dim=head_dim, num_positions=num_positions, dtype=np.dtype(np.float32))
        return native().rope_table(np.ascontiguousarray(table.cos), np.ascontiguousarray(table.sin))

    def cache_bytes(self, spec: CacheSpec) -> int:
        slots = _up(spec.num_blocks * spec.block_size, REGION_SLOTS)
        width = spec.head_dim + _up(spec.head_dim, 16)  # of K, and of V
        return spec.num_layers * slots * spec.num_kv_heads * width * FLOAT_BYTES[spec.dtype]

    def new_cache(self, spec: CacheSpec) -> Loaded:
        if spec.dtype == "float64":
            raise ExecutorError("kv_dtype='float64': the native executor has float16, bfloat16 and float32 caches")
        return native().cache(
            spec.dtype, spec.num_layers, spec.num_blocks * spec.block_size, spec.num_kv_heads, spec.head_dim
        )

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        return batch

    def read(self, x: Array) -> Array:
        return x

    def runner(self, forward: Callable[..., object], limits: StepLimits) -> Runner:
        """`forward` recorded as one plan, for steps within `limits`. The next step overwrites the result."""
        recorder = PlanRecorder(self.isa, self.threads, self.activations)
        result = forward(recorder, recorder.begin(None))
        assert isinstance(result, Handle), "a model returns the result of an op"
        recorder.finish(limits, [result])

        def run(batch: ForwardBatch) -> Array:
            recorder.run(batch)
            return recorder.value(result)

        return run

    def embedding(self, step: ForwardBatch, table: Loaded, *, share: Share | None = None, name: str) -> Array:
        if share is None or share.group.channel is not None:
            return self._now([], lambda ops: ops.embedding(step, table, share=share, name=name), step)
        own = share.group.rank == share.owners(step.token_ids)
        local = replace(step, token_ids=np.where(own, step.token_ids - share.first, 0).astype(np.int32))
        return share.rows_of_owners(step.token_ids, self.embedding(local, table, name=name))

    def rms_norm(self, x: Array, weight: Loaded, eps: float, *, name: str) -> Array:
        return self._now([x], lambda ops, h: ops.rms_norm(h, weight, eps, name=name))

    def linear(
        self,
        x: Array,
        weight: Loaded,
        bias: Loaded | None = None,
        *,
        leaves: tuple[int, ...] | None = None,
        group: Group | None = None,
        name: str,
    ) -> Array:
        if group is None or group.channel is not None:
            return self._now([x], lambda ops, h: ops.linear(h, weight, bias, leaves=leaves, group=group, name=name))
        whole = tree_sum(group.all_gather(self.linear(x, weight, leaves=leaves, name=name)))
        return whole if bias is None else whole + bias.values()

    def gather_columns(self, x: Array, share: Share, *, name: str) -> Array:
        if share.group.channel is None:
            return share.group.gather_columns(x, share)
        return self._now([x], lambda ops, h: ops.gather_columns(h, share, name=name))

    def qkv(
        self,
        x: Array,
        weights: tuple[Loaded, Loaded, Loaded],
        biases: tuple[Loaded, Loaded, Loaded] | None,
        *,
        head_dim: int,
        names: tuple[str, str, str],
    ) -> tuple[Array, Array, Array]:
        q, k, v = self._all([x], lambda ops, h: ops.qkv(h, weights, biases, head_dim=head_dim, names=names))
        return q, k, v

    def gate_up(
        self,
        x: Array,
        weights: tuple[Loaded, Loaded],
        biases: tuple[Loaded, Loaded] | None,
        *,
        names: tuple[str, str],
    ) -> tuple[Array, Array]:
        gate, up = self._all([x], lambda ops, h: ops.gate_up(h, weights, biases, names=names))
        return gate, up

    def silu_mul(self, gate: Array, up: Array, *, name: str) -> Array:
        return self._now([gate, up], lambda ops, g, u: ops.silu_mul(g, u, name=name))

    def add(self, x: Array, y: Array, *, name: str) -> Array:
        return self._now([x, y], lambda ops, a, b: ops.add(a, b, name=name))

    def rope(self, x: Array, table: Loaded, step: ForwardBatch, *, name: str) -> Array:
        return self._now([x], lambda ops, h: ops.rope(h, table, step, name=name), step)

    def kv_write(self, k: Array, v: Array, cache: Loaded, layer: int, step: ForwardBatch) -> None:
        self._all([k, v], lambda ops, a, b: ops.kv_write(a, b, cache, layer, step) or [], step)

    def paged_attention(
        self,
        q: Array,
        cache: Loaded,
        layer: int,
        step: ForwardBatch,
        *,
        scale: float,
        window: int | None,
        name: str,
        groups: HeadGroups | None = None,
        observe: Observer | None = None,
    ) -> Array:
        def attend(ops: PlanRecorder, h: Handle) -> Handle:
            return ops.paged_attention(h, cache, layer, step, scale=scale, window=window, name=name, groups=groups)

        if observe:
            for seq, context_len in enumerate(step.context_lens):
                new = int(step.query_starts[seq + 1] - step.query_starts[seq])
                scores = np.full((q.shape[1], new, int(context_len)), -np.inf, np.float32)
                self._all([q], lambda ops, h: [attend(ops, h)], step, scores, seq)
                shifted = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
                observe("scores", scores)
                observe("weights", (shifted / shifted.sum(axis=-1, keepdims=True)).astype(np.float32))
        return self._now([q], attend, step)

    def select_rows(self, x: Array, step: ForwardBatch, *, name: str) -> Array:
        return self._now([x], lambda ops, h: ops.select_rows(h, step, name=name), step)

    def _now(self, inputs: list[Array], op: Callable[..., Handle], step: ForwardBatch | None = None) -> Array:
        return self._all(inputs, lambda *args: [op(*args)], step)[0]

    def _all(
        self,
        inputs: list[Array],
        op: Callable[..., Sequence[Handle]],
        step: ForwardBatch | None = None,
        scores: NDArray[np.float32] | None = None,
        score_seq: int = 0,
    ) -> list[Array]:
        """The results of one op, run as a plan of its own on copies of the inputs [rows, …]."""
        for x in inputs:
            if x.dtype != np.float32:
                raise ExecutorError(f"an input of {x.dtype}; native kernels compute in float32")
        recorder = PlanRecorder(self.isa, self.threads, self.activations)
        handles = [recorder.input(x.shape[1:]) for x in inputs]
        results = list(op(recorder, *handles))
        batch = step if step is not None else plain_batch(len(inputs[0]))
        recorder.finish(
            StepLimits(
                num_tokens=batch.num_tokens,
                num_logit_rows=len(batch.logit_rows),
                num_seqs=batch.num_seqs,
                context_len=int(batch.context_lens.max()),
            ),
            results,
        )
        for handle, x in zip(handles, inputs, strict=True):
            recorder.fill(handle, x)
        recorder.run(batch, scores, score_seq)
        return [recorder.value(result).copy() for result in results]


def plain_batch(rows: int) -> ForwardBatch:
    """A batch for ops that use only the number of rows."""
    zeros = np.zeros(rows, np.int32)
    return ForwardBatch(
        token_ids=zeros,
        positions=zeros,
        slots=zeros,
        query_starts=np.array([0, rows], np.int32),
        context_lens=np.array([max(rows, 1)], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        logit_rows=np.zeros(0, np.int32),
        block_size=max(rows, 1),
    )
