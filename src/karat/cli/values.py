"""Plain values of the command line, read without pydantic.

Typer validates each parameter by a pydantic type adapter. It builds the adapter even if no value was given: with the
import of pydantic, 0.1 s of each start. Values that are not plain, and wrong ones, still go that way.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

_INT = re.compile("[0-9]{1,18}")
_SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is no UTF-8
_FLOAT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


class _Plain:
    """Comes before a parameter's conversion by typer."""

    def __init__(self, other: Callable[[], Any]) -> None:
        self._other = other

    def coerce(self, value: Any, param: Any, ctx: typer.Context) -> Any:
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        annotation = param.type_descriptor.annotation
        if not is_list and not param.type_descriptor.is_ranged:
            plain = _plain(annotation, value)
        elif annotation == list[str] and isinstance(value, list | tuple):
            plain = value if all(_plain(str, item) is not None for item in value) else None
        else:
            plain = None
        return self._other().coerce(value, param=param, ctx=ctx) if plain is None else plain


class _Option(TyperOption):
    def get_runtime_param(self) -> Any:
        return _Plain(super().get_runtime_param)


class _Argument(TyperArgument):
    def get_runtime_param(self) -> Any:
        return _Plain(super().get_runtime_param)


def read_plainly(parameters: Sequence[Any]) -> Sequence[Any]:
    """The same parameters, which from now on take plain values without typer."""
    for parameter in parameters:
        if type(parameter) is TyperOption:
            parameter.__class__ = _Option
        elif type(parameter) is TyperArgument:
            parameter.__class__ = _Argument
    return parameters


def _plain(annotation: Any, value: Any) -> Any:
    """The value of a word, equal to the value that typer would read; None: typer must decide."""
    if type(value) is not str:
        return None
    if annotation is str:
        return None if _SURROGATE.search(value) else value
    if annotation is int and _INT.fullmatch(value):
        return int(value)
    if annotation is float and _FLOAT.fullmatch(value):
        return float(value)
    return None
