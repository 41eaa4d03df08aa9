"""Executors by name. A new executor is one file beside this one and one line below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from karat.config import DEFAULT_ACTIVATIONS, Activations, FloatName, Settings
from karat.errors import ExecutorError
from karat.ops.executor import Executor
from karat.ops.integer_reference import IntegerOps
from karat.ops.integers import WIDTHS
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps


@dataclass(frozen=True, slots=True)
class Entry:
    """`create` makes the executor from dtype, activations (None: its own choice), threads and kernel build; `dtypes`
    are those it computes in. `rounds_nothing`: weights in blocks may also read activations of the dtype.
    """

    create: Callable[[FloatName, Activations | None, int | None, str | None], Executor]
    dtypes: tuple[FloatName, ...]
    rounds_nothing: bool


def _reference(dtype: FloatName, activations: Activations | None, threads: int | None, isa: str | None) -> Executor:
    return ReferenceOps(dtype) if activations is None or activations == dtype else IntegerOps(WIDTHS[activations])


def _native(dtype: FloatName, activations: Activations | None, threads: int | None, isa: str | None) -> Executor:
    isa = isa or Settings.from_env().isa
    return NativeOps(dtype, isa=isa, threads=threads, activations=activations or DEFAULT_ACTIVATIONS)


EXECUTORS: Mapping[str, Entry] = {
    "reference": Entry(_reference, ("float32", "float64"), rounds_nothing=True),
    "native": Entry(_native, ("float32",), rounds_nothing=False),
}


def create(
    executor: str = "auto",
    dtype: FloatName = "float32",
    threads: int | None = None,
    isa: str | None = None,
    activations: Activations | None = None,
) -> Executor:
    """An executor that computes in `dtype`. Raises ExecutorError for an unknown name, dtype, kernel build, and for
    activations that the dtype does not go with.

    `threads` (None: one for each physical core that may be used) and `isa`, a kernel build (None: KARAT_ISA, or else
    the fastest), apply to the native executor only. "auto" is native where the extension is installed and has the
    dtype, else the reference; `ops.executor` is the name of the one chosen.

    `activations` is what linear layers on weights in blocks read: with float32 a width of integers
    (karat.ops.integers), which the reference executor computes as they are defined; it may also read `dtype`, which
    rounds nothing. None is DEFAULT_ACTIVATIONS with the native executor, and `dtype` with the reference.
    """
    if executor == "auto":
        native = dtype in EXECUTORS["native"].dtypes and unavailable_reason() is None
        executor = "native" if native else "reference"
    if executor not in EXECUTORS:
        raise ExecutorError(f"executor={executor!r} is unknown; Karat has auto, {', '.join(EXECUTORS)}")
    if dtype not in EXECUTORS[executor].dtypes:
        able = " and ".join(EXECUTORS[executor].dtypes)
        raise ExecutorError(f"dtype={dtype!r}: the {executor} executor computes in {able}")
    widths = tuple(WIDTHS) if dtype == "float32" else ()
    able_to_read = (dtype, *widths) if EXECUTORS[executor].rounds_nothing else widths
    if activations is not None and activations not in able_to_read:
        raise ExecutorError(
            f"activations={activations!r}: the {executor} executor with dtype={dtype!r} reads {', '.join(able_to_read)}"
            " where weights are in blocks; int24 has float32's accuracy"
        )
    return EXECUTORS[executor].create(dtype, activations, threads, isa)
