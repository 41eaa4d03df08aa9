"""The diagnosis names what was broken and nothing else. `python -m tools.zoo` counts; this is a sample of each row.

Covers: karat.check.diagnosis.attempt, karat.check.diagnosis.budget, karat.check.diagnosis.fitted_head,
karat.check.diagnosis.known_mistakes, karat.check.diagnosis.pairs, karat.check.diagnosis.searched,
karat.check.diagnosis.wording.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.check.mistakes.bugs import BUGS

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.wording import diagnosis_lines, times  # noqa: E402
from karat.check.model.roles import ranges  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from karat.check.trace.reading import read_trace  # noqa: E402
from karat.check.trace.writing import write_trace  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.faults import MIXTURES, OF_FAMILIES, RECURRENT, ROWS, Row  # noqa: E402
from tools.zoo.faults_bytes import dtype_trunc  # noqa: E402
from tools.zoo.faults_rope import rope_pairing  # noqa: E402
from tools.zoo.faults_tokens import TOKEN_BUGS, token_case, token_run  # noqa: E402
from tools.zoo.models import draw  # noqa: E402
from tools.zoo.run import run_case  # noqa: E402


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_each_bug_is_named(row: Row) -> None:
    """One case in which the bug moves a recorded result by ten times its floor: others show nothing to anybody."""
    cases = (run_case([row], f"{SEED}-{row.title}-{index}") for index in range(40))
    case = next((case for case in cases if case is not None and case.counts), None)
    assert case is not None, f"KARAT_SEED={SEED}: none of 40 draws of {row.title} can be observed"
    assert case.outcome in ("right", "class"), f"KARAT_SEED={SEED}: {case}"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("row", MIXTURES, ids=lambda row: row.title)
def test_each_bug_of_experts_is_named(row: Row) -> None:
    test_each_bug_is_named(row)


# The last six are in `make test-long` until they have been counted.
OF_STATES = [*RECURRENT[:13], *(pytest.param(row, marks=pytest.mark.long) for row in RECURRENT[13:])]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("row", OF_STATES, ids=lambda row: row.title)
def test_each_bug_of_recurrent_layers_is_named(row: Row) -> None:
    test_each_bug_is_named(row)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("row", OF_FAMILIES, ids=lambda row: row.title)
def test_each_bug_of_single_families_is_named(row: Row) -> None:
    test_each_bug_is_named(row)


@pytest.mark.parametrize("bug", TOKEN_BUGS)
def test_each_bug_of_tokens_is_named(bug: str) -> None:
    cases = (token_case(bug, f"{SEED}-{bug}-{index}") for index in range(40))
    case = next((case for case in cases if case is not None), None)
    assert case is not None, f"KARAT_SEED={SEED}: none of 40 draws of {bug} changes a token"
    assert case.outcome in ("right", "class"), f"KARAT_SEED={SEED}: {case}"


def test_right_tokens_get_no_name() -> None:
    run = token_run(None, f"{SEED}-tokens")
    assert run is not None and not run.said and not run.wrong, f"KARAT_SEED={SEED}: {run}"


def test_nothing_is_named_beside_zeros() -> None:
    """Weights in the wrong byte order overflow in a norm, and the logits are zeros: as a head of zeros gives them, with
    any other mistake beside it."""
    (row,) = (row for row in ROWS if row.bug == "byte-order")
    case = run_case([row], "c3f4321c-layers-byte-order-2", kind="layers")
    assert case is not None and (case.said, case.unexplained) == (("byte-order",), ("lm_head",)), case


def test_the_catalogue_has_every_row_of_the_zoo() -> None:
    assert {row.bug for row in (*ROWS, *MIXTURES, *RECURRENT, *OF_FAMILIES)} | set(TOKEN_BUGS) <= set(BUGS)


def test_a_class_of_pairs_is_named_whole_in_every_layer() -> None:
    """RoPE applied twice and a linear scaling by 2 ignored are the same angles, also with neighbours turned."""
    rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    changes = {"rope_parameters": rope, "num_hidden_layers": 2}
    subject = draw(f"{SEED}-class", family="llama", steps="whole", changes=changes)
    with ExitStack() as stack:
        rope_pairing(subject, stack)
        subject.hf.model.rotary_emb.inv_freq *= 2
        trace = record_hf(subject.hf, subject.steps)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace).run()
    assert [set(named.classes) for named in diagnosis.named] == [
        {frozenset({"rope-pairing", "rope-twice"}), frozenset({"rope-pairing", "rope-theta"})}
    ]
    assert len(diagnosis.named[0].places) == 4 and not diagnosis.unexplained


@pytest.mark.parametrize("biases", [True, False])
def test_bytes_read_wrongly_leave_nothing_unexplained_in_a_model_with_biases(biases: bool) -> None:
    """Whether all but the norms is cut to bfloat16, as a cast of the model does it, or the matrices alone."""
    subject = draw(f"{SEED}-cut-{biases}", family="qwen2", stored="F32")
    with ExitStack() as stack:
        right = {name: p.data.clone() for name, p in subject.hf.named_parameters() if name.endswith("bias")}
        dtype_trunc(subject, stack)
        if not biases:
            for name, values in right.items():
                subject.hf.get_parameter(name).data = values
        trace = record_hf(subject.hf, subject.steps)
    assert right
    diagnosis = Diagnoser(subject.graph, subject.weights, trace).run()
    assert {frozenset({"dtype-trunc"})} == {c for named in diagnosis.named for c in named.classes}, f"KARAT_SEED={SEED}"
    assert not diagnosis.unexplained, f"KARAT_SEED={SEED}"


@pytest.mark.parametrize("is_enough", [True, False])
def test_an_ignored_tie_is_named_from_enough_tokens_and_else_they_are_asked_for(is_enough: bool) -> None:
    """Of fewer tokens than hidden features any logits are a linear map: 24 features take 32 tokens."""
    changes = {"tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24}
    length = 32 if is_enough else 31
    seed = f"{SEED}-tie"
    subject = draw(seed, family="llama", steps="whole", changes=changes, lengths=(length, length + 1))
    weight = subject.hf.lm_head.weight
    generator = torch.Generator().manual_seed(5)
    subject.hf.lm_head.weight = torch.nn.Parameter(torch.randn(weight.shape, generator=generator))
    trace = record_hf(subject.hf, subject.steps)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace, seconds=1).run()
    text = "\n".join(diagnosis_lines(diagnosis, subject.graph, trace.info))
    if is_enough:
        assert [named.bugs for named in diagnosis.named] == [{"tie-ignored"}], f"KARAT_SEED={SEED}"
        assert "cannot be told" not in text
    else:
        assert not diagnosis.named and [item.finding.name for item in diagnosis.unexplained] == ["lm_head"]
        assert "another matrix than the embedding cannot be told with logits of 31 tokens" in text
        assert "it takes 32" in text


def test_small_logits_with_a_soft_cap_are_no_other_head() -> None:
    """A sixteenth of the logits, capped at 30, is nearly linear: but not to the rounding of numbers so small."""
    changes = {"tie_word_embeddings": True, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24}
    subject = draw(f"{SEED}-cap", family="llama", steps="whole", changes=changes, lengths=(60, 72))
    head = subject.hf.lm_head
    head.register_forward_hook(lambda _m, _args, out: torch.tanh(out * 0.0625 / 30.0) * 30.0)
    trace = record_hf(subject.hf, subject.steps)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace).run()
    assert [set(named.classes) for named in diagnosis.named] == [{frozenset({"softcap", "logit-scale"})}]


def test_an_overflow_after_an_activation_in_float16_is_named() -> None:
    """Which of its products overflow depends on the activation's last bit (found by the zoo)."""
    row = next(row for row in ROWS if row.bug == "overflow-fp16")
    case = run_case([row], "f17ed1ac-overflow-fp16-0")
    assert case is not None and (case.outcome, case.unexplained) == ("right", ()), case


