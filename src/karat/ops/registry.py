"""Executors by name. A new executor is one file beside this one and one line below."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from karat.config import FloatName, Settings
from karat.errors import ExecutorError
from karat.ops.api import Ops
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps


@dataclass(frozen=True, slots=True)
class Executor:
    """`create` makes the executor from dtype, threads and kernel build; `dtypes` are those it computes in."""

    create: Callable[[FloatName, int | None, str | None], Ops]
    dtypes: tuple[FloatName, ...]


EXECUTORS: Mapping[str, Executor] = {
    "reference": Executor(lambda dtype, threads, isa: ReferenceOps(dtype), ("float32", "float64")),
    "native": Executor(
        lambda dtype, threads, isa: NativeOps(dtype, isa=isa or Settings.from_env().isa, threads=threads), ("float32",)
    ),
}


def create(
    executor: str = "auto", dtype: FloatName = "float32", threads: int | None = None, isa: str | None = None
) -> Ops:
    """An executor that computes in `dtype`. Raises ExecutorError for an unknown name, dtype or kernel build.

    `threads` (None: one for each physical core that may be used) and `isa`, a kernel build (None: KARAT_ISA, or else
    the fastest), apply to the native executor only. "auto" is native where the extension is installed and has the
    dtype, else the reference; `ops.executor` is the name of the one chosen.
    """
    if executor == "auto":
        native = dtype in EXECUTORS["native"].dtypes and unavailable_reason() is None
        executor = "native" if native else "reference"
    if executor not in EXECUTORS:
        raise ExecutorError(f"executor={executor!r} is unknown; Karat has auto, {', '.join(EXECUTORS)}")
    if dtype not in EXECUTORS[executor].dtypes:
        able = " and ".join(EXECUTORS[executor].dtypes)
        raise ExecutorError(f"dtype={dtype!r}: the {executor} executor computes in {able}")
    return EXECUTORS[executor].create(dtype, threads, isa)
