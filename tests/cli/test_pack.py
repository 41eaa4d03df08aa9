"""`karat pack`, and a command that maps what it wrote."""

import json
import os
from pathlib import Path

import pytest

from karat.ops.native import unavailable_reason
from tests.cli.conftest import Karat

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason="no native extension")


def test_what_is_packed_once_is_mapped_by_run(tmp_path: Path, karat_here: Karat) -> None:
    from karat.config import embedded_model_path

    model, cache = str(embedded_model_path()), str(tmp_path / "karat" / "packed")
    done = karat_here("pack", model, "--verify", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 4 and "pack the model first" in done.stderr and not list(tmp_path.rglob("*packed*"))
    done = karat_here("pack", model, "--template-arg", "a=1", "--chat-template", "chatml", XDG_CACHE_HOME=str(tmp_path))
    assert "--chat-template and --template-arg have no effect: a packed file has matrices alone" in done.stderr
    assert done.returncode == 0 and f"--packed-cache {cache} maps them" in done.stderr, done.stderr
    path = Path(done.stdout.strip())
    written = path.stat().st_mtime_ns
    done = karat_here("pack", model, "--packed-cache", cache, "--verify")
    assert done.returncode == 0 and path == Path(done.stdout.strip()), done.stderr
    assert path.parent == Path(cache) and "of matrices, all of them as they were packed" in done.stderr
    texts = []
    for options in (["--packed-cache", cache], []):
        done = karat_here("run", "-m", model, *options, "--json", "-n", "8", "--seed", "1", "Once upon a time")
        assert done.returncode == 0, done.stderr
        texts.append(json.loads(done.stdout)["choices"])
    assert texts[0] == texts[1] and path.stat().st_mtime_ns == written
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    done = karat_here("pack", model, "--packed-cache", cache, "--verify")
    assert done.returncode == 4 and "is not what was packed" in done.stderr
    os.truncate(path, 100)
    done = karat_here("pack", model, "--packed-cache", cache)
    assert done.returncode == 4 and "remove it, and pack the model again" in done.stderr
