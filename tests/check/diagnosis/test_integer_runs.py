"""Runs whose weights in blocks read integers: right ones within the floor, broken ones named, as sharply as in float32.

Covers: karat.check.model.context, karat.check.model.integers.
"""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the zoo breaks models of transformers")
from karat.check.model.integers import as_integers, moved  # noqa: E402
from karat.check.record.executors import record_model  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.drift import DRIFT_LIMIT, compare  # noqa: E402
from karat.check.replay.finding import LIMIT  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from karat.models.registry import build  # noqa: E402
from karat.ops.integer_reference import IntegerOps  # noqa: E402
from karat.ops.integers import WIDTHS, quantise  # noqa: E402
from karat.quant import CODINGS  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.faults import ROWS  # noqa: E402
from tools.zoo.integers import reading_integers, rounded  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402
from tools.zoo.run import reduced, run_case  # noqa: E402


def by_karat(subject: Subject, width: str) -> Trace:
    model = build(subject.graph.config, IntegerOps(WIDTHS[width]), subject.checkpoint, num_positions=128)
    return record_model(model, subject.steps)


@pytest.mark.drawn(1, each="stored")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stored", CODINGS)
def test_right_runs_stay_within_the_floor(stored: str, width: str) -> None:
    """Of two engines, Karat and transformers; whole traces, and those of layer outputs, whose products' inputs are
    unknown."""
    subject = draw(f"{SEED}-{stored}-{width}", stored=stored, lengths=(12, 20))
    trace = by_karat(subject, width)
    assert (trace.info.activations, trace.info.numeric_contract) == (width, 5)
    with reading_integers(width):
        theirs = record_hf(subject.hf, subject.steps)
    theirs = replace(theirs, info=replace(theirs.info, activations=width))
    for run in (trace, theirs):
        for kind in ("full", "layers", "logits"):
            replay = Replay(subject.graph, subject.weights, reduced(run, kind))
            findings = replay.findings()
            assert findings and not replay.beyond_judging
            assert max(finding.ratio for finding in findings) < LIMIT / 2, f"KARAT_SEED={SEED} {kind}"
        drifts = compare(Replay(subject.graph, subject.weights, run)).drift
        assert max(drift.ratio for drift in drifts) < DRIFT_LIMIT, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize(("seed", "stored"), [("21", "Q4_1"), ("73", "Q5_K")])
def test_a_number_near_a_tie_that_noise_moves_away_may_fall_to_either_side(seed: str, stored: str) -> None:
    """One number that the engine rounded up moves a layer by 1,800 floors in which it was never rounded up."""
    subject = draw(f"{seed}-{stored}-int8", stored=stored, lengths=(12, 20))
    run = reduced(by_karat(subject, "int8"), "layers")
    findings = Replay(subject.graph, subject.weights, run).findings()
    assert max(finding.ratio for finding in findings) < LIMIT / 2


@pytest.mark.parametrize("width", WIDTHS)
def test_the_replay_is_sharp_only_with_the_right_width(width: str) -> None:
    """A run of another width, or of none, is no run of this one; int24 and none are as far apart as roundings."""
    subject = draw(f"{SEED}-{width}", stored="Q8_0", lengths=(12, 20))
    trace = by_karat(subject, width)
    for other in (*WIDTHS, "none"):
        told = Trace(replace(trace.info, activations=other), trace.arrays)
        (finding,) = Replay(subject.graph, subject.weights, told).findings(["model.layers.0.self_attn.q_proj"])
        assert finding.is_wrong == (other != width and {other, width} != {"int24", "none"}), other


@pytest.mark.parametrize("width", ["int8", "int16"])
def test_a_number_near_a_tie_falls_to_either_side(width: str) -> None:
    """Also one that is nearly as large as the block's largest, which the power is made of."""
    rng = np.random.default_rng(int(SEED, 36))
    x = rng.uniform(-1, 1, (500, 32))
    x[:, 7] = rng.choice([-1, 1], 500) * rng.uniform(1.1, 2, 500)
    power = quantise(x.astype(np.float32), WIDTHS[width]).powers[:, 0].astype(np.float64)
    x[:, 3] = (rng.integers(0, np.floor(np.abs(x[:, 7]) / power - 1)) + 0.5) * power
    unit = 2.0**-24 * np.abs(x).max(axis=1, keepdims=True)
    x[:, 3] += 8 * unit[:, 0] * rng.choice([-1, 1], 500)  # as far from the tie as float32 puts a number
    by = 16 * unit * np.ones(32)
    up, down = (np.rint(as_integers(moved(x, sign * by, width), width)[:, 3] / power) for sign in (1, -1))
    assert (up > down).all(), f"KARAT_SEED={SEED}"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_zoo_rounds_as_the_definition(width: str) -> None:
    x = np.random.default_rng(int(SEED, 36)).standard_normal((50, 256)).astype(np.float32)
    x[3, :64], x[4] = 0, np.ldexp(x[4], -120)
    np.testing.assert_array_equal(rounded(torch.from_numpy(x), width).numpy(), as_integers(x.astype(np.float64), width))


@pytest.mark.drawn(8, each="width")
@pytest.mark.parametrize("width", ["int8", "int16"])
@pytest.mark.parametrize("bug", [row.bug for row in ROWS if not row.part])
def test_each_bug_is_named(bug: str, width: str) -> None:
    """tests/check/diagnosis/test_diagnose.py has each of them, on float32, in each run."""
    row = next(row for row in ROWS if row.bug == bug)
    cases = [run_case([row], f"{SEED}-{row.bug}-{width}-0", activations=width)]
    if cases[0] is None or not cases[0].counts:
        cases = [run_case([row], f"{SEED}-{row.bug}-{width}-{index}", activations=width) for index in range(1, 12)]
    case = next((case for case in cases if case is not None and case.counts), None)
    if case is None:
        pytest.skip("no model with weights in blocks can have this bug, or none of 12 shows it")
    assert case.outcome in ("right", "class"), f"KARAT_SEED={SEED}: {case}"


def test_the_head_reads_another_row_as_integers_too() -> None:
    row = next(row for row in ROWS if row.bug == "logits-row")
    case = run_case([row], "111-logits-row-int8-0", activations="int8")
    assert case is not None and (case.said, case.unexplained) == (("logits-row",), ()), case
