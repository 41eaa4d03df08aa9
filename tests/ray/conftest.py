"""A cluster of Ray on this machine: two nodes with a core each, which Ray takes for machines."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
from tests.cli.conftest import karat, karat_here

__all__ = ["karat", "karat_here"]
ray = pytest.importorskip("ray", reason="Ray cannot be had here")


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address. This process is connected to it."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()
