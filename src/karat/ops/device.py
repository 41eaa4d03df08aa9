"""The kernels of a GPU behind Ops: the numbers of the native executor, bit for bit (docs/gpu.md).

`CudaOps` runs them on an NVIDIA GPU. `EmulatedOps` runs them in their emulation (csrc/gpu/simt.h), which `make
emulated` compiles. It is for tests: it finds what a GPU would leave to chance, and is far slower than the native
executor.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.config import DEFAULT_ACTIVATIONS, Activations, FloatName, RopeConfig, Settings
from karat.errors import CapacityError, DeviceLostError, ExecutorError
from karat.machine.extension import native
from karat.ops import api
from karat.ops.api import Cache, Loaded, Op, Ops, State, Step, Tensor
from karat.ops.device_ops import DeviceCache, DeviceKernels, DeviceState, DeviceTable
from karat.ops.device_plan import DevicePlan, is_shared, recorded
from karat.ops.executor import CacheSpec, Executor, Held, Runner, StateSpec, StepLimits
from karat.ops.expert_biases import with_late_biases
from karat.ops.integers import WIDTHS
from karat.ops.native import REGION_SLOTS, NativeOps
from karat.ops.rope_table import cos_sin_table
from karat.ranks.group import Share, tree_sum

_CACHE_TYPES: tuple[FloatName, ...] = ("float32", "float16", "bfloat16")  # CacheType in csrc/contract/kernels.h
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.")  # in the name of a weight

_RESERVED = 512 * 1024**2  # bytes of a GPU's memory that launches and results of a step may take

_CPU = "--device cpu has the same bits"

# By executor: its module, what the module is, and how to get it.
_MODULES = {
    "cuda": (
        "karat_cuda._cuda",
        "module for NVIDIA GPUs",
        f"`make cuda` in a clone builds it, with nvcc; {_CPU}",
    ),
    "cuda-emulated": ("karat._emulated", "emulated GPU", "`make emulated` in a clone compiles it"),
}


@cache
def _imported(executor: str) -> ModuleType | str:
    """The module of an executor, or why it cannot be had."""
    name, what, how = _MODULES[executor]
    try:
        module = import_module(name)
    except ModuleNotFoundError:
        return f"this installation has no {what}; {how}"
    except ImportError as error:
        return f"the {what} cannot be loaded ({error}); {how}"
    return f"{reason}; {_CPU}" if (reason := module.why_no_device()) else module


def missing(executor: str) -> str | None:
    """Why the module of "cuda" or "cuda-emulated" cannot be had here; None: it can."""
    found = _imported(executor)
    return found if isinstance(found, str) else None


def _module(executor: str) -> ModuleType:
    found = _imported(executor)
    if isinstance(found, str):
        raise ExecutorError(f"the {executor} executor is not available: {found}")
    return found


class DeviceOps(NativeOps):
    """An executor (karat.ops.executor) with the `kernels` of a GPU, whose results are arrays in its memory.

    `device_name` is the card's, or "emulation".

    The first `host_layers` layers are loaded for native kernels, which compute what reads them on the CPU, by `threads`
    threads: an op is computed where its weight or its cache lies. Ranks exchange by way of the host.

    Raises ExecutorError where the executor's module or its device is missing, CapacityError where the device's memory
    ends, DeviceLostError where it fails: an engine ends by it.
    """

    place: str  # as --device names it

    def __init__(
        self,
        dtype: FloatName = "float32",
        *,
        number: int = 0,
        threads: int | None = None,
        activations: Activations = DEFAULT_ACTIVATIONS,
        host_layers: int = 0,
    ) -> None:
        self._module = _module(self.executor)
        super().__init__(dtype, isa=Settings.from_env().isa, threads=threads, activations=activations)
        self.host_layers = host_layers
        try:
            self._device = self._module.Device(number)
        except self._module.DeviceError as error:
            raise ExecutorError(f"device {self.place}: {error}; {_CPU}") from error
        self.device_name = str(self._device.name)
        self.kernels = DeviceKernels(self._module, self._device, list(WIDTHS).index(activations) + 1)

    @property
    def options(self) -> Mapping[str, Any]:
        mine: dict[str, Any] = {"activations": self.activations, "device": self.place}
        return mine | ({"host_layers": self.host_layers, "threads": self.threads} if self.host_layers else {})

    @contextmanager
    def _room(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._module.OutOfDeviceMemoryError as error:
            raise CapacityError(
                f"{what}: {error}; lower max_model_len (--max-model-len) or kv_cache_bytes, take a smaller model, or "
                "leave layers to the CPU (--host-layers N)"
            ) from error
        except self._module.DeviceError as error:
            again = f"start again, which `karat serve` does by itself; {_CPU}"
            raise DeviceLostError(f"{what}: the GPU {self.device_name} failed ({error}); {again}") from error

    def available_bytes(self) -> int:
        """Of the device's memory, but for what launches take; of the host's, too, where it has layers."""
        here, free = super().available_bytes(), int(self._device.free_bytes)
        if not free:
            return here
        return max(0, free - _RESERVED) + (here if self.host_layers else 0)

    def floats(self, size: int, what: str) -> Any:
        """An array of `size` numbers in the device's memory, for `what`."""
        with self._room(what):
            return self._device.floats([size])

    @property
    def packed_layout(self) -> int | None:
        return None  # weights go up a part at a time

    def load(self, weight: Weight, *, later: bool = False) -> Loaded:
        """A matrix packed in its stored type, a vector as float32. All of it is there at once, and nothing is kept."""
        layer = _LAYER.search(weight.name)
        if layer is not None and int(layer[1]) < self.host_layers:
            return super().load(weight)
        with self._room(weight.name):
            if len(weight.shape) == 1:
                return self._device.array(np.ascontiguousarray(weight.to_array(np.dtype(np.float32))))
            weight = self.with_kernels(weight)
            order = None if weight.row_order is None else np.ascontiguousarray(weight.row_order(), np.int64)
            first_byte = 0 if weight.row_span is None else weight.row_span[0]
            stored = (weight.stored, weight.row_bytes, first_byte, order)
            loaded = self._module.DeviceMatrix(self._device, weight.dtype, *weight.shape, *stored)
        weight.release()
        return loaded

    def gathers_mapped(self, weight: Weight) -> bool:
        return False

    def held(self, loaded: Loaded) -> Held:
        if _is_native(loaded):
            return super().held(loaded)
        if isinstance(loaded, self._module.Array):
            return Held("F32", self.read(loaded).view(np.uint8))
        stored = np.empty(loaded.stored_bytes, np.uint8)
        loaded.read(stored)
        return Held(loaded.format, stored)

    def read(self, x: Tensor) -> NDArray[Any]:
        """The value of a result, float32 or int32: it waits for the device."""
        if isinstance(x, np.ndarray):
            return x
        values = np.empty(x.shape, np.float32 if x.is_float else np.int32)
        with self._room("a step"):
            x.read(values)
        return values

    def rope_table(self, rope: RopeConfig, *, head_dim: int, num_positions: int, growth: float = 0.0) -> DeviceTable:
        """Rotations are always the device's; the table is for all layers."""
        table = cos_sin_table(
            rope, head_dim=head_dim, num_positions=num_positions, growth=growth, dtype=np.dtype(np.float32)
        )
        with self._room("the table of RoPE"):
            return DeviceTable(*(self._device.array(np.ascontiguousarray(part)) for part in (table.cos, table.sin)))

    def _cache_group(self, spec: CacheSpec, group: int) -> tuple[Any, ...]:
        count = sum(layer < self.host_layers for layer in spec.layers)
        of_host = super()._cache_group(replace(spec, layers=spec.layers[:count]), group) if count else ()
        return of_host + self._device_caches(replace(spec, layers=spec.layers[count:]), group)

    def _device_caches(self, spec: CacheSpec, group: int) -> tuple[DeviceCache, ...]:
        if not spec.layers:
            return ()
        regions = -(-spec.num_blocks * spec.block_size // REGION_SLOTS)
        layer_bytes = self.cache_bytes(spec) // len(spec.layers) // regions
        shape = (_CACHE_TYPES.index(spec.dtype), spec.num_kv_heads, spec.k_dim)
        with self._room(f"a KV cache of {self.cache_bytes(spec)} bytes"):
            memory = self._module.CacheMemory(self._device, regions, layer_bytes * len(spec.layers))
        return tuple(
            DeviceCache(
                self._module.DeviceCache(memory, *shape, place * layer_bytes),
                *shape[1:],
                num_slots=regions * REGION_SLOTS,
                group=group,
                layer=layer,
            )
            for place, layer in enumerate(spec.layers)
        )

    def new_states(self, spec: StateSpec) -> tuple[Loaded, ...]:
        count = sum(layer < self.host_layers for layer in spec.layers)
        of_host = super().new_states(replace(spec, layers=spec.layers[:count])) if count else ()
        with self._room(f"states of {self.state_bytes(spec)} bytes"):
            return of_host + tuple(
                DeviceState(tuple(self._device.floats([spec.num_slots, *shape]) for shape in spec.shapes))
                for _ in spec.layers[count:]
            )

    def _copy_of(self, state: State, slot: int) -> State:
        if _is_native(state):
            return super()._copy_of(state, slot)
        two = [np.zeros((2, *array.shape[1:]), np.float32) for array in state.arrays]
        if slot >= 0:
            two[1][0] = self._rule_state(state, slot)
        return DeviceState(tuple(map(self._device.array, two)))

    def _rule_state(self, state: State, slot: int) -> NDArray[Any]:
        return super()._rule_state(state, slot) if _is_native(state) else self.read(state.arrays[1])[slot]

    def runner(self, forward: Callable[[Ops, Step], Tensor], limits: StepLimits) -> Runner:
        """`forward` as a list of launches; called for every step where ranks or the CPU have a part in it."""
        nodes, result = recorded(forward)
        if any(_is_native(_held_by(node.op)) or is_shared(node.op) for node in nodes):
            return Executor.runner(self, forward, limits)
        return DevicePlan(self.kernels, nodes, result, self._room)

    def apply(self, op: Op[Any]) -> Any:
        if (part := op.of_this_rank()) is not None:
            sums = api.Linear | api.Experts | api.SquareSums
            assert isinstance(op, sums) and op.group is not None, "a sum over ranks"
            has_none = isinstance(op, api.Experts) and not op.gates
            own = np.zeros_like(self.read(op.given(Tensor)["x"])) if has_none else self.read(self.apply(part))
            whole = tree_sum(op.group.all_gather(own))
            if isinstance(op, api.Experts):
                return with_late_biases(whole, op, self.read(op.ids), self.read(op.weights), self._values)
            return whole if (bias := getattr(op, "bias", None)) is None else whole + self._values(bias)
        match op:
            case api.Embedding(share=Share() as share):
                return self._embedding_over(op, share)
            case api.GatherColumns(share=share):
                return share.group.gather_columns(self.read(op.x), share)
        return super().apply(op)

    def _values(self, vector: Any) -> NDArray[Any]:
        values: NDArray[Any] = vector.values() if _is_native(vector) else self.read(vector)
        return values

    def _run(self, op: Op[Any], scores: NDArray[np.float32] | None = None, score_seq: int = 0) -> Any:
        if _is_native(_held_by(op)):
            here: Any = {name: self.read(x) for name, x in op.given(Tensor).items()}
            return super()._run(replace(op, **here), scores, score_seq)
        with self._room("a step"):
            return self.kernels.compute(op, scores, score_seq)


class EmulatedOps(DeviceOps):
    """The emulation. Threads and blocks of a launch run in a random order, which `number` chooses; no result depends on
    it.
    """

    executor = place = "cuda-emulated"


class CudaOps(DeviceOps):
    """The GPU of this number, as the driver counts those that the process may see."""

    executor = "cuda"

    def __init__(self, dtype: FloatName = "float32", *, number: int = 0, **options: Any) -> None:
        self.place = f"cuda:{number}"
        super().__init__(dtype, number=number, **options)


def _is_native(handle: Any) -> bool:
    """Whether a weight or a cache is one of the native executor."""
    return type(handle).__module__ == native().__name__


def _held_by(op: Op[Any]) -> Any:
    """The first weight of an op, its cache or state, or None: annotations of the record say which these are."""
    if isinstance(op, api.Route):
        return op.routing.scales if op.routing.bias is None else op.routing.bias
    for field in fields(op):
        if field.type in (Loaded, Cache, State):
            return getattr(op, field.name)
        if field.type == tuple[Loaded, ...]:
            return getattr(op, field.name)[0]
    return None