def test_a_bias_after_rope_of_q_alone_is_not_said_of_k() -> None:
    """k_rope is right; at q_proj a missing bias gives the same numbers, and q_rope says what it is."""
    row = next(row for row in ROWS if row.title == "rope-before-bias")
    case = run_case([row], "1836682608-rope-before-bias-0")
    assert case is not None and (case.said, case.unexplained) == (("rope-before-bias",), ()), case


@pytest.mark.parametrize("part", ["self_attn", "mlp"])
def test_a_part_of_another_layer_is_named_from_layer_outputs_alone(part: str) -> None:
    """Three or four weights at one place, and one mistake: what a name match for "layers.1" takes along."""
    subject = draw(f"{SEED}-part", family="qwen2", steps="whole", changes={"num_hidden_layers": 3})
    layers = subject.hf.model.layers
    getattr(layers[2], part).load_state_dict(getattr(layers[1], part).state_dict())
    whole = record_hf(subject.hf, subject.steps)
    kept = {name: x for name, x in whole.arrays.items() if name.count(".") == 2 or name == "model.embed_tokens"}
    diagnosis = Diagnoser(subject.graph, subject.weights, Trace(whole.info, kept), seconds=1).run()
    (named,) = diagnosis.named
    what = {"self_attn": "the attention", "mlp": "the MLP"}[part]
    assert (named.classes, named.places) == ((frozenset({"layer-prefix"}),), ("model.layers.2",)), f"KARAT_SEED={SEED}"
    assert named.details == (f"layer-prefix: {what} of layer 1",)


