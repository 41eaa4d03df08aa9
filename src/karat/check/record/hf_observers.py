"""What is seen of functions of torch that a module of transformers calls; their results are unchanged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class SoftmaxObserver(TorchFunctionMode):  # type: ignore[misc]
    """Passes the argument of the softmax to `seen`, or what sinks are joined to before; results are unchanged."""

    def __init__(self, seen: Callable[[torch.Tensor], None], *, has_sinks: bool) -> None:
        super().__init__()
        self._seen, self._has_sinks = seen, has_sinks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == ("cat" if self._has_sinks else "softmax"):
            given = args[0] if args else kwargs["input"]
            self._seen(given[0] if self._has_sinks else given)
        return func(*args, **(kwargs or {}))


class _RowObserver(TorchFunctionMode):  # type: ignore[misc]
    """Passes rows that are gathered of a table to `seen`."""

    def __init__(self, seen: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "embedding":
            self._seen(out)
        return out


@contextmanager
def rows_seen(embedding: Any, seen: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Inside it `seen` gets the rows of an embedding as they are in its table, before the module multiplies them."""
    original = embedding.forward

    def watched(*args: Any) -> Any:
        with _RowObserver(seen):
            return original(*args)

    embedding.forward = watched
    try:
        yield
    finally:
        del embedding.forward
