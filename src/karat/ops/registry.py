"""Executors by name. A new executor is one file beside this one and one entry below."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from karat.config import DEFAULT_ACTIVATIONS, Activations, FloatName, Settings
from karat.errors import ExecutorError, UsageError
from karat.ops.device import CudaOps, EmulatedOps, missing
from karat.ops.executor import Executor
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.request import shown

_ACTIVATIONS = get_args(Activations)
CPU = "cpu"
_DEVICE = re.compile(r"cpu|cuda-emulated|cuda(?::[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Option:
    """A value that an executor may be told; left out, or None, it is the executor's own choice.

    `takes` says which values may be given at all, `expected` the same in words.
    """

    takes: Callable[[object], bool]
    expected: str


@dataclass(frozen=True, slots=True)
class ExecutorEntry:
    """`make` makes the executor from a dtype, one of `dtypes`, and keyword arguments, which are some of `options`.

    `rounds_nothing`: weights in blocks may also read activations of the dtype. `unavailable` says why it cannot be made
    here, None if it can. `numerics` is the executor whose bits it has, None if those are its own. `device` is where it
    computes.
    """

    make: Callable[..., Executor]
    dtypes: tuple[FloatName, ...]
    options: tuple[str, ...]
    rounds_nothing: bool = False
    unavailable: Callable[[], str | None] = lambda: None
    numerics: str | None = None
    device: str = CPU


def _reference(dtype: FloatName, *, threads: int | None = None, activations: Activations | None = None) -> Executor:
    """`threads` has no effect, and changes no number."""
    return ReferenceOps(dtype) if activations is None or activations == dtype else IntegerOps(WIDTHS[activations])


def _native(
    dtype: FloatName, *, threads: int | None = None, isa: str | None = None, activations: Activations | None = None
) -> Executor:
    isa = isa or Settings.from_env().isa
    return NativeOps(dtype, isa=isa, threads=threads, activations=activations or DEFAULT_ACTIVATIONS)


def _cuda(
    dtype: FloatName,
    *,
    device: str = "cuda",
    threads: int | None = None,
    activations: Activations | None = None,
    host_layers: int = 0,
) -> CudaOps:
    _, _, number = device.partition(":")
    return CudaOps(
        dtype,
        number=int(number or 0),
        threads=threads,
        activations=activations or DEFAULT_ACTIVATIONS,
        host_layers=host_layers,
    )


def _emulated(
    dtype: FloatName, *, threads: int | None = None, activations: Activations | None = None, host_layers: int = 0
) -> EmulatedOps:
    return EmulatedOps(dtype, threads=threads, activations=activations or DEFAULT_ACTIVATIONS, host_layers=host_layers)


# Options of executors. A name means the same for all that have it.
OPTIONS: Mapping[str, Option] = {
    "threads": Option(lambda value: type(value) is int and value >= 1, "an integer of at least 1"),
    "activations": Option(lambda value: value in _ACTIVATIONS, f"one of {', '.join(_ACTIVATIONS)}, or None"),
    "isa": Option(lambda value: isinstance(value, str), "the name of a kernel build"),
    "device": Option(
        lambda value: isinstance(value, str) and _DEVICE.fullmatch(value) is not None,
        "cpu, cuda, cuda:N (the GPU of that number) or cuda-emulated",
    ),
    "host_layers": Option(lambda value: type(value) is int and value >= 0, "an integer of at least 0"),
}

# Of those of a device, "auto" takes the last one that is available here and has the dtype.
EXECUTORS: Mapping[str, ExecutorEntry] = {
    "reference": ExecutorEntry(_reference, ("float32", "float64"), ("threads", "activations"), rounds_nothing=True),
    "native": ExecutorEntry(
        _native, ("float32",), ("threads", "activations", "isa"), unavailable=lambda: unavailable_reason()
    ),
    "cuda": ExecutorEntry(
        _cuda,
        ("float32",),
        ("threads", "activations", "device", "host_layers"),
        unavailable=lambda: unavailable_reason() or missing("cuda"),
        numerics="native",
        device="cuda",
    ),
    "cuda-emulated": ExecutorEntry(
        _emulated,
        ("float32",),
        ("threads", "activations", "host_layers"),
        unavailable=lambda: unavailable_reason() or missing("cuda-emulated"),
        numerics="native",
        device="cuda-emulated",
    ),
}


def numerics_of(executor: str) -> str:
    """The executor whose bits this one has: what a fingerprint names."""
    return EXECUTORS[executor].numerics or executor


def device_of(executor: str) -> str:
    """Where this executor computes: cpu, cuda or cuda-emulated."""
    return EXECUTORS[executor].device


def devices() -> dict[str, str | None]:
    """The devices that Karat knows, each with why it cannot be had here; None: it can."""
    reasons: dict[str, str | None] = {CPU: None}
    for entry in EXECUTORS.values():
        if entry.device != CPU:
            try:
                reasons[entry.device] = entry.unavailable()
            except ExecutorError as fault:  # a stale extension
                reasons[entry.device] = str(fault)
    return reasons


def take_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove from `arguments` what is an option of an executor by its name, and return it."""
    return {name: arguments.pop(name) for name in OPTIONS if name in arguments}


