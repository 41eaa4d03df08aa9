"""Right runs stay within the noise floor, op by op, and a wrong one leaves it at the op that is wrong.

Covers: karat.check.model.checked, karat.check.model.graph, karat.check.model.kinds, karat.check.model.right.*,
karat.check.model.roles, karat.check.model.tokens, karat.check.model.weights, karat.check.record.executors,
karat.check.record.hf, karat.check.record.hf_attention, karat.check.record.hf_gemma4,
karat.check.record.hf_muse_glimmer, karat.check.replay.accumulation, karat.check.replay.align,
karat.check.replay.distances, karat.check.replay.drift, karat.check.replay.finding, karat.check.replay.noise,
karat.check.replay.runs, karat.check.replay.segments, karat.check.trace.selection.
"""

import os
import random
from typing import Any

import numpy as np
import pytest

from karat.check.model.evaluate import evaluate
from karat.check.replay.finding import LIMIT
from karat.check.replay.replay import Replay
from karat.check.trace.format import Array, Trace, make_info

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.mistakes.weight_readings import Effective  # noqa: E402
from karat.check.model.checked import open_model  # noqa: E402
from karat.check.model.context import Context  # noqa: E402
from karat.check.model.graph import build_graph  # noqa: E402
from karat.check.model.tokens import Tokens  # noqa: E402
from karat.check.model.weights import CheckpointWeights  # noqa: E402
from karat.check.record.executors import record_model  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.drift import compare  # noqa: E402
from karat.check.replay.noise import PRECISION  # noqa: E402
from karat.check.trace.selection import Selection  # noqa: E402
from karat.checkpoint.weights import Weight  # noqa: E402
from karat.errors import TraceError, UsageError  # noqa: E402
from karat.ops.reference import ReferenceOps  # noqa: E402
from karat.ops.registry import create  # noqa: E402
from tests.support import forward, random_models  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

SEED = os.environ.get("KARAT_SEED", "20261121")


def _karat(subject: Subject, ops: object, **options: object) -> Trace:
    model = forward.from_transformers(subject.raw, subject.hf, ops)  # type: ignore[arg-type]
    return record_model(model, subject.steps, **options)  # type: ignore[arg-type]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", random_models.WITH_TRACES)
@pytest.mark.parametrize("index", range(3))
def test_healthy_runs_stay_within_the_floor(family: str, index: int) -> None:
    subject = draw(f"{SEED}-healthy-{family}-{index}", family=family)
    traces = {
        "reference, float64": _karat(subject, ReferenceOps("float64")),
        "reference, float32": _karat(subject, ReferenceOps("float32")),
        "whatever auto is": _karat(subject, create("auto")),
        "float16 cache": _karat(subject, ReferenceOps("float32"), kv_dtype="float16"),
    }
    traces["transformers"] = record_hf(subject.hf, subject.steps)
    half = draw(f"{SEED}-healthy-{family}-{index}", family=family, stored="BF16", dtype=torch.bfloat16)
    for name, trace in traces.items():
        _check_healthy(subject, trace, name)
    _check_healthy(half, record_hf(half.hf, half.steps), "transformers, bfloat16")


def _check_healthy(subject: Subject, trace: Trace, name: str) -> None:
    replay = Replay(subject.graph, subject.weights, trace)
    findings = replay.findings()
    recorded = {finding.name for finding in findings}
    inside = "linear_attn.q_normed linear_attn.delta_normed self_attn.gate conv.before conv.after conv.x".split()
    if subject.raw["model_type"] == "qwen3_next":  # whose projections are joined otherwise
        inside += [f"linear_attn.{part}" for part in ("in_proj_qkv", "in_proj_z", "a", "b")]
    if subject.raw["model_type"].startswith("gemma4"):  # sums that are scaled in place
        inside += "router.normed mlp_residual input_residual model.layer_inputs_sum".split()
    nodes = subject.graph.nodes.values()
    no_modules = {node.name for node in nodes if node.kind in ("scale", "sigmoid_mul") or node.role in inside}
    unseen = {"model.selected"} | (no_modules if "transformers" in name else set())
    assert recorded >= set(subject.graph.nodes) - unseen, "a result was not recorded"
    assert not replay.beyond_judging
    for finding in findings:
        assert finding.ratio < LIMIT / 2, f"{name}: {finding}"
    comparison = compare(replay)
    assert not any(finding.is_wrong for finding in comparison.local)
    for drift in comparison.drift:
        assert drift.ratio < 50, f"{name}: {drift}"


