"""What a trace leaves out and an engine does all the same is no bug, and no name is further away than none.

Covers: karat.check.diagnosis.explain, karat.check.diagnosis.verdict.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM
from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.explain import Explainer
from karat.check.diagnosis.verdict import BugExplanation, Diagnosis
from karat.check.diagnosis.wording import diagnosis_lines
from karat.check.mistakes.catalogue import Variant
from karat.check.model.checked import CheckedModel, open_model
from karat.check.model.context import Context
from karat.check.model.evaluate import evaluate
from karat.check.model.rounding import rounded
from karat.check.model.tokens import Tokens
from karat.check.record.executors import Steps, record
from karat.check.replay.finding import F64, Finding
from karat.check.trace.format import Array, Trace, make_info
from karat.ops.native import NativeOps
from tests.support.parallel import config_of, write

IDS = (1, 403, 27, 88, 300, 12, 5, 77, 511, 3, 3, 60)
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16}


BUDGET_S = 8.0 if "KARAT_LONG" in os.environ else 4.0  # of a search that has to find nothing
ENOUGH = 120.0  # seconds for what has to be found, on a machine that is busy with other work too


def said(model: CheckedModel, trace: Trace, *, budget: float = BUDGET_S, **options: Any) -> tuple[Diagnosis, str]:
    diagnosis = Diagnoser(model.graph, model.weights("float32"), trace, seconds=1, budget=budget, **options).run()
    return diagnosis, "\n".join(diagnosis_lines(diagnosis, model.graph, trace.info))


def layer_outputs(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: x for name, x in arrays.items() if name.count(".") == 2 or name == "model.embed_tokens"}


def test_a_float16_cache_that_is_not_stated_is_said_and_no_bug() -> None:
    """Logits as the writer of docs/trace-format.md writes them, without kv_dtype."""
    model = open_model(None)
    ids = [1, 403, 27]
    diagnosis, text = said(model, Trace(make_info(ids), {"lm_head": LLM().logits(ids)}))
    assert diagnosis.is_healthy, text
    assert "verdict: numerics" in text and "explained by a float16 cache, which the trace does not state" in text
    assert 'state kv_dtype="float16"' in text


def test_scores_of_a_float16_cache_are_no_bug_in_a_full_trace() -> None:
    model = open_model(None)
    trace = record(model.config, model.checkpoint, NativeOps(), Steps(IDS), with_digest=False)
    left_out = replace(trace.info, kv_dtype=None, executor="unknown")
    diagnosis, text = said(model, Trace(left_out, trace.arrays))
    assert diagnosis.is_healthy and diagnosis.assumed is not None and diagnosis.assumed.kv_dtype == "float16", text


def logits_of(model: CheckedModel, ids: tuple[int, ...]) -> Array:
    """As an engine gives them whose cache is of float16."""
    run = record(model.config, model.checkpoint, NativeOps(), Steps(ids), kv_dtype="float16", with_digest=False)
    return np.array(run.arrays["lm_head"])


def test_what_is_stated_is_believed(tmp_path: Path) -> None:
    """A cache that is said to round nothing, and rounds, is a mistake; and no name fits it."""
    model = open_model(str(write(tmp_path / "m", config_of("llama") | SMALL, "F32")))
    ids = (1, 403, 27)
    trace = Trace(make_info(ids, kv_dtype="float32"), {"lm_head": logits_of(model, ids)})
    diagnosis, text = said(model, trace)
    assert not diagnosis.is_healthy and not diagnosis.named and diagnosis.assumed is None, text
    assert "a float16 cache would explain it, and the trace states kv_dtype='float32'" in text


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stated", [True, False])
def test_a_mistake_beside_a_cache_that_is_not_stated_is_named(stated: bool, tmp_path: Path) -> None:
    """Another base, which only a search finds, in each layer; layer outputs are all there is."""
    model = open_model(str(write(tmp_path / "m", config_of("llama") | CONFIG, "F32")))
    wrong = replace(model.config, rope=replace(model.config.rope, theta=3333.0))
    trace = record(wrong, model.checkpoint, NativeOps(), Steps(IDS), kv_dtype="float16", with_digest=False)
    info = trace.info if stated else replace(trace.info, kv_dtype=None, executor="unknown")
    lines: list[str] = []
    diagnosis, text = said(model, Trace(info, layer_outputs(trace.arrays)), budget=ENOUGH, say=lines.append)
    assert [named.bugs for named in diagnosis.named] == [{"rope-theta"}] and not diagnosis.unexplained, text
    assert diagnosis.named[0].places == tuple(f"model.layers.{i}" for i in range(4)), text
    assert "theta 3333 instead of 10000" in text
    assert ("taken for granted: a float16 cache" in text) == (not stated)
    assert lines[0].startswith("located: model.layers.0, layer 0 of 4 is the first result")


def test_what_is_wrong_in_all_layers_takes_one_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of the first layer is tried before all others in the next; each layer took a search of its own."""
    model = open_model(str(write(tmp_path / "m", config_of("llama") | CONFIG, "F32")))
    wrong = replace(model.config, rope=replace(model.config.rope, theta=500000.0))
    trace = record(wrong, model.checkpoint, NativeOps(), Steps(IDS), with_digest=False)
    tried: list[str] = []
    attempt = Explainer.attempt

    def counted(self: Explainer, finding: Finding, variants: tuple[Variant, ...]) -> BugExplanation | None:
        tried.append(finding.name)
        return attempt(self, finding, variants)

    monkeypatch.setattr(Explainer, "attempt", counted)
    diagnosis, text = said(model, Trace(trace.info, layer_outputs(trace.arrays)), budget=ENOUGH)
    assert [named.bugs for named in diagnosis.named] == [{"rope-theta"}], text
    counts = [tried.count(f"model.layers.{index}") for index in range(4)]
    assert counts[0] > 100 and max(counts[1:]) < 5, counts


