"""From the records of a load to figures, as JSON has them. Times are seconds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np

from karat.bench.load.asking import AskedRecord
from karat.bench.load.traffic import Run
from karat.errors import UsageError

PERCENTILES = (50, 90, 95, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Goals:
    """The seconds that a request may take at most, by latency: what goodput counts."""

    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Of texts such as `ttft:500`, in milliseconds. Raises UsageError."""
        found: dict[str, float] = {}
        for text in texts:
            name, _, number = text.partition(":")
            try:
                found[name] = float(number) / 1000
            except ValueError:
                found[name] = 0
            if name not in ("ttft", "tpot", "e2e") or not 0 < found[name] < float("inf"):
                raise UsageError(f"--goodput {text}: expected ttft:MS, tpot:MS or e2e:MS, such as ttft:500")
        return cls(found)

    def are_met(self, record: AskedRecord) -> bool:
        """A request of one token has no TPOT, which then meets every goal; a failed request meets none."""
        if record.error is not None:
            return False
        taken = latencies(record)
        return all((taken[name] or 0) <= most for name, most in self.seconds.items())


def latencies(record: AskedRecord) -> dict[str, float | None]:
    """Of a request without error.

    ttft: until the first text. tpot: from there to the last text, for each further token. e2e: until the end.
    """
    further = record.output_tokens - 1
    return {
        "ttft": record.events[0] - record.due,
        "tpot": (record.events[-1] - record.events[0]) / further if further > 0 else None,
        "e2e": record.ended - record.due,
    }


def figures(runs: Sequence[Run], goals: Goals) -> dict[str, Any]:
    """The figures of runs of one load on one server, taken together. Latencies are of the requests without error."""
    records = [record for run in runs for record in run.records]
    whole = [record for record in records if record.error is None]
    seconds = sum(run.seconds for run in runs)
    times = [latencies(record) for record in whole]
    taken = {name: [one[name] for one in times if one[name] is not None] for name in ("ttft", "tpot", "e2e")}
    gaps = [after - before for record in whole for before, after in pairwise(record.events)]
    num_output, num_events = (sum(map(size, whole)) for size in (_output_tokens, _events))
    prompts = [record for record in whole if record.prompt_tokens is not None]
    num_prompt = sum(record.prompt_tokens or 0 for record in prompts)
    cached = [record for record in prompts if record.cached_tokens is not None]
    num_cached, of_tokens = (sum(getattr(one, name) for one in cached) for name in ("cached_tokens", "prompt_tokens"))
    return {
        "requests": len(records),
        "completed": len(whole),
        "errors": dict(Counter(record.error for record in records if record.error is not None).most_common()),
        "seconds": seconds,
        "requests_per_s": _rate(len(whole), seconds),
        "conversations_per_s": _rate(sum(record.turn == 0 for record in whole), seconds),
        "output_tokens_per_s": _rate(num_output, seconds),
        "total_tokens_per_s": _rate(num_output + num_prompt, seconds) if len(prompts) == len(whole) else None,
        "prompt_tokens": num_prompt if prompts else None,
        "output_tokens": num_output,
        "events": num_events,
        "tokens_per_event": _rate(num_output, num_events),
        "without_usage": sum(not record.has_usage for record in whole),
        "cached_share": num_cached / of_tokens if of_tokens else None,
        "ttft_s": spread(taken["ttft"]),
        "tpot_s": spread(taken["tpot"]),
        "itl_s": spread(gaps),
        "e2e_s": spread(taken["e2e"]),
        "goodput": _goodput(records, seconds, goals),
        "sent_late_s": spread([record.sent - record.due for record in records]),
        "client_s_per_event": _rate(sum(run.client_s for run in runs), sum(map(_events, records))),
        "client_share": _rate(sum(run.client_s for run in runs), seconds),
    }


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, percentiles (between two values by a straight line) and the largest; None without values."""
    if not values:
        return None
    found = np.array(values, np.float64)
    ranks = np.percentile(found, PERCENTILES)
    named = {f"p{rank}": float(value) for rank, value in zip(PERCENTILES, ranks, strict=True)}
    return {"mean": float(found.mean()), **named, "max": float(found.max())}


def ratios(turns: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Of the first server's figures to the second's, turn by turn: median, least and most. None: no figure there."""
    found: dict[str, Any] = {}
    for name, path in _COMPARED.items():
        pairs = [(_at(ours, path), _at(theirs, path)) for ours, theirs in turns]
        values = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
        found[name] = {"median": float(np.median(values)), "min": min(values), "max": max(values)} if values else None
    return found


_COMPARED = {
    "output_tokens_per_s": ("output_tokens_per_s",),
    **{f"{name}_{rank}": (f"{name}_s", rank) for name in LATENCIES for rank in ("p50", "p99")},
}


def _at(figures: Mapping[str, Any], path: Sequence[str]) -> float | None:
    found: Any = figures
    for name in path:
        found = None if found is None else found[name]
    return None if found is None else float(found)


def _goodput(records: Sequence[AskedRecord], seconds: float, goals: Goals) -> dict[str, Any] | None:
    if not goals.seconds:
        return None
    good = sum(map(goals.are_met, records))
    return {
        "goals_s": dict(goals.seconds),
        "requests_per_s": _rate(good, seconds),
        "share": _rate(good, len(records)),
    }


def _rate(amount: float, of: float) -> float | None:
    return amount / of if of > 0 else None


def _output_tokens(record: AskedRecord) -> int:
    return record.output_tokens


def _events(record: AskedRecord) -> int:
    return len(record.events)
