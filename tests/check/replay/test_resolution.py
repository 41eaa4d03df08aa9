"""The stated resolution of a diagnosis is what the recorded results allow, layer by layer."""

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.wording import diagnosis_lines  # noqa: E402
from karat.check.model.graph import Graph  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.check.replay.resolution import resolution  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tests.support.thinning import WAYS, thinned  # noqa: E402
from tools.zoo import run  # noqa: E402
from tools.zoo.attention import patch_attention  # noqa: E402
from tools.zoo.faults import ROWS, Row  # noqa: E402
from tools.zoo.faults_norm import embed_scale  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

ENDS = ("model.embed_tokens", "model.norm", "lm_head")
# Less, and a norm's output is the same within roundings whether its input is doubled or not.
VISIBLE_EPS = {"changes": {"rms_norm_eps": 1e-3}}


@pytest.fixture(scope="module")
def subject() -> Subject:
    return draw("reach", family="qwen2", steps="whole", changes={"num_hidden_layers": 8}, lengths=(6, 7))


def _of_layers(graph: Graph, *layers: int) -> list[str]:
    return [name for name, node in graph.nodes.items() if node.layer in layers]


def _outputs(*layers: int) -> list[str]:
    return [f"model.layers.{layer}" for layer in layers]


def _reach(subject: Subject, kept: Iterable[str]) -> str:
    whole = record_hf(subject.hf, subject.steps)
    arrays = {name: x for name, x in whole.arrays.items() if name in set(kept)}
    return resolution(Replay(subject.graph, subject.weights, Trace(whole.info, arrays)))


def test_each_layer_is_used_as_far_as_it_allows(subject: Subject) -> None:
    graph = subject.graph
    every = list(graph.nodes)
    assert _reach(subject, every) == "complete: a bug is located to the op"
    assert _reach(subject, []) == "nothing: no result of the model is recorded"
    assert _reach(subject, [*_of_layers(graph, 3, 7), *_outputs(*range(8)), *ENDS]) == (
        "a bug is located to the op: layers 3, 7, model.embed_tokens, model.norm, lm_head; to the layer: layers 0-2, "
        "4-6"
    )
    # The output of layer 2 is recorded nowhere, and layer 3 reads it twice: as its norm's input and as its residual.
    assert _reach(subject, [*_of_layers(graph, 3, 7), *ENDS]) == (
        "a bug is located to the op: layers 3, 7, model.embed_tokens, model.norm, lm_head; elsewhere it can only be "
        "narrowed down to this range: layers 0-2; or to this range: layers 4-6, and named if one mistake, in one layer "
        "or in all, gives what follows"
    )
    assert _reach(subject, ["lm_head"]) == (
        "a bug can only be narrowed down to this range: layers 0-7, model.embed_tokens, model.norm, lm_head, and named "
        "if one mistake, in one layer or in all, gives what follows"
    )
    assert _reach(subject, [*_outputs(0, 1), "model.embed_tokens"]) == (
        "a bug is located to the op: model.embed_tokens; to the layer: layers 0-1; not at all: layers 2-7, model.norm, "
        "lm_head"
    )
    without = [name for name in every if not name.endswith(("2.self_attn.q_rope", "5.mlp.act"))]
    assert _reach(subject, without) == (
        "a bug is located to the op: layers 0-1, 3-4, 6-7, model.embed_tokens, model.norm, lm_head; to a few ops: "
        "layers 2, 5"
    )


def test_what_has_only_some_tokens_or_heads_is_named(subject: Subject) -> None:
    whole = record_hf(subject.hf, subject.steps)
    rows = {"model.layers.1.mlp.act": (1, 4), "lm_head": (5,), "model.norm": (3, 5)}
    arrays = {name: np.asarray(x)[list(rows.get(name, range(len(x))))] for name, x in whole.arrays.items()}
    said = resolution(Replay(subject.graph, subject.weights, Trace(replace(whole.info, rows=rows), arrays)))
    # Logits of one token are all that there are; down_proj of the others is made of what comes before mlp.act.
    assert said == (
        "complete: a bug is located to the op; only some tokens or heads are there of mlp.act in layer 1, and no "
        "others are judged"
    )


def test_the_diagnosis_says_it_too(subject: Subject) -> None:
    whole = record_hf(subject.hf, subject.steps)
    kept = {name: x for name, x in whole.arrays.items() if name in (*_of_layers(subject.graph, 3), *ENDS)}
    trace = Trace(whole.info, kept)
    lines = diagnosis_lines(Diagnoser(subject.graph, subject.weights, trace).run(), subject.graph, trace.info)
    assert lines[-1].startswith("a bug is located to the op: layer 3, model.embed_tokens")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", range(2))
