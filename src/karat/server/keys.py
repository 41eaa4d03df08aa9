"""API keys from a file."""

from pathlib import Path

from karat.errors import KaratError, UsageError

_MAX_KEY_BYTES = 1 << 20


def keys_in(file: Path) -> list[str]:
    """The keys of a file, one on each line. KaratError for a file that cannot be read, UsageError if it has none."""
    try:
        with file.open("rb") as opened:
            lines = opened.read(_MAX_KEY_BYTES).decode("ascii").split("\n")
    except OSError as fault:
        raise KaratError(f"{file}: {fault.strerror}; give a file with a key on each line") from fault
    except UnicodeDecodeError:
        raise UsageError(f"{file}: keys are ASCII; write one on each line") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UsageError(f"{file} has no key; write one on each line")
    check_keys(found)
    return found


def check_keys(keys: list[str]) -> None:
    """UsageError for a key that no header can carry."""
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(
                "an API key is empty or has spaces or letters beyond ASCII; make one: openssl rand -hex 32"
            )
