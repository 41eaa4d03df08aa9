"""Runs on weights in every block format: a right one gets no name, one that reads its blocks wrongly the right one."""

from contextlib import ExitStack

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser
from karat.quant import FORMATS

pytest.importorskip("torch", reason="the zoo breaks models of transformers")
from karat.check.record.hf import record_hf
from tests.support.seed import SEED
from tools.zoo.faults_quant import MINIMA, NIBBLES, SCALES, ZERO, Mistakes, quant
from tools.zoo.healthy import KINDS, one_run
from tools.zoo.models import draw
from tools.zoo.placeholder_blocks import placeholder

ROWS: dict[str, Mistakes] = {
    "quant-nibbles": NIBBLES,
    "quant-zero": ZERO,
    "quant-min-sign": MINIMA,
    "quant-scale": SCALES,
}
READ_ONLY = [name for name, format_ in FORMATS.items() if format_.pack is None]


@pytest.mark.parametrize("stored", READ_ONLY)
def test_placeholder_blocks_are_finite_and_as_large_as_what_they_stand_for(stored: str) -> None:
    values = np.random.default_rng(int(SEED, 36)).standard_normal((64, FORMATS[stored].block_size), np.float32)
    values *= np.float32(0.06)  # NVFP4 has this size whatever it stands for
    blocks = placeholder(FORMATS[stored], values)
    got = FORMATS[stored].dequantize(blocks)
    assert np.isfinite(got).all() and len(np.unique(blocks[:, 8:])) > 200
    sizes = np.sqrt((got**2).mean(axis=1)) / 0.06
    assert sizes.min() > 0.5 and sizes.max() < 2, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize("stored", READ_ONLY)
def test_a_right_run_on_a_format_without_a_writer_gets_no_name(stored: str) -> None:
    for side in ("native", "transformers"):
        assert f"{stored} {side}" in KINDS
        ratio, wrong = one_run(f"{stored} {side}", f"{SEED}-{stored}-{side}")
        assert not wrong and 0 < ratio < 10, f"KARAT_SEED={SEED}: {wrong}"


CASES = [(bug, stored, i) for bug, row in ROWS.items() for stored in row for i in range(len(row[stored]))]


@pytest.mark.drawn(1, each=("bug", "stored"))
@pytest.mark.parametrize(("bug", "stored", "index"), CASES)
def test_every_mistake_in_every_format_is_named(bug: str, stored: str, index: int) -> None:
    """All linear weights, or those of one kind, as chance will have it."""
    mistake = ROWS[bug][stored][index]
    subject = draw(f"{SEED}-{bug}-{stored}-{index}", stored=stored, lengths=(16, 24))
    with ExitStack() as stack:
        quant({stored: [mistake]})(subject, stack)
        trace = record_hf(subject.hf, subject.steps)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace, seconds=1).run()
    names = {bug for named in diagnosis.named for each in named.classes for bug in each}
    assert names == {bug} and not diagnosis.unexplained, f"KARAT_SEED={SEED} {mistake}: {names}"
    assert any(detail.split(": ", 1)[1].find(stored) >= 0 for named in diagnosis.named for detail in named.details)
