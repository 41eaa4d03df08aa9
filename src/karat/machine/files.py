"""Files in which Linux states facts. Other systems do not have them."""

from pathlib import Path


def read_text(path: Path) -> str:
    """The text of a system file, stripped; empty where it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
