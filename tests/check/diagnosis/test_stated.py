"""Positions that an engine states wrongly are judged, and said."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.stated import position_lines  # noqa: E402
from karat.check.diagnosis.wording import diagnosis_lines  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.trace.format import Trace, make_info  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.models import draw  # noqa: E402


def test_positions_that_are_stated_and_used_are_named_as_they_are_stated() -> None:
    """Any positions: here a token of a decode step has twice its own."""
    subject = draw(f"{SEED}-stated", family="llama", steps="decode", changes={"num_hidden_layers": 1})
    begin, length = subject.steps.cuts[1], len(subject.steps.prompt)
    stated = tuple(position if position < begin else 2 * position for position in range(length))
    rotary, at = subject.hf.model.rotary_emb, torch.tensor(stated)
    right = rotary.forward
    rotary.forward = lambda x, position_ids: right(x, at[position_ids])
    trace = record_hf(subject.hf, subject.steps)
    info = replace(trace.info, positions=stated)
    diagnosis = Diagnoser(subject.graph, subject.weights, Trace(info, trace.arrays), seconds=1).run()
    text = "\n".join(diagnosis_lines(diagnosis, subject.graph, info))
    assert [named.bugs for named in diagnosis.named] == [{"rope-position"}] and not diagnosis.unexplained, text
    assert "the positions that the trace states" in text
    assert f"positions: the trace states {2 * begin} for token {begin}" in text, text


def test_right_positions_are_not_mentioned_and_another_sequence_is_asked_for() -> None:
    assert position_lines(make_info([1, 2, 3], sequences=(0, 1, 0))) == []
    (line,) = position_lines(make_info([1, 2, 3, 4], positions=(0, 1, 0, 1), steps=(0, 2)))
    assert line.startswith("positions: the trace states 0 for token 2 (position 0, step 1), which is number 2 of its")
    assert line.endswith("if another sequence begins there, state `sequences`")