def test_a_right_run_gets_no_name_whatever_is_left_of_its_trace(way: str, index: int) -> None:
    seed = f"{SEED}-thin-{way}-{index}"
    drawn = draw(seed, changes={"num_hidden_layers": 3})
    trace = thinned(record_hf(drawn.hf, drawn.steps), random.Random(seed), way)
    diagnosis = Diagnoser(drawn.graph, drawn.weights, trace, seconds=1).run()
    assert diagnosis.is_healthy, f"KARAT_SEED={SEED}: {diagnosis.named or diagnosis.unexplained}"
    assert max((finding.ratio for finding in diagnosis.findings), default=0) < 7, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_run_gets_no_wrong_name_whatever_is_left_of_its_trace(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = f"{SEED}-thin-{way}"
    rng = random.Random(seed)
    monkeypatch.setattr(run, "reduced", lambda trace, _kind: thinned(trace, random.Random(seed), way))
    cases = (run.run_case([rng.choice(ROWS)], f"{seed}-{number}", seconds=1) for number in range(20))
    case = next(case for case in cases if case is not None)
    assert case.outcome != "wrong", f"KARAT_SEED={SEED}: {case}"


def doubled(subject: Subject) -> None:
    subject.hf.model.embed_tokens.register_forward_hook(lambda _module, _args, out: out * 2)


@pytest.mark.parametrize(
    ("row", "without"),
    [
        # A factor of the embedding is another eps of a norm as well, but one bug explains both of its readers.
        (Row("embed-scale", embed_scale, VISIBLE_EPS), "model.embed_tokens"),
        (Row("embed-scale", lambda subject, _: doubled(subject), VISIBLE_EPS), "model.embed_tokens"),  # or a residual
        # What none of a step's queries sees has been dropped from the cache, and is no row of nothing.
        (
            Row(
                "softmax-axis",
                partial(patch_attention, axis=-2),
                {"family": "mistral", "steps": "chunks", "changes": {"sliding_window": 7}},
            ),
            ".weights",
        ),
    ],
    ids=lambda x: x.bug if isinstance(x, Row) else "",
)
def test_what_is_not_recorded_has_its_name(row: Row, without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def less(trace: Trace, _: str) -> Trace:
        return Trace(trace.info, {name: x for name, x in trace.arrays.items() if not name.endswith(without)})

    monkeypatch.setattr(run, "reduced", less)
    case = run.run_case([row], f"{SEED}-without", seconds=1)
    assert case is not None and case.outcome == "right", f"KARAT_SEED={SEED}: {case}"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "tokens"])
def test_a_bug_in_a_complete_layer_is_named(way: str) -> None:
    seed = f"{SEED}-complete-{way}"
    rng = random.Random(seed)
    drawn = draw(seed, changes={"num_hidden_layers": 3})
    layer = rng.randrange(3)
    drawn.hf.model.layers[layer].self_attn.scaling = 1.0
    trace = thinned(record_hf(drawn.hf, drawn.steps), rng, way, keep=(layer,))
    diagnosis = Diagnoser(drawn.graph, drawn.weights, trace, seconds=1).run()
    assert {bug for named in diagnosis.named for bug in named.bugs} == {"scale-missing"}, f"KARAT_SEED={SEED}"
    assert diagnosis.named[0].places[0] == f"model.layers.{layer}.self_attn.scores"


def test_a_base_is_found_from_scores_alone() -> None:
    """Neither q nor k after RoPE is recorded, and there are not as many heads as tokens."""
    changes = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "num_hidden_layers": 2}
    drawn = draw(f"{SEED}-base", family="llama", steps="whole", changes=changes, lengths=(30, 31))
    inverse = drawn.hf.model.rotary_emb.inv_freq
    drawn.hf.model.rotary_emb.inv_freq = 70000.0 ** -(torch.arange(len(inverse)) / len(inverse))
    whole = record_hf(drawn.hf, drawn.steps)
    arrays = {name: x for name, x in whole.arrays.items() if not name.endswith("_rope")}
    diagnosis = Diagnoser(drawn.graph, drawn.weights, Trace(whole.info, arrays), seconds=1).run()
    said = [detail for named in diagnosis.named for detail in named.details]
    assert any(detail.startswith("rope-theta: theta 70000") for detail in said), f"KARAT_SEED={SEED}: {said}"
    assert not diagnosis.unexplained


def test_a_factor_of_an_embedding_that_is_not_recorded_is_named_beside_the_eps_that_gives_the_same() -> None:
    changes = {"rms_norm_eps": 1e-3, "num_hidden_layers": 1}
    drawn = draw(f"{SEED}-factor", family="llama", steps="whole", changes=changes, lengths=(30, 31))
    drawn.hf.model.embed_tokens.register_forward_hook(lambda _m, _args, out: out * 2.0)
    whole = record_hf(drawn.hf, drawn.steps)
    kept = {name: x for name, x in whole.arrays.items() if name.endswith(("q_proj", "k_proj", "v_proj"))}
    diagnosis = Diagnoser(drawn.graph, drawn.weights, Trace(whole.info, kept), seconds=1).run()
    (named,) = diagnosis.named
    assert {frozenset({"embed-scale"}), frozenset({"norm-eps"})} <= set(named.classes), f"KARAT_SEED={SEED}: {named}"


def test_what_is_computed_through_wrong_tokens_follows_and_is_no_other_bug() -> None:
    """K of the tokens that are left out is computed rightly, and those that are there are wrong in no known way."""
    drawn = draw(f"{SEED}-follows", family="llama", steps="whole", changes={"num_hidden_layers": 2})
    drawn.hf.model.layers[0].mlp.down_proj.register_forward_hook(lambda _m, args, out: out + args[0].sum(-1, True))
    trace = thinned(record_hf(drawn.hf, drawn.steps), random.Random(SEED), "tokens")
    diagnosis = Diagnoser(drawn.graph, drawn.weights, trace, seconds=1).run()
    assert not diagnosis.named
    assert [item.finding.name for item in diagnosis.unexplained] == ["model.layers.0.mlp.down_proj"]
    assert all(name.startswith("model.layers.1.self_attn.") for name in diagnosis.follows)
