"""How much memory a refusal takes, measured in a process of its own."""

from collections.abc import Iterator
from pathlib import Path

from tests.support.forks import Forks

LIMIT_MB = 256

_PROGRAM = """
import resource, sys
from pathlib import Path
from karat import checkpoint
from karat.errors import KaratError
from karat.models import opening
try:
    if sys.argv[1] == "tokenizer":
        from karat.text import Tokenizer
        Tokenizer.of(opening.open_gguf(Path(sys.argv[2])))
    else:
        room = opening if hasattr(opening, sys.argv[1]) else checkpoint
        getattr(room, sys.argv[1])(Path(sys.argv[2]))
except KaratError as fault:
    message = str(fault)
status = Path("/proc/self/status")  # on Linux, ru_maxrss begins with the parent's
if status.exists():
    print(next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")))
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
print(message)
"""

_FORKS = Forks("karat.checkpoint", "karat.models.opening", "karat.text")


def refused_within_limit(path: Path, function: str) -> str:
    """The message with which a function of karat.checkpoint or karat.models.opening refuses `path` within LIMIT_MB.

    `tokenizer` opens a GGUF file, which must be right, and then its tokenizer, which is refused.
    """
    out, _ = _FORKS.run(_PROGRAM, function, str(path))
    peak_kb, message = out.split("\n", 1)
    print(f"{int(peak_kb) >> 10} MB: {message}")
    assert int(peak_kb) < LIMIT_MB << 10
    assert len(message) < 2 * len(str(path)) + 1000
    return message


def numbered(pattern: bytes, count: int, start: bytes = b"{", end: bytes = b"") -> Iterator[bytes]:
    """`pattern` with n = 0, 1, …, between `start` and `end`."""
    yield start
    for number in range(count):
        yield (b"," if number else b"") + pattern % {b"n": number}
    yield end