def check_values(options: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that an option never has, whatever the executor."""
    for name, value in options.items():
        if value is not None and not OPTIONS[name].takes(value):
            raise UsageError(f"{name}={shown(value)}: expected {OPTIONS[name].expected}")


def create(executor: str = "auto", dtype: FloatName = "float32", options: Mapping[str, Any] = {}) -> Executor:
    """An executor that computes in `dtype`; `ops.executor` is its name. "auto" is native where that is installed and
    has the dtype, else the reference; with the option `device`, the executor of that device.

    "cuda" has the numbers of native by the kernels of a GPU, "cuda-emulated" by the same kernels in an emulation, for
    tests (docs/gpu.md).

    The options of all:

    - device: cpu, cuda, cuda:N or cuda-emulated. None is the executor's; without both it is cpu.
    - threads: None is one for each physical core that may be used. It applies to what native kernels compute.
    - activations: what linear layers on weights in blocks read: with float32 a width of integers
      (karat.ops.integers), which the reference executor computes as they are defined; it may also read `dtype`, which
      rounds nothing. None is `dtype` with the reference executor, and DEFAULT_ACTIVATIONS with the others.

    Of the native executor: isa, a kernel build; None is KARAT_ISA, or else the fastest. Of those of a GPU: host_layers,
    the number of first layers that native kernels compute, on the CPU; it changes no bit.

    Raises UsageError for an option that the executor has not and for a value that no such option has, ExecutorError for
    an unknown name or dtype, and for values that cannot be had here or do not go with the dtype.
    """
    given = {name: value for name, value in options.items() if value is not None}
    check_values(given)
    device = None if (place := given.get("device")) is None else place.partition(":")[0]
    if executor == "auto":
        there = {name: entry for name, entry in EXECUTORS.items() if entry.device == (device or CPU)}
        able = [name for name, entry in there.items() if dtype in entry.dtypes and entry.unavailable() is None]
        executor = able[-1] if able else next(iter(there))
    entry = EXECUTORS.get(executor)
    if entry is None:
        raise ExecutorError(f"executor={executor!r} is unknown; Karat has auto, {', '.join(EXECUTORS)}")
    if dtype not in entry.dtypes:
        raise ExecutorError(f"dtype={dtype!r}: the {executor} executor computes in {' and '.join(entry.dtypes)}")
    if device is not None and device != entry.device:
        raise UsageError(f"device={place!r}: the {executor} executor computes on {entry.device}; give one of both")
    if "device" not in entry.options:
        given.pop("device", None)
    if other := next((name for name in given if name not in entry.options), None):
        has = ", ".join(entry.options)
        raise UsageError(f"{other}={shown(given[other])}: the {executor} executor has no such option; it has {has}")
    widths = tuple(WIDTHS) if dtype == "float32" else ()
    able_to_read = (dtype, *widths) if entry.rounds_nothing else widths
    if (activations := given.get("activations")) is not None and activations not in able_to_read:
        raise ExecutorError(
            f"activations={activations!r}: the {executor} executor with dtype={dtype!r} reads {', '.join(able_to_read)}"
            " where weights are in blocks; int24 has float32's accuracy"
        )
    return entry.make(dtype, **given)
