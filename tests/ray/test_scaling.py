"""ByQueuedTokens: how many replicas are wanted."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray.serve", reason="Ray cannot be had here")
from karat.ray.scaling import QUEUED_TOKENS, ByQueuedTokens


@pytest.mark.parametrize(
    ("queued", "requests", "wanted"),
    [
        ({}, 0, 0),
        ({"a": 900.0, "b": 0.0}, 3, 1),
        ({"a": 900.0, "b": 1200.0}, 3, 3),
        ({"a": 0.0, "b": 0.0}, 33, 3),  # nothing waits, but two replicas would have no place for all
    ],
)
def test_by_tokens_that_wait_and_requests_under_way(queued: dict[str, float], requests: int, wanted: int) -> None:
    context = SimpleNamespace(aggregated_metrics={QUEUED_TOKENS: queued}, total_num_requests=requests)
    assert ByQueuedTokens(tokens_each=1000, places=16)(context) == (wanted, {})  # type: ignore[arg-type]


def test_before_anybody_has_said_anything() -> None:
    context = SimpleNamespace(aggregated_metrics=None, total_num_requests=0)
    assert ByQueuedTokens(1000, 16)(context) == (0, {})  # type: ignore[arg-type]
