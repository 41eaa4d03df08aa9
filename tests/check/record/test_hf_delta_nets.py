"""Traces of transformers' models with recurrent layers: one pass without a cache, or one with its own cache."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from transformers import DynamicCache  # noqa: E402

from karat.check.record.executors import Steps  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.finding import LIMIT  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tests.support.thinning import thinned  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

FAMILIES = ("qwen3_5_text", "qwen3_5_moe_text")


def a_hybrid(family: str, steps: str) -> Subject:
    """With both kinds of layers, of which the first has a state."""
    changes = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
    return draw(f"{SEED}-{family}-{steps}", family=family, steps=steps, changes=changes)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_are_decoded_are_in_the_pass_of_all(family: str) -> None:
    subject = a_hybrid(family, "chunks")
    trace = record_hf(subject.hf, Steps(subject.steps.prompt, subject.steps.cuts, decode=3))
    ids = list(subject.steps.prompt)
    with torch.no_grad():
        for _ in range(3):
            ids.append(int(subject.hf(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        logits = subject.hf(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert (list(trace.info.token_ids), trace.info.steps) == (ids, (0,))
    assert trace.info.generated == tuple(ids[-3:]) and trace.info.sampling == {"temperature": 0}
    np.testing.assert_array_equal(trace.arrays["lm_head"], logits)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_cache_that_is_given_steps_are_as_stated(family: str) -> None:
    """Transformers 5.24 keeps its states, so the results are those of one pass, within what float32 rounds."""
    subject = a_hybrid(family, "mixed")
    whole = record_hf(subject.hf, subject.steps)
    stepwise = record_hf(subject.hf, subject.steps, cache=DynamicCache(config=subject.hf.config))
    assert stepwise.info.steps == subject.steps.cuts and stepwise.arrays.keys() == whole.arrays.keys()
    findings = Replay(subject.graph, subject.weights, stepwise).findings()
    names = {finding.name for finding in findings if ".linear_attn." in finding.name}
    parts = {name.rpartition(".")[2] for name in names}
    assert parts >= {"conv", "q", "k", "v", "k_normed", "decay", "beta", "delta", "norm", "out_proj"}
    assert not [finding for finding in findings if finding.is_wrong], f"KARAT_SEED={SEED}"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_of_chosen_tokens_a_state_is_made_of_all_before(family: str) -> None:
    subject = a_hybrid(family, "whole")
    trace = thinned(record_hf(subject.hf, subject.steps), random.Random(SEED), "tokens")
    findings = Replay(subject.graph, subject.weights, trace).findings()
    delta = [finding for finding in findings if finding.name.endswith("linear_attn.delta")]
    assert delta and max(finding.ratio for finding in findings) < LIMIT, f"KARAT_SEED={SEED}"
