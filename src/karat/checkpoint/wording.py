"""Untrusted names and values in error messages: printable, on one line, of bounded length."""

from collections.abc import Collection

from karat import request

_FOREIGN = {
    b"<": "it looks like a web page: the download failed or needs a login; download it again",
    b"version ": "it is a Git LFS pointer, not the file: run `git lfs pull` there",
}


def shown(value: object) -> str:
    """What a file says, for an error message: as `karat.request.shown` has it, in ASCII alone."""
    text = request.shown(value)
    line = text.removesuffix("…").encode("ascii", "backslashreplace").decode()
    return line if len(line) <= 80 and not text.endswith("…") else line[:79] + "…"


def listed(names: Collection[str], limit: int = 10) -> str:
    """The first `limit` names, and the number of the others."""
    first = ", ".join(name for name, _ in zip(names, range(limit), strict=False))
    return first + (f" and {len(names) - limit} more" if len(names) > limit else "")


def foreign(head: bytes) -> str | None:
    """What a file of JSON or of a tokenizer is instead, by its first bytes, and what to do; None if it is neither."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((said for magic, said in _FOREIGN.items() if start.startswith(magic)), None)
