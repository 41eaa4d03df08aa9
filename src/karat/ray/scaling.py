"""ByQueuedTokens: how many replicas an application needs, by the tokens of prompts that wait."""

import math
from typing import Any

from ray.serve.config import AutoscalingContext

QUEUED_TOKENS = "queued_tokens"  # of a replica's autoscaling statistics


class ByQueuedTokens:
    """Serve's autoscaling policy: a replica for each `tokens_each` tokens of prompts that wait for their first token,
    and for each `places` requests under way, so that none goes away that others would miss.
    """

    def __init__(self, tokens_each: int, places: int) -> None:
        self._tokens_each = tokens_each
        self._places = places

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        queued = sum((context.aggregated_metrics or {}).get(QUEUED_TOKENS, {}).values())
        needed = math.ceil(queued / self._tokens_each), math.ceil(context.total_num_requests / self._places)
        return max(needed), {}
