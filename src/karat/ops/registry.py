"""Executors by name. A new executor is one file beside this one and one line below."""

from collections.abc import Callable, Mapping

from karat.config import FloatName, Settings
from karat.errors import ExecutorError
from karat.ops.api import Ops
from karat.ops.native import NativeOps, unavailable_reason
from karat.ops.reference import ReferenceOps

EXECUTORS: Mapping[str, Callable[[FloatName], Ops]] = {
    "reference": ReferenceOps,
    "native": lambda dtype: NativeOps(dtype, isa=Settings.from_env().isa),
}


def create(executor: str = "auto", dtype: FloatName = "float32") -> Ops:
    """An executor that computes in `dtype`.

    "auto" is native for float32 where the extension is installed, else the reference; `ops.executor` says which.
    """
    if executor == "auto":
        executor = "native" if dtype == "float32" and unavailable_reason() is None else "reference"
    if executor not in EXECUTORS:
        raise ExecutorError(f"executor={executor!r} is unknown; Karat has auto, {', '.join(EXECUTORS)}")
    return EXECUTORS[executor](dtype)
