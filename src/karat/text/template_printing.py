"""What a chat template may print: nothing whose text is an address in memory, which no two runs have in common."""

from collections.abc import ItemsView, Mapping, ValuesView
from typing import Any

import jinja2.exceptions
import jinja2.utils


def refuse_addresses(value: Any) -> None:
    """Raises SecurityError for what Python prints by its address, such as a function, wherever in `value` it is."""
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
            f"it prints a {type(value).__name__}, of which there is only an address in memory, another one in each run"
        )
