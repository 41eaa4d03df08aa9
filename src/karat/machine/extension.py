"""The C++ extension of this installation: whether it is there, and whether it is the one that this Python was made for.

A stale extension, built before the Python beside it was changed, would fail in the middle of a run with an error of
types. So CMake puts the digest of src/karat/_native.pyi, the extension's types, into the extension.
"""

import hashlib
from functools import cache
from pathlib import Path
from types import ModuleType

from karat.errors import ExecutorError

try:
    import karat._native as _native
except ModuleNotFoundError:
    MISSING: str | None = (  # why there is no extension
        "this installation has no C++ extension, which is left out where there is no working C++ compiler; "
        "with one on the PATH, install Karat again"
    )
except ImportError as error:
    MISSING = f"the C++ extension cannot be loaded ({error}); install Karat again for this Python"
else:
    MISSING = None

TYPES = Path(__file__).resolve().parents[1] / "_native.pyi"


def unavailable_reason() -> str | None:
    """Why the extension cannot be used here, with the remedy; None where it can. Raises ExecutorError if it is stale:
    slower ways without it would hide that."""
    if MISSING is None and (reason := stale_reason(_native)):
        raise ExecutorError(reason)
    return MISSING


def native() -> ModuleType:
    """The extension. To be called only where `unavailable_reason()` is None. Raises ExecutorError if it is stale."""
    unavailable_reason()
    return _native


@cache
def stale_reason(extension: ModuleType, types: Path = TYPES) -> str | None:
    """Why an extension does not belong to the file of its types, with the remedy; None if it does, or if there is no
    such file to ask."""
    try:
        digest = hashlib.sha256(types.read_bytes()).hexdigest()
    except OSError:
        return None
    if getattr(extension, "types_digest", None) == digest:
        return None
    return (
        f"{extension.__file__} was built for another version of Karat's Python than {types.parent}; "
        "`make demo` in the clone builds it anew (elsewhere: install Karat again)"
    )
