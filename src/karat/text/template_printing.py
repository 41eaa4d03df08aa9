"""A chat template may not print a value whose text is an address in memory: it differs from run to run."""

from collections.abc import ItemsView, Mapping, ValuesView
from typing import Any

import jinja2.exceptions
import jinja2.utils


def refuse_addresses(value: Any) -> None:
    """Raise SecurityError if Python prints `value`, or anything in it, by its address, as it does functions."""
    if value is None or isinstance(value, str | int | float):
        return
    if isinstance(value, jinja2.utils.Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")  # it hides all else from `getattr`
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_addresses(key)
            refuse_addresses(item)
    elif isinstance(value, list | tuple | set | frozenset | ItemsView | ValuesView):
        for item in value:
            refuse_addresses(item)
    elif " at 0x" in repr(value):
        raise jinja2.exceptions.SecurityError(
            f"it prints a {type(value).__name__}, whose text is an address in memory that differs from run to run"
        )
