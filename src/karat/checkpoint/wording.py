"""Untrusted names and values in error messages: printable, on one line, of bounded length."""

from collections.abc import Collection


def shown(value: object, limit: int = 80) -> str:
    """Python's representation of `value`, in ASCII, cut at `limit` characters."""
    text = ascii(value[:limit] if isinstance(value, str | list | tuple) else value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Collection[str], limit: int = 10) -> str:
    """The first `limit` names, and the number of the others."""
    first = ", ".join(name for name, _ in zip(names, range(limit), strict=False))
    return first + (f" and {len(names) - limit} more" if len(names) > limit else "")
