"""Files in which Linux states facts. Elsewhere there are none."""

from pathlib import Path


def read_text(path: Path) -> str:
    """A file of the system without the last newline; empty where it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
