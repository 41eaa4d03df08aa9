"""When Python looks for cycles of garbage, in a process whose start is mostly the making of objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """No search for garbage meanwhile: among modules and the tokens of a vocabulary it finds none, and takes 35 ms.

    What there is afterwards is not searched until `main` ends: a model that was loaded stays as long.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
