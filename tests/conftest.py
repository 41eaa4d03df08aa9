"""Fixtures that all tests share."""

import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from karat.machine.cores import num_physical_cores
from tests.support.drawn import leave_to_long_runs
from tests.support.seed import SEED

# How long an example takes says more about the machine than about Karat; pytest's own timeout ends what hangs.
# `make test-long` draws as many examples as hypothesis would by itself, `make test` a third. Where CI is set,
# hypothesis by itself draws the same for each seed.
settings.register_profile(
    "karat",
    derandomize=False,
    deadline=None,
    max_examples=100 if "KARAT_LONG" in os.environ else 33,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("karat")

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A worker of several has about one core. Libraries that would start threads for all cores read this when imported.
NUM_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if NUM_WORKERS > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def threads_of_a_worker() -> Iterator[None]:
    """A model's threads are the worker's share of the cores where a test does not say how many; in a long run all.

    More threads than cores take turns at every barrier: a step of a small model takes ten times as long.
    """
    from karat.bench import session
    from karat.engine.ranks import rank_model as parallel
    from karat.ops import native

    share = max(1, num_physical_cores() // NUM_WORKERS)
    with pytest.MonkeyPatch.context() as patch:
        for module in (native, parallel, session):
            if NUM_WORKERS > 1 and "KARAT_LONG" not in os.environ:
                patch.setattr(module, "num_physical_cores", lambda: share)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each core; beyond eight, memory counts."""
    return min(num_physical_cores(), 8)


@pytest.hookimpl(tryfirst=True)  # before -m has its say
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_long_runs(items)


@pytest.hookimpl(tryfirst=True)  # before hypothesis looks
def pytest_configure(config: pytest.Config) -> None:
    """Examples of hypothesis are drawn by the seed of the run, too."""
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(zlib.crc32(SEED.encode()))


def pytest_report_header(config: pytest.Config) -> str:
    return f"KARAT_SEED={SEED} has the tests draw the same again"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real models, tokenizers, templates and text: $KARAT_TEST_DATA, or ../shared/data beside the checkout."""
    folder = Path(os.environ.get("KARAT_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder} (set KARAT_TEST_DATA)")
    return folder
