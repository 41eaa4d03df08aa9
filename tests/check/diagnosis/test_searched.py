"""What layer outputs alone tell: numbers that show where a result begins to be wrong, and two mistakes at one place.

Covers: karat.check.diagnosis.pairs.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.model.graph import Edits  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

NUM_LAYERS = 3


@pytest.fixture(scope="module")
def subject() -> Subject:
    changes = {
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "mlp_bias": False,
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return draw(f"{SEED}-searched", family="llama", steps="whole", changes=changes, lengths=(16, 24))


def _said(subject: Subject, mistakes: Callable[[int], Edits]) -> list[tuple[set[str], tuple[str, ...]]]:
    """The names, and the results where each shows, of an engine with these mistakes in its layers."""
    trace = record_hf(subject.hf, subject.steps)
    arrays = {"model.embed_tokens": trace.arrays["model.embed_tokens"]}
    info = replace(trace.info, kv_dtype="float32")
    for layer in range(NUM_LAYERS):
        name = f"model.layers.{layer}"
        replay = Replay(subject.graph, subject.weights, Trace(info, arrays | {name: trace.arrays[name]}))
        arrays[name] = replay.run(replay.segment(name), mistakes(layer)).astype(np.float32)
    diagnosis = Diagnoser(subject.graph, subject.weights, Trace(info, arrays), seconds=5).run()
    assert not diagnosis.unexplained, f"KARAT_SEED={SEED}"
    return [(set(named.bugs), named.places) for named in diagnosis.named]


def _in_attention(*nodes: str, **params: object) -> Callable[[int], Edits]:
    return lambda layer: {f"model.layers.{layer}.self_attn.{node}": params for node in nodes}


@pytest.mark.parametrize(
    ("bug", "mistakes"),
    [
        ("rope-position", _in_attention("q_rope", "k_rope", positions=("clipped", 7))),
        ("rope-position", _in_attention("q_rope", "k_rope", positions=("wrapped", 9))),
        ("mask-window", _in_attention("scores", window=6)),
        ("kv-dtype", _in_attention("scores", "attention", stored_as="float16")),
    ],
)
def test_what_begins_somewhere_is_named_from_layer_outputs(
    subject: Subject, bug: str, mistakes: Callable[[int], Edits]
) -> None:
    places = tuple(f"model.layers.{layer}" for layer in range(NUM_LAYERS))
    assert _said(subject, mistakes) == [({bug}, places)], f"KARAT_SEED={SEED}"


def test_a_mistake_of_one_layer_is_named_beside_one_of_all(subject: Subject) -> None:
    def mistakes(layer: int) -> Edits:
        name = f"model.layers.{layer}"
        scale = {f"{name}.self_attn.scores": {"scale": 1.0}}
        gate, up = (subject.graph.nodes[f"{name}.mlp.{part}_proj"].params["weight"] for part in ("gate", "up"))
        swapped = {f"{name}.mlp.gate_proj": {"weight": up}, f"{name}.mlp.up_proj": {"weight": gate}}
        return scale | (swapped if layer == 1 else {})

    assert _said(subject, mistakes) == [
        ({"scale-missing"}, ("model.layers.0", "model.layers.2")),
        ({"scale-missing", "gate-up-swapped"}, ("model.layers.1",)),
    ], f"KARAT_SEED={SEED}"
