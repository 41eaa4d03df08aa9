"""Figures from records: against sums by hand, and NumPy's percentiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.bench.load.asking import AskedRecord
from karat.bench.load.summary import Goals, figures, latencies, ratios, spread
from karat.bench.load.traffic import Run
from karat.errors import UsageError


def record(due: float, events: list[float], *, tokens: int | None = None, error: str | None = None) -> AskedRecord:
    times = [due + at for at in events]
    return AskedRecord(
        due=due,
        sent=due + 0.001,
        ended=(times[-1] if times else due) + 0.01,
        events=times,
        prompt_tokens=10,
        cached_tokens=4,
        output_tokens=len(events) if tokens is None else tokens,
        has_usage=True,
        error=error,
    )


def test_the_figures_of_a_small_run_by_hand() -> None:
    records = [record(0, [0.1, 0.2, 0.4]), record(1, [0.3, 0.5], tokens=5), record(2, [0.1], error="HTTP 503")]
    found = figures([Run(records, 4.0, 0.02)], Goals({"ttft": 0.2}))
    assert (found["requests"], found["completed"], found["errors"]) == (3, 2, {"HTTP 503": 1})
    assert found["requests_per_s"] == 0.5 and found["output_tokens_per_s"] == 8 / 4
    assert found["total_tokens_per_s"] == 28 / 4 and found["tokens_per_event"] == 8 / 5 and found["cached_share"] == 0.4
    assert found["ttft_s"]["mean"] == pytest.approx(0.2) and found["ttft_s"]["max"] == pytest.approx(0.3)
    assert found["tpot_s"]["mean"] == pytest.approx((0.15 + 0.05) / 2), "of tokens, not of events"
    assert found["itl_s"]["p50"] == pytest.approx(0.2) and found["e2e_s"]["max"] == pytest.approx(0.51)
    assert found["goodput"]["requests_per_s"] == 0.25 and found["goodput"]["share"] == pytest.approx(1 / 3)
    assert found["sent_late_s"]["max"] == pytest.approx(0.001)
    assert found["client_s_per_event"] == pytest.approx(0.02 / 6) and found["client_share"] == pytest.approx(0.005)


def test_runs_are_taken_together_over_their_own_seconds() -> None:
    runs = [Run([record(0, [0.1])], 1.0, 0), Run([record(50, [0.3])], 3.0, 0)]
    assert figures(runs, Goals())["requests_per_s"] == 0.5 and figures(runs, Goals())["ttft_s"][
        "mean"
    ] == pytest.approx(0.2)


def test_nothing_answered_has_no_latencies() -> None:
    found = figures([Run([record(0, [], error="x")], 1.0, 0)], Goals())
    assert found["ttft_s"] is found["itl_s"] is found["tokens_per_event"] is found["goodput"] is None
    assert found["requests_per_s"] == 0


def test_one_token_has_no_time_per_further_token() -> None:
    assert latencies(record(0, [0.1]))["tpot"] is None
    assert Goals({"tpot": 0.001}).are_met(record(0, [0.1]))


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=40))
def test_percentiles_are_numpys(values: list[float]) -> None:
    found = spread(values)
    assert found is not None and found["max"] == max(values)
    assert [found[f"p{rank}"] for rank in (50, 90, 95, 99)] == np.percentile(values, [50, 90, 95, 99]).tolist()


def test_ratios_are_turn_by_turn() -> None:
    def turn(rate: float, ttft: float) -> dict[str, object]:
        latency = {"p50": ttft, "p99": ttft}
        return {"output_tokens_per_s": rate, "ttft_s": latency, "tpot_s": None, "itl_s": latency, "e2e_s": latency}

    found = ratios([(turn(20, 1), turn(10, 4)), (turn(10, 1), turn(10, 1)), (turn(30, 1), turn(10, 2))])
    assert found["output_tokens_per_s"] == {"median": 2, "min": 1, "max": 3}
    assert found["ttft_p50"] == {"median": 0.5, "min": 0.25, "max": 1} and found["tpot_p50"] is None


def test_goals() -> None:
    assert Goals.parse(["ttft:500", "e2e:2000.5"]).seconds == {"ttft": 0.5, "e2e": 2.0005}
    for text in ("ttft", "ttft:", "ttft:0", "ttft:-1", "itl:5", "ttft:nan", "e2e:inf"):
        with pytest.raises(UsageError, match="--goodput"):
            Goals.parse([text])
    slow, failed = record(0, [0.5]), record(0, [0.1], error="x")
    goals = Goals({"ttft": 0.5})
    assert goals.are_met(slow) and not Goals({"ttft": 0.4999}).are_met(slow) and not goals.are_met(failed)
