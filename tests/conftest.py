"""Fixtures that all tests share."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about Karat; pytest's own timeout ends what hangs.
settings.register_profile("karat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("karat")

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real models, tokenizers, templates and text: $KARAT_TEST_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("KARAT_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder} (set KARAT_TEST_DATA)")
    return folder
