"""A mistake in a part of a run has the name that it has everywhere, and the part is said.

Covers: karat.check.mistakes.part, karat.check.mistakes.parts, karat.check.mistakes.fitted_cache,
karat.check.mistakes.fitted_ranks, karat.check.diagnosis.proposals.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.verdict import Diagnosis  # noqa: E402
from karat.check.diagnosis.wording import diagnosis_lines  # noqa: E402
from karat.check.mistakes.part import Part, Rows, row_parts  # noqa: E402
from karat.check.model.tokens import Tokens  # noqa: E402
from karat.check.record.executors import Steps  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from tests.support import mistakes  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo import batches, faults_parts  # noqa: E402
from tools.zoo.attention import patch_attention  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

SIZES = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}


def _subject(name: str, family: str = "qwen2", **changes: Any) -> Subject:
    return draw(f"{SEED}-{name}", family=family, steps="mixed", changes={**SIZES, **changes})


def _said(subject: Subject, trace: Trace) -> tuple[list[set[str]], str]:
    """The names, and all lines; nothing may be left without a name."""
    diagnosis = Diagnoser(subject.graph, subject.weights, trace, seconds=1).run()
    assert not diagnosis.unexplained, f"KARAT_SEED={SEED}"
    return [set(named.bugs) for named in diagnosis.named], _text(diagnosis, subject, trace)


def _text(diagnosis: Diagnosis, subject: Subject, trace: Trace) -> str:
    return "\n".join(diagnosis_lines(diagnosis, subject.graph, trace.info))


def _linears(subject: Subject, change: Any) -> Trace:
    with torch.no_grad():
        for layer in subject.hf.model.layers:
            change(layer)
    return record_hf(subject.hf, subject.steps)


def test_a_bias_that_one_rank_forgets() -> None:
    subject = _subject("bias")

    def change(layer: Any) -> None:
        layer.self_attn.k_proj.bias[16:] = 0  # two of four KV heads of 8 features

    names, text = _said(subject, _linears(subject, change))
    # A bias that is added behind RoPE leaves the same k_proj.
    assert len(names) == 1 and "bias-missing" in names[0] <= {"bias-missing", "rope-before-bias"}
    assert "no bias, on rank 1 of 2 (heads 2-3)" in text, f"KARAT_SEED={SEED}: {text}"


def test_gate_and_up_exchanged_on_one_rank() -> None:
    subject = _subject("gate-up")

    def change(layer: Any) -> None:
        gate, up = layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight
        gate[48:], up[48:] = up[48:].clone(), gate[48:].clone()

    names, text = _said(subject, _linears(subject, change))
    assert names == [{"gate-up-swapped"}] and "on rank 1 of 2 (columns 48-95)" in text, f"KARAT_SEED={SEED}: {text}"


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_part_of_another_rank(ranks: int) -> None:
    """With the number of ranks in the trace, only that many are tried; else 2, 4 and 8."""
    subject = _subject("order")

    def change(layer: Any) -> None:
        weight = layer.mlp.down_proj.weight
        weight[:, 24:48] = weight[:, 72:].clone()

    trace = _linears(subject, change)
    whole = Trace(trace.info.__class__(**{**_fields(trace.info), "ranks": ranks}), trace.arrays)
    names, text = _said(subject, whole)
    assert names == [{"shard-order"}], f"KARAT_SEED={SEED}: {text}"
    assert "of the parts of 4 ranks rank 1 has that of rank 3" in text


def _fields(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__dataclass_fields__}


def test_a_rank_with_one_kv_head_reads_its_part_as_columns() -> None:
    subject = _subject("columns")
    heads = [slice(8 * head, 8 * head + 8) for head in range(4)]

    def change(layer: Any) -> None:
        weight = layer.self_attn.v_proj.weight
        for mine in heads:
            part = weight[mine].contiguous()
            weight[mine] = torch.as_strided(part, part.shape, (1, len(part))).clone()

    names, text = _said(subject, _linears(subject, change))
    assert names == [{"transposed"}] and "read as columns by each of 4 ranks" in text, f"KARAT_SEED={SEED}: {text}"


def test_shards_of_the_vocabulary_exchanged() -> None:
    subject = _subject("vocabulary")
    with torch.no_grad():
        weight = subject.hf.lm_head.weight
        weight.copy_(torch.cat([weight[64:], weight[:64]]))
    names, text = _said(subject, record_hf(subject.hf, subject.steps))
    assert names == [{"shard-order"}] and "rank 0 has that of rank 1, rank 1 has that of rank 0" in text


FAULTS: Mapping[str, tuple[Any, dict[str, Any], str, str]] = {
    "fused, cut naively": (faults_parts.qkv_split, {}, "qkv-split", "equal pieces, one for each rank"),
    "heads joined": (faults_parts.heads_order, {}, "heads-order", "by each of "),
    "KV heads": (faults_parts.gqa, {"num_key_value_heads": 2}, "gqa-tile", "rank r of 4 reads KV head r modulo 2"),
    "a mask of NaN": (faults_parts.mask_in_later_chunks(mask="nan"), {}, "mask-nan", "in later chunks of a prompt"),
    "a mask of chunks": (
        faults_parts.mask_in_later_chunks(mask="top-left"),
        {},
        "mask-misaligned",
        "in later chunks of a prompt",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_examples(case: str) -> None:
    fault, changes, bug, where = FAULTS[case]
    subject = _subject(case, use_sliding_window=False, **changes)
    with ExitStack() as stack:
        assert fault(subject, stack) is not False
        trace = record_hf(subject.hf, subject.steps)
    names, text = _said(subject, trace)
    assert names == [{bug}] and where in text, f"KARAT_SEED={SEED}: {text}"


@pytest.mark.parametrize(("by", "kind", "where"), [(1, "decode", "in decode steps"), (0, "chunks", "in prefill steps")])
def test_positions_in_some_steps(by: int, kind: str, where: str) -> None:
    subject = _subject(f"positions {kind}")
    rotary = subject.hf.model.rotary_emb
    right = rotary.forward

    def forward(x: Any, position_ids: Any) -> Any:
        is_decode = position_ids.shape[-1] == 1
        if is_decode:
            return right(x, position_ids + by)
        return right(x, position_ids - (0 if by else position_ids[..., :1]))

    rotary.forward = forward
    names, text = _said(subject, record_hf(subject.hf, subject.steps))
    assert names == [{"rope-position"}], f"KARAT_SEED={SEED}: {text}"
    assert where in text or "in later chunks of a prompt" in text, f"KARAT_SEED={SEED}: {text}"


def test_a_slot_too_early_from_the_third_step_on() -> None:
    subject = _subject("slots", use_sliding_window=False)
    step = next(i for i, cut in enumerate(subject.steps.cuts) if subject.steps.stop_after(cut) == cut + 1) + 1
    trace = record_hf(subject.hf, subject.steps, cache=batches.WrongSlots("early", step))
    names, text = _said(subject, trace)
    assert names == [{"kv-stale"}], f"KARAT_SEED={SEED}: {text}"
    assert f"K and V are written 1 slot too early from step {step} on" in text, f"KARAT_SEED={SEED}: {text}"


def _second(subject: Subject) -> Steps:
    """Another prompt: at no position it has the first one's token, which would have the same key in layer 0."""
    vocab = subject.raw["vocab_size"]
    first = np.resize(subject.steps.prompt, 26)
    ids = (first + np.random.default_rng(3).integers(1, vocab, 26)) % vocab
    return Steps(tuple(ids.tolist()), (0, 8, 16, *range(20, 26)))


