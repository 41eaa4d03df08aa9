"""How foreign names and values stand in error messages: printable, on one line, and never endless."""

from collections.abc import Collection


def shown(value: object, limit: int = 80) -> str:
    """`value` as Python writes it, in ASCII, cut at `limit` characters."""
    text = ascii(value[:limit] if isinstance(value, str | list | tuple) else value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(names: Collection[str], limit: int = 10) -> str:
    """The first `limit` names, and how many more there are."""
    first = ", ".join(name for name, _ in zip(names, range(limit), strict=False))
    return first + (f" and {len(names) - limit} more" if len(names) > limit else "")
