"""The benchmark of being awake, with the embedded model and a short prompt."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from karat.config import embedded_model_path

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_awake() -> None:
    command = [sys.executable, "-m", "benchmarks.awake", str(embedded_model_path()), "--threads", "1"]
    sizes = ["--prompt-tokens", "900", "--streams", "2", "--stream-tokens", "900", "--vocab-size", "1000"]
    done = subprocess.run([*command, *sizes], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["prompt_tokens_per_s"] > 0 and facts["gap_s"]["number"] > 0 and facts["health_s"]["number"] > 0
