"""A node that goes: its replica's streams go on at a replica on another node."""

import random

import pytest

from tests.support.ray_application import Streamed, application, asked_in_all_protocols, deploy
from tests.support.ray_nodes import start_node, two_nodes
from tests.support.seed import SEED

pytest.importorskip("ray.serve", reason="Ray cannot be had here")
GIVEN = {"cores": 1, "max_model_len": 1024}


@pytest.mark.long
def test_a_node_that_is_removed() -> None:
    """The ingress stays: it is beside the first replica, before there is another node with a place."""
    import ray

    if ray.is_initialized():
        pytest.skip("another test of this process is connected to a cluster")
    with two_nodes(second=False) as nodes, application(**GIVEN, min_replicas=1) as app:
        app.await_replicas(1)
        node = start_node(nodes, 1)
        deploy(**GIVEN, min_replicas=2)
        app.await_replicas(2)
        asked = asked_in_all_protocols(random.Random(f"{SEED}-node"), 700) * 2
        undisturbed = app.streams(asked)
        removed = list[bool]()

        def remove(streamed: Streamed) -> None:
            if not removed and len(streamed.events) > 30:
                removed.append(True)
                nodes.remove_node(node, allow_graceful=False)

        disturbed = app.streams(asked, remove)
        assert removed and [each.said for each in disturbed] == [each.said for each in undisturbed]
        assert max(each.gap_s for each in disturbed) < 30
