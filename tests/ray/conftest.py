"""A cluster of Ray on this machine: two nodes with a core each, which Ray takes for machines."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import karat, karat_here
from tests.support.ray_nodes import two_nodes

__all__ = ["karat", "karat_here"]


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """The cluster, as ray.cluster_utils has it. This process is connected to it."""
    pytest.importorskip("ray", reason="Ray cannot be had here")
    with two_nodes() as made:
        yield made


@pytest.fixture(scope="session")
def cluster(nodes: Any) -> str:
    """Its address."""
    return str(nodes.address)
