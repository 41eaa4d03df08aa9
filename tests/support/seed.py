"""The seed of tests that draw: KARAT_SEED; else a number of the code that is tested, as it is committed.

So whoever tests a commit draws what others drew of it, and a test that is mended is seen to be. Code that is not
committed, and a long run, are drawn for anew: by the first process of the run, for all.
"""

import os
import secrets
import subprocess
import zlib
from pathlib import Path

_DRAWN = "SEED_DRAWN_FOR_TESTS"  # workers inherit it
_CODE = ("src", "csrc")


def of_code(root: Path) -> str | None:
    """A number of the code below this folder. None where it is not committed as it is, or nothing is known of that."""
    git = ("git", "-c", "safe.directory=*", "-C", str(root))
    try:
        changed = subprocess.run([*git, "status", "--porcelain", "-uno", *_CODE], capture_output=True)
        trees = subprocess.run([*git, "rev-parse", *(f"HEAD:{name}" for name in _CODE)], capture_output=True)
    except OSError:
        return None
    is_it = changed.returncode == trees.returncode == 0 and not changed.stdout
    return str(zlib.crc32(trees.stdout)) if is_it else None


def _drawn() -> str:
    own = None if "KARAT_LONG" in os.environ else of_code(Path(__file__).parents[2])
    return own or str(secrets.randbelow(2**31))


SEED = os.environ.get("KARAT_SEED") or os.environ.get(_DRAWN) or os.environ.setdefault(_DRAWN, _drawn())
