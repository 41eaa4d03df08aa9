"""The seed of tests that draw: KARAT_SEED; else the commit, so that whoever runs a commit draws what others drew of it.

A tree that is no commit, and a long run, draw anew: the first process of the run draws for all.
"""

import os
import secrets
import subprocess
from pathlib import Path

_DRAWN = "SEED_DRAWN_FOR_TESTS"  # workers inherit it


def commit(folder: Path) -> str | None:
    """A number of the commit that the tracked files are. None where they are changed, or nothing is known of it."""
    git = ("git", "-c", "safe.directory=*", "-C", str(folder))
    try:
        changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True)
        known = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None
    is_it = changed.returncode == known.returncode == 0 and not changed.stdout
    return str(int(known.stdout[:8], 16)) if is_it else None


def _drawn() -> str:
    of_tree = None if "KARAT_LONG" in os.environ else commit(Path(__file__).parent)
    return of_tree or str(secrets.randbelow(2**31))


SEED = os.environ.get("KARAT_SEED") or os.environ.get(_DRAWN) or os.environ.setdefault(_DRAWN, _drawn())
