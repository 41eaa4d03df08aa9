"""Executors by name. A new executor is one file beside this one and one entry below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from karat.config import DEFAULT_ACTIVATIONS, Activations, FloatName, Settings
from karat.errors import ExecutorError, UsageError
from karat.ops import device
from karat.ops.executor import Executor
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.request import shown

_ACTIVATIONS = get_args(Activations)


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
    here, None if it can. `numerics` is the executor whose bits it has, None if those are its own. With `is_chosen`
    "auto" may take it.
    """

    make: Callable[..., Executor]
    dtypes: tuple[FloatName, ...]
    options: tuple[str, ...]
    rounds_nothing: bool = False
    unavailable: Callable[[], str | None] = lambda: None
    numerics: str | None = None
    is_chosen: bool = True


def _reference(dtype: FloatName, *, threads: int | None = None, activations: Activations | None = None) -> Executor:
    """`threads` has no effect, and changes no number."""
    return ReferenceOps(dtype) if activations is None or activations == dtype else IntegerOps(WIDTHS[activations])


def _native(
    dtype: FloatName, *, threads: int | None = None, isa: str | None = None, activations: Activations | None = None
) -> Executor:
    isa = isa or Settings.from_env().isa
    return NativeOps(dtype, isa=isa, threads=threads, activations=activations or DEFAULT_ACTIVATIONS)


def _emulated(
    dtype: FloatName, *, threads: int | None = None, activations: Activations | None = None
) -> device.EmulatedOps:
    """`threads` has no effect, and changes no number."""
    return device.EmulatedOps(dtype, activations=activations or DEFAULT_ACTIVATIONS)


# Options of executors. A name means the same for all that have it.
OPTIONS: Mapping[str, Option] = {
    "threads": Option(lambda value: type(value) is int and value >= 1, "an integer of at least 1"),
    "activations": Option(lambda value: value in _ACTIVATIONS, f"one of {', '.join(_ACTIVATIONS)}, or None"),
    "isa": Option(lambda value: isinstance(value, str), "the name of a kernel build"),
}

# The last one that "auto" may take, that is available here and has the dtype is what it takes.
EXECUTORS: Mapping[str, ExecutorEntry] = {
    "reference": ExecutorEntry(_reference, ("float32", "float64"), ("threads", "activations"), rounds_nothing=True),
    "native": ExecutorEntry(
        _native, ("float32",), ("threads", "activations", "isa"), unavailable=lambda: unavailable_reason()
    ),
    "cuda-emulated": ExecutorEntry(
        _emulated,
        ("float32",),
        ("threads", "activations"),
        unavailable=lambda: unavailable_reason() or device.MISSING,
        numerics="native",
        is_chosen=False,
    ),
}


def numerics_of(executor: str) -> str:
    """The executor whose bits this one has: what a fingerprint names."""
    return EXECUTORS[executor].numerics or executor


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
    has the dtype, else the reference.

    "cuda-emulated" has the numbers of native, by the kernels of a GPU in an emulation; it is for tests (docs/gpu.md).

    The options of all:

    - threads: None is one for each physical core that may be used. It applies to the native executor only.
    - activations: what linear layers on weights in blocks read: with float32 a width of integers
      (karat.ops.integers), which the reference executor computes as they are defined; it may also read `dtype`, which
      rounds nothing. None is `dtype` with the reference executor, and DEFAULT_ACTIVATIONS with the others.

    And of the native executor: isa, a kernel build; None is KARAT_ISA, or else the fastest.

    Raises UsageError for an option that the executor has not and for a value that no such option has, ExecutorError for
    an unknown name or dtype, and for values that cannot be had here or do not go with the dtype.
    """
    if executor == "auto":
        able = [
            name
            for name, entry in EXECUTORS.items()
            if entry.is_chosen and dtype in entry.dtypes and entry.unavailable() is None
        ]
        executor = able[-1] if able else "reference"
    entry = EXECUTORS.get(executor)
    if entry is None:
        raise ExecutorError(f"executor={executor!r} is unknown; Karat has auto, {', '.join(EXECUTORS)}")
    if dtype not in entry.dtypes:
        raise ExecutorError(f"dtype={dtype!r}: the {executor} executor computes in {' and '.join(entry.dtypes)}")
    given = {name: value for name, value in options.items() if value is not None}
    if other := next((name for name in given if name not in entry.options), None):
        has = ", ".join(entry.options)
        raise UsageError(f"{other}={shown(given[other])}: the {executor} executor has no such option; it has {has}")
    check_values(given)
    widths = tuple(WIDTHS) if dtype == "float32" else ()
    able_to_read = (dtype, *widths) if entry.rounds_nothing else widths
    if (activations := given.get("activations")) is not None and activations not in able_to_read:
        raise ExecutorError(
            f"activations={activations!r}: the {executor} executor with dtype={dtype!r} reads {', '.join(able_to_read)}"
            " where weights are in blocks; int24 has float32's accuracy"
        )
    return entry.make(dtype, **given)
