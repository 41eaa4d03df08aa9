"""A fake hub on loopback, and a client with a cache of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.fake_hub import FakeHub, Model, running_hub
from tests.checkpoint.hub_client import SHARDED, SINGLE, Client


@pytest.fixture(scope="module")
def running() -> Iterator[FakeHub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def client(running: FakeHub, tmp_path: Path) -> Client:
    running.models = {"org/fox": Model({"main": SINGLE}), "org/owl": Model({"main": SHARDED})}
    running.status = running.page_for = None
    running.cut = {}
    running.on_request = None
    running.requests.clear()
    return Client(running, tmp_path / "home")
