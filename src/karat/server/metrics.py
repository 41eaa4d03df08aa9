"""Metrics: the contents of /metrics, in Prometheus' form."""

from collections.abc import Sequence
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from karat.server.answers.tally import UpdateTally
from karat.server.request_log import add_facts
from karat.server.vllm_metrics import VllmNames

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The metrics of one server, in a registry of its own, and again under vLLM's names for `model_name`."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._vllm = CollectorRegistry()
        self._vllm.register(VllmNames(self._registry, model_name))
        at = self._registry
        self._first = Histogram(
            "karat_time_to_first_token_seconds", "From request to first token", registry=at, buckets=_SECONDS
        )
        self._gap = Histogram(
            "karat_inter_token_latency_seconds", "Between updates of a request", registry=at, buckets=_GAPS
        )
        self._whole = Histogram("karat_request_seconds", "From request to its end", registry=at, buckets=_SECONDS)
        self._requests = Counter("karat_requests", "Requests that ended, by how", ["end"], registry=at)
        self._prompt_tokens = Counter("karat_prompt_tokens", "Tokens of prompts", registry=at)
        self._cached_tokens = Counter("karat_prompt_tokens_cached", "Of these, those found in the cache", registry=at)
        self._answer_tokens = Counter("karat_generation_tokens", "Tokens of answers", registry=at)
        self._device = Gauge("karat_device", "Where the engine computes: 1", ["device"], registry=at)
        self._gauges: dict[str, Gauge] = {}
        self._open: WeakSet[UpdateTally] = WeakSet()  # none is kept by this alone

    def tally(self, prompt_lens: Sequence[int]) -> UpdateTally:
        """The tally of a new request, whose times these metrics observe."""
        tally = UpdateTally(prompt_lens, self._first.observe)
        self._open.add(tally)
        return tally

    def ended(self, tally: UpdateTally, how: str) -> None:
        """Count a request that ended, also in its line of the log; `how` is ok, error or gone."""
        self._observe_gaps(tally)
        self._open.discard(tally)
        self._requests.labels(how).inc()
        self._whole.observe(tally.elapsed_s)
        self._prompt_tokens.inc(sum(tally.prompt_lens))
        self._cached_tokens.inc(sum(tally.num_cached))
        self._answer_tokens.inc(tally.num_tokens)
        add_facts(
            prompt_tokens=sum(tally.prompt_lens),
            cached_tokens=sum(tally.num_cached),
            output_tokens=tally.num_tokens,
            end=how,
        )

    def page(self, gauges: dict[str, tuple[str, float]], device: str | None = None) -> bytes:
        """The page. `gauges` are the engine's counters now: name -> explanation and value; `device` is where it
        computes, None without an engine.
        """
        if device is not None:
            self._device.labels(device).set(1)
        for tally in list(self._open):
            self._observe_gaps(tally)
        for name, (text, value) in gauges.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, text, registry=self._registry)
            self._gauges[name].set(value)
        return bytes(generate_latest(self._registry) + generate_latest(self._vllm))

    def _observe_gaps(self, tally: UpdateTally) -> None:
        """Now and not with each token, which this would make a good part dearer."""
        for gap in tally.take_gaps():
            self._gap.observe(gap)
