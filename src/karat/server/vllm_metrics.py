"""vLLM's names for those of Karat's metrics that mean the same, so that its dashboards and routers read Karat.

The Gateway API Inference Extension asks for two gauges, the queue and the share of the KV cache in use; its endpoint
picker looks for them under vLLM's names unless it is told others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Alias:
    """A metric of vLLM's and Karat's, without the endings that Prometheus adds to samples."""

    vllm: str
    karat: str
    kind: Literal["gauge", "counter", "histogram"]


ALIASES = (
    Alias("vllm:num_requests_running", "karat_sequences_running", "gauge"),
    Alias("vllm:num_requests_waiting", "karat_sequences_waiting", "gauge"),
    Alias("vllm:kv_cache_usage_perc", "karat_kv_cache_usage_ratio", "gauge"),
    Alias("vllm:num_preemptions", "karat_preemptions", "counter"),
    Alias("vllm:prefix_cache_queries", "karat_prefix_cache_queries", "counter"),
    Alias("vllm:prefix_cache_hits", "karat_prefix_cache_hits", "counter"),
    Alias("vllm:prompt_tokens", "karat_prompt_tokens", "counter"),
    Alias("vllm:generation_tokens", "karat_generation_tokens", "counter"),
    Alias("vllm:time_to_first_token_seconds", "karat_time_to_first_token_seconds", "histogram"),
    Alias("vllm:inter_token_latency_seconds", "karat_inter_token_latency_seconds", "histogram"),
    Alias("vllm:e2e_request_latency_seconds", "karat_request_seconds", "histogram"),
)


class VllmNames(Collector):
    """The metrics of `source` again, under vLLM's names and with its label model_name."""

    def __init__(self, source: CollectorRegistry, model_name: str) -> None:
        self._source = source
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        found = {metric.name: metric for metric in self._source.collect()}
        for alias in ALIASES:
            if alias.karat in found:
                yield self._renamed(found[alias.karat], alias)

    def describe(self) -> Iterable[Metric]:
        return []

    def _renamed(self, metric: Metric, alias: Alias) -> Metric:
        made = Metric(alias.vllm, f"{alias.karat}, under vLLM's name", alias.kind)
        for sample in metric.samples:
            ending = sample.name.removeprefix(alias.karat)
            if ending == "_created":
                continue
            if alias.kind == "counter" and not ending:
                ending = "_total"  # Karat's is a gauge that the engine counts
            made.add_sample(alias.vllm + ending, {**sample.labels, **self._labels}, sample.value)
        return made