def test_a_mistake_that_is_not_in_the_catalogue_is_not_named() -> None:
    """Noise on one projection: found where it is, and called unexplained."""
    subject = draw(f"{SEED}-noise", steps="whole")
    generator = torch.Generator().manual_seed(3)
    layer = subject.hf.model.layers[-1]
    weight = layer.mlp.down_proj.weight
    weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    trace = record_hf(subject.hf, subject.steps)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace, seconds=1).run()
    assert not diagnosis.named
    last = len(subject.hf.model.layers) - 1
    assert [item.finding.name for item in diagnosis.unexplained] == [f"model.layers.{last}.mlp.down_proj"]
    text = "\n".join(diagnosis_lines(diagnosis, subject.graph, trace.info))
    assert "verdict: bug" in text and f"unexplained: model.layers.{last}.mlp.down_proj, token" in text


def test_what_follows_nan_is_not_judged() -> None:
    subject = draw(f"{SEED}-nan", steps="whole")
    trace = record_hf(subject.hf, subject.steps)
    arrays = {name: np.array(array) for name, array in trace.arrays.items()}
    arrays["model.embed_tokens"][3, 0] = np.nan
    diagnosis = Diagnoser(subject.graph, subject.weights, Trace(trace.info, arrays), seconds=1).run()
    assert not diagnosis.named
    assert [item.finding.name for item in diagnosis.unexplained] == ["model.embed_tokens"]
    assert "model.layers.0.input_layernorm" in diagnosis.beyond_judging


def test_a_diagnosis_is_the_same_where_next_to_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results of a file are read again and again then, and come out as they did at first."""
    subject = draw(f"{SEED}-lazy", family="qwen2", steps="chunks")
    with torch.no_grad():
        subject.hf.model.layers[-1].self_attn.v_proj.bias.zero_()
        write_trace(tmp_path / "t", record_hf(subject.hf, subject.steps))

    def facts() -> Any:
        diagnosis = Diagnoser(subject.graph, subject.weights, read_trace(tmp_path / "t"), seconds=1).run()
        return diagnosis.findings, [(named.bugs, named.places) for named in diagnosis.named]

    expected = facts()
    assert [bugs for bugs, _ in expected[1]] == [{"bias-missing"}]
    monkeypatch.setattr("karat.check.replay.runs._BUDGET", 1)
    found = facts()
    assert [(f.name, f.is_wrong, f.error) for f in found[0]] == [(f.name, f.is_wrong, f.error) for f in expected[0]]
    assert found[1] == expected[1]


@pytest.mark.parametrize("missing", ["q", "k", "qk"])
def test_what_is_said_of_a_missing_norm_is_what_is_missing(missing: str) -> None:
    subject = draw(f"{SEED}-{missing}", family="qwen3", steps="whole", changes={"num_hidden_layers": 2})
    for layer in subject.hf.model.layers:
        for part in missing:
            getattr(layer.self_attn, f"{part}_norm").forward = lambda x: x
    trace = record_hf(subject.hf, subject.steps)
    (named,) = Diagnoser(subject.graph, subject.weights, trace).run().named
    said = [f"qk-norm-missing: {part} not normalised" for part in missing]
    assert [*named.details, *named.elsewhere] == said


def test_figures_for_people() -> None:
    assert ranges([3, 1, 2, 7]) == "1-3, 7"
    assert (times(0.5), times(12.4), times(4.1e6), times(np.inf)) == ("0.5 ×", "12 ×", "4.1e6 ×", "∞ ×")
