"""Traces of ranks are joined to what one engine would have written, and a bug of sharding is named from them."""

import os
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.gathering import gathered  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from karat.errors import TraceError  # noqa: E402
from tools.zoo.models import draw  # noqa: E402

SEED = os.environ.get("KARAT_SEED", "20261121")
COLUMNS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "q_rope",
    "k_rope",
    "attention",
    "gate_proj",
    "up_proj",
    "act",
)


def _split(trace: Trace, ranks: int, kv_heads: int) -> Trace:
    """What `ranks` ranks would have written, made without the code that joins it."""
    arrays = {}
    for name, array in trace.arrays.items():
        last = name.rpartition(".")[2]
        for rank in range(ranks):
            if last in ("scores", "weights"):
                part = np.array_split(array, ranks, axis=0)[rank]
            elif last in ("k_proj", "v_proj", "k_norm", "k_rope") and kv_heads < ranks:
                heads = array.reshape(len(array), kv_heads, -1)
                part = heads[:, rank * kv_heads // ranks][:, None]
            elif last in COLUMNS:
                part = np.array_split(array, ranks, axis=1)[rank]
            else:
                part = array
            arrays[f"{name}@{rank}"] = part
    return Trace(replace(trace.info, ranks=ranks), arrays)


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 2), (2, 1), (4, 2)])
def test_ranks_are_joined(ranks: int, kv_heads: int) -> None:
    changes = {"num_attention_heads": 4, "num_key_value_heads": kv_heads, "hidden_size": 48, "intermediate_size": 64}
    subject = draw(f"{SEED}-ranks", family="qwen2", changes=changes)
    trace = record_hf(subject.hf, subject.steps)
    whole, differing = gathered(subject.graph, _split(trace, ranks, kv_heads))
    assert not differing and whole.info == replace(trace.info, ranks=ranks) and set(whole.arrays) == set(trace.arrays)
    for name, array in trace.arrays.items():
        np.testing.assert_array_equal(whole.arrays[name].reshape(array.shape), array)


def test_a_bias_added_on_every_rank_is_named() -> None:
    changes = {"attention_bias": True, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48}
    subject = draw(f"{SEED}-ranks-bias", family="llama", changes=changes)
    for layer in subject.hf.model.layers:
        layer.self_attn.o_proj.bias.data *= 2
    whole, _ = gathered(subject.graph, _split(record_hf(subject.hf, subject.steps), 2, 2))
    diagnosis = Diagnoser(subject.graph, subject.weights, whole, seconds=1).run()
    assert [sorted(named.bugs) for named in diagnosis.named] == [["bias-times-tp"]]


def test_ranks_that_differ_or_are_missing_are_told() -> None:
    subject = draw(
        f"{SEED}-ranks-missing",
        family="qwen2",
        changes={"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48},
    )
    trace = _split(record_hf(subject.hf, subject.steps), 2, 2)
    arrays = dict(trace.arrays)
    arrays["model.layers.0@1"] = arrays["model.layers.0@1"] + 1
    assert gathered(subject.graph, Trace(trace.info, arrays))[1] == ["model.layers.0"]
    del arrays["model.norm@1"]
    with pytest.raises(TraceError, match=r"model\.norm: there are ranks \[0\], expected 0 to 1"):
        gathered(subject.graph, Trace(trace.info, arrays))
