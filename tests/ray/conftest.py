"""A cluster of Ray on this machine: two nodes with a core each, which Ray takes for machines."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import karat, karat_here
from tests.support.ray_nodes import two_nodes

__all__ = ["karat", "karat_here"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address. This process is connected to it."""
    pytest.importorskip("ray", reason="Ray cannot be had here")
    with two_nodes() as nodes:
        yield nodes.address