def test_what_was_not_tried_is_said_when_the_time_is_up(tmp_path: Path) -> None:
    model = open_model(str(write(tmp_path / "m", config_of("llama") | CONFIG, "F32")))
    wrong = replace(model.config, rope=replace(model.config.rope, theta=500000.0))
    trace = record(wrong, model.checkpoint, NativeOps(), Steps(IDS), with_digest=False)
    lines: list[str] = []
    left_out = replace(trace.info, kv_dtype=None, executor="unknown")
    for info in (trace.info, left_out):
        diagnoser = Diagnoser(
            model.graph,
            model.weights("float32"),
            Trace(info, layer_outputs(trace.arrays)),
            budget=1e-9,
            say=lines.append,
        )
        diagnosis = diagnoser.run()
        text = "\n".join(diagnosis_lines(diagnosis, model.graph, trace.info))
        assert lines[0].startswith("located: model.layers.0") and "verdict: bug" in text
        assert "layer in layers " in text and "no mistake was tried there, as the time was up" in text, text


def ggml_run(model: CheckedModel) -> dict[str, Array]:
    """Every result as an engine makes it that rounds the inputs of products to 8 bits in blocks of 32."""
    info = make_info(IDS)
    weights = model.weights("float32")
    context = Context(weights, Tokens.of(info), np.arange(len(IDS)))
    values: dict[str, Array] = {}
    for name, node in model.graph.nodes.items():
        inputs = [values[source] for source in node.inputs]
        if node.kind == "linear" and weights.stored_type(node.params["weight"]) == "Q8_0":
            x = inputs[0].reshape(len(IDS), -1, 32)
            scale = np.abs(x).max(axis=-1, keepdims=True) / 127
            inputs = [(np.rint(x / np.where(scale == 0, 1, scale)) * rounded(scale, "float16")).reshape(len(IDS), -1)]
        values[name] = evaluate(node, inputs, context, F64)
    return {name: x.astype(np.float32) for name, x in values.items()}


@pytest.mark.parametrize("layers_only", [True, False])
def test_an_engine_that_rounds_activations_is_asked_for(layers_only: bool, tmp_path: Path) -> None:
    model = open_model(str(write(tmp_path / "m", config_of("llama") | CONFIG, "Q8_0")))
    arrays = ggml_run(model)
    trace = Trace(make_info(IDS), layer_outputs(arrays) if layers_only else arrays)
    diagnosis, text = said(model, trace)
    assert diagnosis.is_undecided and "verdict: undecided; if the engine rounds activations, the largest" in text, text
    assert "is this an engine that rounds activations, as llama.cpp does?" in text
    assert 'State activations="ggml" then' in text
    stated = Trace(replace(trace.info, activations="ggml"), trace.arrays)
    diagnosis, text = said(model, stated)
    assert diagnosis.is_healthy and not diagnosis.is_undecided and diagnosis.assumed is None, text


def test_activations_that_are_said_not_to_be_rounded_are_not_taken_for_rounded(tmp_path: Path) -> None:
    model = open_model(str(write(tmp_path / "m", config_of("llama") | CONFIG, "Q8_0")))
    arrays = {name: x for name, x in ggml_run(model).items() if name in ("model.layers.1", "model.layers.2")}
    for stated, is_undecided in ((None, True), ("none", False)):
        diagnosis, text = said(model, Trace(make_info(IDS, activations=stated), arrays), budget=1e-9)
        assert diagnosis.is_undecided == is_undecided and diagnosis.is_healthy == is_undecided, text
        assert ("is this an engine" in text) == is_undecided


def test_a_mistake_at_one_place_is_not_taken_for_rounded_activations(tmp_path: Path) -> None:
    """One row of one product is off by as much as such rounding makes it; all others are right."""
    model = open_model(str(write(tmp_path / "m", config_of("llama") | CONFIG, "Q8_0")))
    trace = record(model.config, model.checkpoint, NativeOps(), Steps(IDS), with_digest=False)
    arrays = {name: np.array(x) for name, x in trace.arrays.items()}
    wrong = arrays["model.layers.2.mlp.up_proj"]
    wrong += 0.004 * np.abs(wrong).max() * np.random.default_rng(3).uniform(-1, 1, wrong.shape).astype(np.float32)
    for executor in ("unknown", trace.info.executor):
        diagnosis, text = said(model, Trace(replace(trace.info, executor=executor), arrays))
        if executor == "unknown":
            assert "first guess" not in text
        assert not diagnosis.is_healthy or "of an engine that does not, it is a bug" in text, text


@pytest.mark.drawn(1)
@pytest.mark.parametrize("size", [1e-3, 4e-3])
@pytest.mark.parametrize("is_small", [True, pytest.param(False, marks=pytest.mark.long)])
def test_no_name_is_further_away_than_none(is_small: bool, size: float, tmp_path: Path) -> None:
    """Results beside a mistake that has a high floor of its own: the name has to bring them closer."""
    model = open_model(str(write(tmp_path / "m", config_of("llama") | SMALL, "F32")) if is_small else None)
    rng = np.random.default_rng(5)
    ids = (1, 403, 27)
    logits = logits_of(model, ids)
    noisy = logits + size * rng.standard_normal(logits.shape).astype(np.float32)
    trace = Trace(make_info(ids, kv_dtype="float16"), {"lm_head": noisy})
    diagnosis, text = said(model, trace)
    for named in diagnosis.named:
        for explanation in named.first.explanations:
            assert explanation.error * 3 <= named.first.finding.error, text
    assert not diagnosis.named, text