def test_a_block_of_another_sequence() -> None:
    from transformers.cache_utils import DynamicCache

    subject = _subject("block", use_sliding_window=False)
    first = DynamicCache()
    traces = [record_hf(subject.hf, subject.steps, cache=first)]
    foreign = batches.WrongSlots("foreign", 2, first)
    traces.append(record_hf(subject.hf, _second(subject), cache=foreign))
    names, text = _said(subject, batches.side_by_side(traces))
    assert names == [{"kv-stale"}], f"KARAT_SEED={SEED}: {text}"
    assert "positions 4-7 of sequence 1 hold those of sequence 0, positions 4-7, from step 2 on" in text, text


def test_the_second_sequence_shifted() -> None:
    subject = _subject("shifted", use_sliding_window=False)
    first = record_hf(subject.hf, subject.steps)
    rotary = subject.hf.model.rotary_emb
    right = rotary.forward
    rotary.forward = lambda x, position_ids: right(x, position_ids + 3)
    trace = batches.side_by_side([first, record_hf(subject.hf, _second(subject))])
    names, text = _said(subject, trace)
    assert names == [{"rope-position"}], f"KARAT_SEED={SEED}: {text}"
    assert "positions shifted by +3, in sequence 1" in text, f"KARAT_SEED={SEED}: {text}"


