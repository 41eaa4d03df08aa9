"""PlanRecorder: the ops of the native executor, recorded on handles as one plan and run once a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from karat.batch import ForwardBatch
from karat.config import DEFAULT_ACTIVATIONS
from karat.errors import CapacityError, ExecutorError, NumericsError
from karat.ops.api import HeadGroups, Loaded, Observer, StepLimits
from karat.ranks.group import Group, Share

try:
    import karat._native as _native
except ModuleNotFoundError:
    _UNAVAILABLE: str | None = (
        "this installation has no C++ extension, which is left out where there is no working C++ compiler; "
        "with one on the PATH, install Karat again"
    )
except ImportError as error:
    _UNAVAILABLE = f"the C++ extension cannot be loaded ({error}); install Karat again for this Python"
else:
    _UNAVAILABLE = None


def unavailable_reason() -> str | None:
    """Why the native executor cannot run here, with the remedy; None where it can."""
    return _UNAVAILABLE


def native() -> ModuleType:
    """The C++ extension. To be called only where `unavailable_reason()` is None."""
    return _native


def _channel(group: Group, name: str) -> Any:
    """The group's shared memory, through which a plan exchanges results; ExecutorError without one."""
    if group.channel is None:
        raise ExecutorError(
            f"{name}: a native plan exchanges results with other ranks through shared memory, and this group has none"
        )
    return group.channel


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """A result of the plan, [rows, *tail]. It has no value before the plan runs; reading it raises ExecutorError."""

    register: int
    tail: tuple[int, ...]

    def _refuse(self, *_: object) -> NoReturn:
        raise ExecutorError(
            "a model read a value, shape or truth while its plan was recorded; a model may only call ops"
        )

    __bool__ = __len__ = __iter__ = __array__ = __getitem__ = __float__ = __int__ = _refuse

    @property
    def shape(self) -> NoReturn:
        self._refuse()


