"""A mistake of all layers is said to be in all, and where of these it cannot be seen."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.explain import _moved  # noqa: E402
from karat.check.diagnosis.verdict import Diagnosis  # noqa: E402
from karat.check.diagnosis.wording import diagnosis_lines  # noqa: E402
from karat.check.mistakes.catalogue import Variant  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from tests.support import mistakes  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402
from tools.zoo.run import reduced  # noqa: E402

CHANGES = {"num_hidden_layers": 3, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "mlp_bias": False}


@pytest.fixture
def subject() -> Subject:
    """What the first MLP adds is so large that no later norm's eps counts."""
    return draw(f"{SEED}-floor", family="llama", steps="whole", changes=CHANGES, gain=1e3, lengths=(24, 32))


def _diagnosis(subject: Subject) -> tuple[Diagnosis, str]:
    trace = reduced(record_hf(subject.hf, subject.steps), "layers")
    diagnosis = Diagnoser(subject.graph, subject.weights, trace).run()
    return diagnosis, "\n".join(diagnosis_lines(diagnosis, subject.graph, trace.info))


def test_what_the_floor_hides_is_said_beside_what_shows(subject: Subject) -> None:
    for name, module in subject.hf.named_modules():
        if name.endswith("norm"):
            module.variance_epsilon = 1e-3
    diagnosis, text = _diagnosis(subject)
    (named,) = diagnosis.named
    assert named.bugs == {"norm-eps"} and named.places == ("model.layers.0",), f"KARAT_SEED={SEED}"
    assert named.hidden == ("model.layers.1", "model.layers.2", "lm_head"), f"KARAT_SEED={SEED}"
    assert "all layers: layer in layer 0; below the floor in layer in layers 1-2, lm_head" in text


def test_nothing_is_hidden_where_a_right_result_would_show_it(subject: Subject) -> None:
    mlp = subject.hf.model.layers[1].mlp
    mlp.gate_proj.weight.data, mlp.up_proj.weight.data = mlp.up_proj.weight.data, mlp.gate_proj.weight.data
    diagnosis, text = _diagnosis(subject)
    (named,) = diagnosis.named
    assert named.bugs == {"gate-up-swapped"} and named.hidden == (), f"KARAT_SEED={SEED}"
    assert "below the floor" not in text


def test_an_element_is_moved_to_weights_of_its_shape_alone() -> None:
    """Layers of Gemma 4 have K of two sizes: a row of the larger one is none of the smaller."""
    graph, weights = mistakes.model_of("gemma4_text")
    nodes = [node for node in graph.nodes.values() if node.role == "self_attn.k_proj"]
    rows = [weights.shape(node.params["weight"])[0] for node in nodes]
    largest, smallest = (nodes[rows.index(size)] for size in (max(rows), min(rows)))
    assert max(rows) > min(rows)
    one = Variant("weight-element", "one", {largest.name: {"elements": ((max(rows) - 1, 0, 1.0),)}}, fitted=True)
    factor = Variant("rope-scale", "two", {largest.name: {"output_factor": 2.0}}, fitted=True)
    replay: Any = SimpleNamespace(graph=graph, context=SimpleNamespace(weights=weights))
    for variant, expected in ((one, None), (factor, {smallest.name: {"output_factor": 2.0}})):
        found = _moved(variant, replay, [smallest.layer], [smallest.name])
        assert (None if found is None else found.edits) == expected
    assert _moved(one, replay, [largest.layer], [largest.name]) == one
