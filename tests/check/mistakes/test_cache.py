"""What is in the slots of a KV cache, and which of them are seen, is named and said.

Covers: karat.check.mistakes.fitted_cache.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.check.mistakes.fitted_cache import caches
from karat.check.mistakes.nodes import changed, evaluate
from karat.check.model.context import Context
from karat.check.model.tokens import NOBODY, Tokens
from tests.support import mistakes
from tests.support.seed import SEED

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.wording import diagnosis_lines  # noqa: E402
from karat.check.record.executors import Steps  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from tools.zoo.attention import patch_attention  # noqa: E402
from tools.zoo.caches import FaultyCache, k_of_cache  # noqa: E402
from tools.zoo.models import draw  # noqa: E402

Fault = Any
FAULTS: Mapping[str, tuple[Fault, str, str]] = {
    "exchanged": (None, "kv-stale", "the cache: K and V are exchanged"),
    "next-layer": (None, "kv-stale", "the cache, in earlier steps: K and V are those of layer 1"),
    "decode-over": (None, "kv-stale", "of decoded tokens overwrite those of the prompt's last token"),
    "decode-lost-v": (None, "kv-stale", "V of decoded tokens never reach the cache"),
    "float16": (None, "kv-dtype", "float16, and the trace states float32"),
    "before RoPE": (k_of_cache(turned=False), "kv-stale", "the cache: K is stored as it was before RoPE"),
    "turned again": (k_of_cache(turned=True), "rope-twice", "K is turned once more when it is stored"),
    "empty slots": (
        lambda subject, stack: patch_attention(subject, stack, blocks=8),
        "mask-empty",
        "the whole last block of {blocks} slots is seen",
    ),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    patch, bug, said = FAULTS[fault]
    changes = {"num_hidden_layers": 2, "use_sliding_window": False}
    subject = draw(f"{SEED}-{fault}", family="qwen2", steps="mixed", changes=changes)
    with ExitStack() as stack:
        if patch is not None:
            patch(subject, stack)
        trace = record_hf(subject.hf, subject.steps, cache=FaultyCache(fault) if patch is None else None)
    diagnosis = Diagnoser(subject.graph, subject.weights, trace, seconds=1).run()
    text = "\n".join(diagnosis_lines(diagnosis, subject.graph, trace.info))
    assert [set(named.bugs) for named in diagnosis.named] == [{bug}], f"KARAT_SEED={SEED}: {text}"
    details = (detail for named in diagnosis.named for detail in (*named.details, *named.elsewhere))
    said = said.format(blocks=_told_blocks(subject.steps))
    assert not diagnosis.unexplained and any(said in detail for detail in details), f"KARAT_SEED={SEED}: {text}"


def _told_blocks(steps: Steps) -> int:
    """The smallest block that ends where one of 8 slots does in every step of a token: the first to explain a run."""

    def end(length: int, size: int) -> int:
        return -(-length // size) * size

    lengths = [start + 1 for start in steps.cuts if steps.stop_after(start) == start + 1]
    return next(size for size in (4, 8) if all(end(length, size) == end(length, 8) for length in lengths))


@settings(max_examples=20)
@given(data=st.data())
def test_what_the_slots_hold_is_found_step_by_step(data: st.DataObject) -> None:
    """Slots of two sequences are overwritten by tokens of the step, or lost; what each step sees there is told."""
    graph, weights = mistakes.model_of("llama")
    tokens = Tokens.of(mistakes.traces()["two"])
    context = Context(weights, tokens, np.arange(tokens.num_tokens))
    node = graph.nodes["model.layers.0.self_attn.scores"]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    num_heads, num_kv_heads, head_dim = (
        mistakes.SIZES[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    q = rng.standard_normal((tokens.num_tokens, num_heads, head_dim))
    k = rng.standard_normal((tokens.num_tokens, num_kv_heads, head_dim))
    held = tokens.owner.copy()
    table = tokens.sources().copy()
    for step in range(1, tokens.num_steps):
        sequence, position = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 3))
        here = np.flatnonzero(tokens.steps == step)
        held[sequence, position] = data.draw(st.sampled_from([NOBODY, *here.tolist()]))
        rows = tokens.steps >= step
        table[rows] = held[tokens.sequences[rows]]
    got = evaluate(node, [q, k], context, mistakes.F64)
    for row, sources in enumerate(table):
        made = np.einsum("hd,jhd->hj", q[row], np.repeat(k, num_heads // num_kv_heads, axis=1)) * node.params["scale"]
        there = np.where(sources == NOBODY, 0, made[:, np.maximum(sources, 0)])
        got[:, row] = np.where(np.isneginf(got[:, row]), -np.inf, there)
    right = evaluate(node, [q, k], context, mistakes.F64)
    with np.errstate(invalid="ignore"):
        wrong = np.nan_to_num(np.abs(got - right)) > 1e-9
    found = [
        variant
        for variant in caches(node, "model.layers.0.self_attn.attention", q, k, got, wrong, context)
        if np.allclose(evaluate(changed(node, variant.edits[node.name]), [q, k], context, mistakes.F64), got)
    ]
    assert bool(found) == bool(wrong.any())
