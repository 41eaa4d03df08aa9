"""Traces of transformers' LFM2, whose modules have names of their own: one pass without a cache, or one with its own.

Covers: karat.check.record.hf_modules.
"""

import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from transformers import DynamicCache  # noqa: E402

from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.record.hf_modules import mixers_of, refuse_other_modules  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.errors import ExecutorError  # noqa: E402
from tools.zoo.models import draw  # noqa: E402


@pytest.mark.drawn(2)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("family", ["lfm2", "lfm2_moe"])
def test_every_part_is_recorded_and_right(family: str, cached: bool) -> None:
    """Steps are as stated where a cache is given; without one all tokens are computed in one step."""
    subject = draw(f"short convolutions-{family}-{cached}", family=family, steps="mixed")
    assert mixers_of(subject.hf) == {"conv", "self_attn"}
    cache = DynamicCache(config=subject.hf.config) if cached else None
    trace = record_hf(subject.hf, subject.steps, cache=cache)
    assert trace.info.steps == (subject.steps.cuts if cached else (0,))
    names = {node.name for node in subject.graph.nodes.values()} - {"model.selected"}
    inside = {name for name in names if name.endswith((".conv.before", ".conv.after", ".conv.x"))}
    assert trace.arrays.keys() >= names - inside and trace.arrays.keys().isdisjoint(inside)
    findings = Replay(subject.graph, subject.weights, trace).findings()
    parts = {finding.name.rpartition(".conv.")[2] for finding in findings if ".conv." in finding.name}
    assert parts >= {"in_proj", "gated_x", "conv", "gated", "out_proj"}
    assert not [finding for finding in findings if finding.is_wrong]


def test_other_models_are_refused_by_what_they_lack() -> None:
    subject = draw("refused", family="llama")
    del subject.hf.model.norm
    with pytest.raises(ExecutorError, match=r"it has no norm; .* as Llama's are, or LFM2's"):
        refuse_other_modules(subject.hf)
