"""Output for people: styles, notes on stderr, tables, and text made safe for a terminal.

Text that a model or a file made never reaches a terminal with its control characters: they could move the cursor,
rename the window or forge what Karat says. Into a pipe or a file, generated text goes exactly as it is.
"""

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from karat.errors import KaratError, OutputError

_FULL = "free some space or write elsewhere"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "raise ulimit -f or write elsewhere",
    errno.EBADF: "leave stdout open, or redirect it to a file or a pipe",
}
_STYLES = {"dim": "2", "bold": "1", "error": "1;31"}
# Control pictures for C0 and DEL; one sign for C1, which some terminals obey as they do escape sequences.
_VISIBLE = (
    {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
    | {127: 0x2421}
    | dict.fromkeys(range(128, 160), 0xFFFD)
)


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def _has_styles(stream: TextIO) -> bool:
    if not is_terminal(stream):
        return False
    from rich.console import Console  # knows NO_COLOR, TERM and the like; imported only for a terminal

    console = Console(file=stream)
    return not console.no_color and not console.is_dumb_terminal


def styled(text: str, style: str, stream: TextIO) -> str:
    """`text` in one of the styles, if `stream` is a terminal that shows styles and NO_COLOR is not set."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and _has_styles(stream) else text


def printable(text: str) -> str:
    """`text` with every control character but newline and tab replaced by a visible one."""
    return text.translate(_VISIBLE)


def emit(text: str) -> None:
    """Write generated text to stdout at once: exactly as it is, or `printable` on a terminal.

    Raises BrokenPipeError when nobody reads any more, KaratError when it cannot be written.
    """
    with writing():
        sys.stdout.write(printable(text) if is_terminal(sys.stdout) else text)
        sys.stdout.flush()


def require_folder_of(path: Path) -> None:
    """OutputError unless the folder of a file to write exists. Call it before an hour of work, not after."""
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}; make it, or choose another place")


@contextmanager
def writing() -> Iterator[None]:
    """For code that writes to stdout: a failure becomes a KaratError, except BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as fault:
        reason = fault.strerror or str(fault)
        advice = _ADVICE.get(fault.errno or 0, "write elsewhere")
        raise KaratError(f"the output cannot be written ({reason}); {advice}") from fault


def note(text: str, end: str = "\n") -> None:
    """A remark on stderr, dim: never part of the output."""
    print(dim(text), file=sys.stderr, end=end, flush=True)


def dim(text: str) -> str:
    """A remark for stderr."""
    return styled(printable(text), "dim", sys.stderr)


def tell(text: str) -> None:
    """Lines on stderr for the user to read; a leading `karat: error:` stands out."""
    head, colon, rest = text.partition("error:")
    marked = styled(head + colon, "error", sys.stderr) + rest if head == "karat: " and colon else text
    print(marked, file=sys.stderr, flush=True)


def columns(rows: Iterable[Sequence[str]], right: str = "") -> str:
    """`rows` as a table of plain text, two spaces apart; `right` names the columns, by digit, that align right."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if str(i) in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def bytes_text(num_bytes: int) -> str:
    """A size for people: 999 B, 1.2 kB, 10.5 MB, 3.21 GB, in powers of 1000."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