class PlanRecorder:
    """The arithmetic of Ops (karat.ops.api); each call records one op. Then `finish` once, and `run` once a step."""

    def __init__(self, isa: str, threads: int, activations: str = DEFAULT_ACTIVATIONS) -> None:
        try:
            self._plan = _native.Plan(isa, threads, activations)
        except RuntimeError as refusal:  # the system refuses threads
            raise ExecutorError(str(refusal)) from refusal

    # ---- recording

    def input(self, tail: tuple[int, ...]) -> Handle:
        """An input [rows, *tail], to be filled before each run."""
        return Handle(self._plan.input(prod(tail)), tail)

    def begin(self, batch: object) -> object:
        """The step of a plan: it stands for every batch that the plan will run."""
        return batch

    def embedding(self, step: object, table: Loaded, *, share: Share | None = None, name: str) -> Handle:
        if share is None:
            return Handle(self._plan.embedding(table), (table.columns,))
        register = self._plan.embedding_over(_channel(share.group, name), table, share.ends)
        return Handle(register, (table.columns,))

    def rms_norm(self, x: Handle, weight: Loaded, eps: float, *, name: str) -> Handle:
        if len(weight) != x.tail[-1]:
            raise ExecutorError(f"{name}: a weight of {len(weight)} for rows of {x.tail[-1]}")
        if not 0 <= eps < np.inf:
            raise ExecutorError(f"{name}: eps={eps}; expected a finite number of at least 0")
        return Handle(self._plan.rms_norm(x.register, weight, eps), x.tail)

    def linear(
        self,
        x: Handle,
        weight: Loaded,
        bias: Loaded | None = None,
        *,
        leaves: tuple[int, ...] | None = None,
        group: Group | None = None,
        name: str,
    ) -> Handle:
        if group is None:
            return self._linears(x, (weight,), None if bias is None else (bias,), (name,), leaves)[0]
        self._require_fits(x, weight, bias, name)
        ends = leaves or (weight.columns,)
        return Handle(self._plan.linear_over(_channel(group, name), x.register, weight, bias, ends), (weight.rows,))

    def gather_columns(self, x: Handle, share: Share, *, name: str) -> Handle:
        register = self._plan.gather(_channel(share.group, name), x.register, share.first, share.total)
        return Handle(register, (share.total,))

    def qkv(
        self,
        x: Handle,
        weights: tuple[Loaded, Loaded, Loaded],
        biases: tuple[Loaded, Loaded, Loaded] | None,
        *,
        head_dim: int,
        names: tuple[str, str, str],
    ) -> tuple[Handle, Handle, Handle]:
        q, k, v = (
            Handle(flat.register, (flat.tail[0] // head_dim, head_dim))
            for flat in self._linears(x, weights, biases, names)
        )
        return q, k, v

    def gate_up(
        self,
        x: Handle,
        weights: tuple[Loaded, Loaded],
        biases: tuple[Loaded, Loaded] | None,
        *,
        names: tuple[str, str],
    ) -> tuple[Handle, Handle]:
        gate, up = self._linears(x, weights, biases, names)
        return gate, up

    def silu_mul(self, gate: Handle, up: Handle, *, name: str) -> Handle:
        self._require(gate.tail == up.tail, name, f"gate {gate.tail} and up {up.tail} differ")
        return Handle(self._plan.silu_mul(gate.register, up.register), gate.tail)

    def add(self, x: Handle, y: Handle, *, name: str) -> Handle:
        self._require(x.tail == y.tail, name, f"rows of {x.tail} + rows of {y.tail}")
        return Handle(self._plan.add(x.register, y.register), x.tail)

    def rope(self, x: Handle, table: Loaded, step: object, *, name: str) -> Handle:
        self._require(x.tail[-1] == table.head_dim, name, f"a table for head_dim {table.head_dim}, got {x.tail[-1]}")
        return Handle(self._plan.rope(x.register, table), x.tail)

    def kv_write(self, k: Handle, v: Handle, cache: Loaded, layer: int, step: object) -> None:
        held = (cache.num_kv_heads, cache.head_dim)
        self._require(k.tail == v.tail == held, "kv_write", f"K {k.tail} and V {v.tail} for a cache of {held}")
        self._plan.kv_write(k.register, v.register, cache, layer)

    def paged_attention(
        self,
        q: Handle,
        cache: Loaded,
        layer: int,
        step: object,
        *,
        scale: float,
        window: int | None,
        name: str,
        groups: HeadGroups | None = None,
        observe: Observer | None = None,
    ) -> Handle:
        heads, head_dim = q.tail
        groups = groups or HeadGroups.equal(heads, cache.num_kv_heads)
        fits = head_dim == cache.head_dim and groups.fit(heads, cache.num_kv_heads)
        self._require(fits, name, f"{q.tail} in {groups} over {cache.num_kv_heads} KV heads of {cache.head_dim}")
        self._require(observe is None, name, "scores are observed op by op, not in a recorded plan")
        register = self._plan.attention(q.register, cache, layer, scale, window or 0, groups.size, groups.first)
        return Handle(register, (heads * head_dim,))

    def select_rows(self, x: Handle, step: object, *, name: str) -> Handle:
        return Handle(self._plan.select(x.register), x.tail)

    def finish(self, limits: StepLimits, kept: Sequence[Handle], *, fusing: bool = True) -> None:
        """End the recording. Only the handles in `kept` have values after a run.

        Tests switch `fusing` of ops off, which changes no bit.
        Raises CapacityError if the buffers of a step within `limits` do not fit into memory.
        """
        registers = [handle.register for handle in kept]
        try:
            self._plan.finish(
                limits.num_tokens, limits.num_logit_rows, limits.num_seqs, limits.context_len, registers, fusing
            )
        except MemoryError as fault:
            raise CapacityError(
                f"a step of {limits.num_tokens} tokens needs larger buffers than this process gets; lower "
                "max_num_batched_tokens (--max-num-batched-tokens), the number of tokens that a step computes"
            ) from fault

    def _linears(
        self,
        x: Handle,
        weights: Sequence[Loaded],
        biases: Sequence[Loaded] | None,
        names: Sequence[str],
        leaves: tuple[int, ...] | None = None,
    ) -> list[Handle]:
        given = biases or (None,) * len(weights)
        for weight, bias, name in zip(weights, given, names, strict=True):
            self._require_fits(x, weight, bias, name)
        registers = self._plan.linear(x.register, list(weights), list(given), leaves or x.tail)
        return [Handle(register, (weight.rows,)) for register, weight in zip(registers, weights, strict=True)]

    def _require_fits(self, x: Handle, weight: Loaded, bias: Loaded | None, name: str) -> None:
        shape = (weight.rows, weight.columns)
        self._require(x.tail == shape[1:], name, f"a weight [out, in] of {shape} for rows of {x.tail}")
        self._require(bias is None or len(bias) == weight.rows, name, "a bias that does not fit its weight")

    @staticmethod
    def _require(condition: bool, op: str, message: str) -> None:
        if not condition:
            raise ExecutorError(f"{op}: {message}")

    # ---- running

    def fill(self, handle: Handle, values: NDArray[np.floating]) -> None:
        """Set the value [rows, *tail] of an input."""
        rows: NDArray[np.floating] = np.ascontiguousarray(values, np.float32).reshape(len(values), prod(handle.tail))
        self._plan.write(handle.register, rows)

    def run(self, batch: ForwardBatch, scores: NDArray[np.float32] | None = None, score_seq: int = 0) -> None:
        """Run one step. If `scores` is given, the attention scores of sequence `score_seq` are written to it.

        Raises NumericsError for a K or V that the cache's dtype cannot hold, ExecutorError for a step beyond the limits
        of the plan.
        """
        try:
            lost = self._plan.run(
                batch.token_ids,
                batch.positions,
                batch.slots,
                batch.query_starts,
                batch.context_lens,
                batch.block_tables,
                batch.logit_rows,
                batch.block_size,
                scores,
                score_seq,
            )
        except (ValueError, RuntimeError) as fault:
            raise ExecutorError(str(fault)) from fault
        if lost is not None:
            layer, is_value, token, head, number = lost
            raise NumericsError(
                f"{'V' if is_value else 'K'} of layer {layer}, KV head {head}, token {token} of the step: {number:.6g} "
                "does not fit the KV cache; choose a wider one (--kv-dtype float32, or LLM(kv_dtype='float32'))"
            )

    def value(self, handle: Handle) -> NDArray[np.floating]:
        """The value [rows, *tail] of a kept handle after a run. The next run overwrites it."""
        rows: NDArray[np.floating] = self._plan.read(handle.register)
        return rows.reshape(len(rows), *handle.tail)