def test_right_sequences_side_by_side_get_no_name() -> None:
    subject = _subject("right")
    trace = batches.side_by_side([record_hf(subject.hf, steps) for steps in (subject.steps, _second(subject))])
    diagnosis = Diagnoser(subject.graph, subject.weights, trace).run()
    assert diagnosis.is_healthy, f"KARAT_SEED={SEED}: {_text(diagnosis, subject, trace)}"


def test_what_no_mistake_gives_in_a_part_has_no_name() -> None:
    """Other numbers on one rank, in one step, at one token: a mask could be laid over anything."""
    subject = _subject("noise")
    right = record_hf(subject.hf, subject.steps)
    rng = np.random.default_rng(5)
    name = "model.layers.0.self_attn.k_proj"
    for where in (np.s_[:, 16:], np.s_[-3:], np.s_[:, 3:4]):
        arrays = dict(right.arrays)
        wrong = arrays[name].reshape(right.info.num_tokens, -1).copy()
        wrong[where] += rng.standard_normal(wrong[where].shape).astype(wrong.dtype)
        arrays[name] = wrong
        diagnosis = Diagnoser(subject.graph, subject.weights, Trace(right.info, arrays), seconds=0.1, budget=2).run()
        assert name in [item.finding.name for item in diagnosis.unexplained], f"KARAT_SEED={SEED}"
        assert not diagnosis.named, f"KARAT_SEED={SEED}: {diagnosis.named}"


def test_zeros_on_one_rank_have_no_name() -> None:
    """Its logits may be lost in many ways."""
    subject = _subject("zeros")
    subject.hf.lm_head.weight.data[64:] = 0
    trace = record_hf(subject.hf, subject.steps)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace, seconds=0.1, budget=2).run()
    assert not diagnosis.named and [item.finding.name for item in diagnosis.unexplained] == ["lm_head"]


def test_parts_of_tokens_are_distinct_and_said() -> None:
    tokens = Tokens.of(mistakes.traces()["two"])
    parts = list(row_parts(tokens))
    assert len({part.text for part in parts}) == len(parts)
    assert parts[0] == Rows(sequence=0) and Rows("in decode steps", 0, 1) in parts
    assert Part((1, 2), Rows("from", 2), "heads 2-3").text == "on rank 1 of 2, from step 2 on"
    of = {part.text: part.of(tokens) for part in parts}
    assert np.array_equal(of["in decode steps"], ~of["in prefill steps"])


def test_an_attention_of_the_zoo_with_its_own_kv_heads_is_right() -> None:
    subject = _subject("own heads", use_sliding_window=False)
    with ExitStack() as stack:
        patch_attention(subject, stack, kv_head=[head // 2 for head in range(8)])
        trace = record_hf(subject.hf, subject.steps)
    assert Diagnoser(subject.graph, subject.weights, trace).run().is_healthy
