"""An extension that is older than the Python beside it is refused, and said to be what it is."""

import hashlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from karat import LLM
from karat.cli import env
from karat.config import embedded_model_path
from karat.errors import ExecutorError
from karat.machine import extension
from karat.ops import native, registry

ROOT = Path(__file__).resolve().parents[2]
ADVICE = "/site/karat/_native.so was built for another version of Karat's Python than .*/src/karat; `make demo`"


def built(digest: str | None) -> ModuleType:
    """An extension that holds this digest of its types, or none, as those from before there was one."""
    module = ModuleType("karat._native")
    module.__file__ = "/site/karat/_native.so"
    if digest is not None:
        module.__dict__["types_digest"] = digest
    return module


@pytest.fixture(params=[None, "of another file"])
def stale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "MISSING", None)
    monkeypatch.setattr(extension, "_native", built(request.param), raising=False)


@pytest.mark.usefixtures("stale")
def test_a_stale_extension_runs_nothing() -> None:
    for asked in (native.NativeOps, registry.create, lambda: LLM(embedded_model_path()), native.supported_isas):
        with pytest.raises(ExecutorError, match=ADVICE):
            asked()
    assert registry.create("reference").executor == "reference"


@pytest.mark.usefixtures("stale")
def test_karat_env_says_so() -> None:
    facts = env.gather()["native"]
    assert (facts["available"], facts["kernel_builds"]) == (False, [])
    assert "was built for another version" in facts["reason"] and "`make demo`" in env.as_text(env.gather())
    json.dumps(facts)


def test_an_extension_of_these_types_is_taken(tmp_path: Path) -> None:
    types = tmp_path / "_native.pyi"
    types.write_text("def f() -> int: ...\n")
    digest = hashlib.sha256(types.read_bytes()).hexdigest()
    assert extension.stale_reason(built(digest), types) is None
    types.write_text("def f(x: int) -> int: ...\n")
    extension.stale_reason.cache_clear()
    assert "install Karat again" in (extension.stale_reason(built(digest), types) or "")
    assert extension.stale_reason(built(digest), tmp_path / "none.pyi") is None


def test_the_extension_here_is_no_stale_one() -> None:
    if extension.MISSING is None:
        assert extension.TYPES == ROOT / "src" / "karat" / "_native.pyi"
        assert extension.stale_reason(extension.native()) is None
