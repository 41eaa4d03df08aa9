"""SmolLM2-135M-Instruct (Q4_1), which `python -m tools.real_model` puts into the environment; skipped without it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from karat import LLM
from karat.ops.native import unavailable_reason
from tests.cli.conftest import Karat
from tests.cli.conftest import karat as karat_process
from tools.peers.real_texts import FILE
from tools.real_model import PLACE, is_right

karat = karat_process


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file, whose SHA-256 is the pinned one."""
    if not PLACE.is_file():
        pytest.skip(f"no {PLACE.name} in {PLACE.parent} (python -m tools.real_model fetches it)")
    if (reason := unavailable_reason()) is not None:
        pytest.skip(f"a real model takes minutes without the kernels: {reason}")
    assert is_right(PLACE), f"{PLACE} is another file than the pinned one: remove it, python -m tools.real_model"
    return PLACE


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """What llama.cpp computes of the model (tools/peers/real_model.py says what is what)."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def llm(smollm2: Path) -> LLM:
    """The model with Karat's defaults, and a context for what the tests say."""
    return LLM(smollm2, max_model_len=512)


@pytest.fixture(scope="session")
def answer(smollm2: Path, karat: Karat) -> Callable[..., str]:
    """answer(message, *options): what `karat run --chat` prints, greedily, of this model or of the one after -m."""

    def asked(message: str, *options: str, model: Path = smollm2) -> str:
        done = karat("run", "-q", "--chat", message, "--temperature", "0", "-m", str(model), *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return asked