def test_the_floor_of_a_single_number_is_no_matter_of_chance() -> None:
    """The gate of a shared expert gives one number a token: the largest of three draws was a fifth of the usual one."""
    subject = draw("1-narrow", family="qwen2_moe", lengths=(60, 80))
    replay = Replay(subject.graph, subject.weights, _karat(subject, ReferenceOps("float32")))
    name = next(name for name in subject.graph.nodes if name.endswith("shared_expert_gate"))
    names = replay.segment(name)
    x = replay.value(subject.graph.nodes[name].inputs[0])
    floors = replay.floor(names, replay.run(names)) / np.linalg.norm(x, axis=-1, keepdims=True)
    assert floors.shape == (len(x), 1)
    assert floors.min() > 0.45 * np.median(floors)


def test_sums_of_experts_one_after_the_other_are_no_mistake() -> None:
    """Kernels that add 340 products in a chain strayed by four floors that knew of no sums inside an expert."""
    subject = draw("0-healthy-qwen2_moe-0", family="qwen2_moe")
    replay = Replay(subject.graph, subject.weights, _karat(subject, create("auto")))
    found = [f for f in replay.findings() if subject.graph.nodes[f.name].kind == "experts"]
    assert found
    assert max(finding.ratio for finding in found) < 2.5


def test_the_graph_computes_what_the_reference_executor_does() -> None:
    """In float64 nothing but the last digits may differ: two implementations of every op, to 1e-12."""
    subject = draw(f"{SEED}-graph")
    trace = _karat(subject, ReferenceOps("float64"))
    replay = Replay(subject.graph, subject.weights, Trace(trace.info, {}))
    expected = replay.run(replay.segment("lm_head")) if trace.arrays else None
    assert expected is not None
    np.testing.assert_allclose(expected, trace.arrays["lm_head"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("stored", ["Q4_K", "Q5_1", "Q2_K"])
def test_a_mistakes_floor_is_that_of_a_checkpoint_with_its_weights(stored: str) -> None:
    """The same whether wrong weights come of a mistake or of a file: minima of the wrong sign add up to more."""
    subject = draw(f"{SEED}-floor-{stored}", stored=stored)
    name = "model.layers.0.self_attn.v_proj"
    source = subject.graph.nodes[name].params["weight"]
    weight = subject.weights.stored[source]
    wrong = Effective("bits", (source,), ("minimum: 2",))
    edits = {name: {"effective": wrong}}
    values = wrong(subject.weights, np.dtype(np.float32))
    in_file = Weight(weight.name, "F32", weight.shape, values.view(np.uint8).reshape(-1), weight.file)
    checkpoint = CheckpointWeights({**subject.weights.stored, source: in_file})
    trace = _karat(subject, ReferenceOps("float32"))
    mistaken, loaded = (Replay(subject.graph, weights, trace) for weights in (subject.weights, checkpoint))
    expected = mistaken.run((name,), edits)
    np.testing.assert_array_equal(expected, loaded.run((name,)))
    floor = mistaken.floor((name,), expected, edits)
    np.testing.assert_array_equal(floor, loaded.floor((name,), expected))
    assert np.median(floor / mistaken.floor((name,), mistaken.run((name,)))) > 1.5


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_weights_of_any_size_have_a_floor(stored: str) -> None:
    """Bytes in the wrong order make numbers whose products overflow float32."""
    subject = draw(f"{SEED}-swapped-{stored}", stored=stored)
    name = "model.layers.0.self_attn.q_proj"
    wrong = Effective("bits", (subject.graph.nodes[name].params["weight"],), ("swapped",))
    edits = {name: {"effective": wrong}}
    replay = Replay(subject.graph, subject.weights, _karat(subject, ReferenceOps("float32")))
    expected = replay.run((name,), edits)
    floor = np.broadcast_to(replay.floor((name,), expected, edits), expected.shape)
    huge = np.isfinite(expected) & (np.abs(expected) > 1e30)
    assert huge.any() and (floor[huge] > 0).all()


@pytest.mark.parametrize("index", range(6))
def test_one_changed_weight_is_seen_where_it_is_used(index: int) -> None:
    subject = draw(f"{SEED}-element-{index}")
    rng = random.Random(f"{SEED}-element-{index}")
    candidates = [name for name, _ in subject.hf.named_parameters() if "norm" not in name and "embed" not in name]
    name = rng.choice(candidates)
    parameter = subject.hf.get_parameter(name).data.view(-1)
    parameter[rng.randrange(len(parameter))] += 0.05
    findings = Replay(subject.graph, subject.weights, record_hf(subject.hf, subject.steps)).findings()
    wrong = [finding.name for finding in findings if finding.is_wrong]
    assert wrong == [name.rpartition(".")[0]]


def test_a_selection_keeps_what_was_asked_for() -> None:
    subject = draw(
        f"{SEED}-selection",
        changes={"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 72},
    )
    selection = Selection(frozenset({1}), heads=(0, 4), logit_rows=2)
    total = len(subject.steps.prompt)
    for trace in (
        _karat(subject, ReferenceOps("float32"), selection=selection),
        record_hf(subject.hf, subject.steps, selection=selection),
    ):
        layers = {name.split(".")[2] for name in trace.arrays if name.startswith("model.layers.")}
        assert layers == {"1"}
        assert trace.arrays["model.layers.1.self_attn.scores"].shape == (2, total, total)
        assert trace.info.rows["lm_head"] == (total - 2, total - 1) and len(trace.arrays["lm_head"]) == 2
        replay = Replay(subject.graph, subject.weights, trace)
        assert not [finding for finding in replay.findings() if finding.is_wrong]
    with pytest.raises(UsageError, match="head 6"):
        _karat(subject, ReferenceOps("float32"), selection=Selection(heads=(6,)))


def test_what_does_not_fit_the_model_is_refused() -> None:
    subject = draw(f"{SEED}-fit")
    trace = record_hf(subject.hf, subject.steps)
    arrays = dict(trace.arrays)
    arrays["model.layers.0"] = arrays["model.layers.0"][:, :-1]
    with pytest.raises(TraceError, match=r"model\.layers\.0: shape"):
        Replay(subject.graph, subject.weights, Trace(trace.info, arrays))
    arrays = dict(trace.arrays)
    arrays["lm_head"] = arrays["lm_head"][1:]
    with pytest.raises(TraceError, match="lm_head: shape"):
        Replay(subject.graph, subject.weights, Trace(trace.info, arrays))


def test_every_family_has_a_graph() -> None:
    for family in random_models.RECORDED:
        subject = draw(f"{SEED}-{family}", family=family)
        graph = build_graph(subject.graph.config)
        assert next(iter(graph.nodes)) == "model.embed_tokens" and next(reversed(graph.nodes)) == "lm_head"
        for name, node in graph.nodes.items():
            assert all(graph.order[source] < graph.order[name] for source in node.inputs)


class OtherTies(Context):
    """A cache that is given numbers a few units away, as any other order of summation leaves them."""

    def __init__(self, *args: Any, seed: int) -> None:
        super().__init__(*args)
        self._draws = np.random.default_rng(seed)

    def cached(self, x: Array) -> Array:
        stray = 4 * PRECISION["float32"] * np.abs(x).max(axis=-1, keepdims=True)
        return super().cached(x + stray * self._draws.uniform(-1, 1, x.shape))


@pytest.mark.parametrize("seed", [1, 3, 14, 16, 20, 24])
@pytest.mark.parametrize("num_tokens", [2, 4, 12])
def test_numbers_that_a_narrow_cache_rounds_to_the_other_side_of_a_tie_are_no_bug(num_tokens: int, seed: int) -> None:
    """One of them moves a layer's output by far more than what else rounding does (seen on a real model)."""
    model = open_model(None)
    weights = model.weights("float32")
    ids = np.random.default_rng(seed).integers(3, 4000, num_tokens).tolist()
    info = make_info(ids, kv_dtype="float16")
    context = OtherTies(weights, Tokens.of(info), np.arange(num_tokens), "float16", seed=seed)
    values: dict[str, Array] = {}
    for name, node in model.graph.nodes.items():
        values[name] = evaluate(node, [values[source] for source in node.inputs], context, np.dtype(np.float64))
    outputs = {
        name: x.astype(np.float32) for name, x in values.items() if name.count(".") == 2 or name == "model.embed_tokens"
    }
    for finding in Replay(model.graph, weights, Trace(info, outputs)).findings():
        assert finding.ratio < LIMIT / 2, finding
