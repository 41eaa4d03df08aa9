"""From samples to figures: tokens a second, shares of the limits, ratios with their spread; as JSON has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from karat.bench.accounting import TokenWork
from karat.bench.device_limits import DeviceLimits
from karat.bench.limits import MachineLimits
from karat.bench.sides import Side
from karat.bench.workloads import Series, Workload

SCHEMA = 1  # of the JSON; raised when a key changes its meaning or is removed


def row(workload: Workload, karat: Series, limits: MachineLimits | DeviceLimits | None) -> dict[str, Any]:
    """Karat's figures of one workload. A GPU's limit is what it copies; it has no share of a peak of multiply-adds.

    Rates are of the median sample: bytes and FLOPs of each sample over its seconds. The share of a limit is the rate
    over the limit; `of_roofline` is the share of the nearer one, that is the least time that the two limits allow over
    the time taken.
    """
    samples = karat.samples
    seconds = np.array([sample.seconds for sample in samples])
    works = [sample.work or TokenWork() for sample in samples]
    bytes_, flops = (np.array([getattr(work, name) for work in works], np.float64) for name in ("bytes", "flops"))
    bandwidth, flop_rate = float(np.median(bytes_ / seconds)), float(np.median(flops / seconds))
    shares: dict[str, Any] = {"of_bandwidth": None, "of_fma_peak": None, "of_roofline": None, "bound": None}
    if isinstance(limits, DeviceLimits):
        share = bandwidth / limits.bandwidth
        shares |= {"of_bandwidth": share, "of_roofline": share, "bound": "bandwidth"}
    elif limits:
        least_s = np.maximum(bytes_ / limits.bandwidth, flops / limits.fma_peak)
        shares = {
            "of_bandwidth": bandwidth / limits.bandwidth,
            "of_fma_peak": flop_rate / limits.fma_peak,
            "of_roofline": float(np.median(least_s / seconds)),
            "bound": "bandwidth" if bandwidth / limits.bandwidth > flop_rate / limits.fma_peak else "fma",
        }
    outside = [(sample.seconds - (sample.model_s or 0.0)) / sample.seconds for sample in samples]
    last = works[-1]
    return {
        "name": workload.name,
        "kind": workload.kind,
        "prompt_tokens": workload.prompt_tokens,
        "batch": workload.batch,
        "gen_tokens": workload.gen_tokens,
        **_timing(workload, karat),
        "bytes_per_s": bandwidth,
        "flops_per_s": flop_rate,
        "weight_bytes": last.weight_bytes,
        "cache_bytes": last.cache_bytes,
        "linear_flops": last.linear_flops,
        "attention_flops": last.attention_flops,
        "state_bytes": last.state_bytes,
        "recurrent_flops": last.recurrent_flops,
        **shares,
        "overhead": float(np.median(outside)),
        "peer": None,
    }


def peer_row(workload: Workload, karat: Series, peer: Series) -> dict[str, Any]:
    """The peer's figures, and Karat's speed over the peer's: the median, least and most of the turns' ratios."""
    pairs = zip(karat.turn_seconds, peer.turn_seconds, strict=True)
    ratios = [theirs / ours for ours, theirs in pairs]
    return {
        **_timing(workload, peer),
        "ratio": float(np.median(ratios)),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def limits_object(limits: MachineLimits | DeviceLimits) -> dict[str, Any]:
    if isinstance(limits, DeviceLimits):
        return {
            "device": limits.device_name,
            "bandwidth_bytes_per_s": limits.bandwidth,
            "bandwidth_median_bytes_per_s": limits.bandwidth_median,
            "runs": limits.num_runs,
        }
    pattern = limits.pattern
    return {
        "threads": limits.num_threads,
        "bandwidth_bytes_per_s": limits.bandwidth,
        "fma_peak_flops_per_s": limits.fma_peak,
        "fma_peak_by_build": limits.fma_by_isa,
        "bandwidth_median_bytes_per_s": limits.bandwidth_median,
        "fma_median_flops_per_s": limits.fma_median,
        "best_pattern": {
            "build": pattern.isa,
            "streams": pattern.streams,
            "ahead": pattern.ahead,
            "chunk": pattern.chunk,
        },
        "runs": limits.num_runs,
    }


def side_object(side: Side) -> dict[str, Any]:
    return {"name": side.name, "version": side.version, **side.details}


def _timing(workload: Workload, series: Series) -> dict[str, Any]:
    """Seconds of the median sample and of the turns; tokens a second of the median sample and of the turns."""
    tokens = workload.prompt_tokens if workload.kind == "prefill" else workload.batch
    seconds = float(np.median([sample.seconds for sample in series.samples]))
    turns: Sequence[float] = series.turn_seconds
    return {
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_min": tokens / max(turns),
        "tokens_per_s_max": tokens / min(turns),
        "turn_seconds": list(turns),
    }
