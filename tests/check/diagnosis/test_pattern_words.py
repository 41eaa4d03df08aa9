"""A pattern in words, and that a result without a name has one, once for all layers where it is the same."""

from collections.abc import Callable

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.pattern_words import token_text
from karat.check.diagnosis.wording import diagnosis_lines
from karat.check.trace.format import Array, Trace, make_info

pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.record.hf import record_hf
from tests.support.seed import SEED
from tools.zoo.models import draw

_SHAPE = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}


def _lines(change: Callable[[dict[str, Array]], None]) -> list[str]:
    """The lines of a diagnosis of a right run with some arrays changed."""
    changes = {**_SHAPE, "hidden_size": 64, "head_dim": 16}
    subject = draw(f"{SEED}-pattern", family="qwen3", steps="chunks", changes=changes)
    trace = record_hf(subject.hf, subject.steps)
    arrays = {name: np.array(array) for name, array in trace.arrays.items()}
    change(arrays)
    diagnosis = Diagnoser(subject.graph, subject.weights, Trace(trace.info, arrays), seconds=0.05).run()
    assert not diagnosis.named
    return diagnosis_lines(diagnosis, subject.graph, trace.info)


def test_the_same_head_in_all_layers_is_said_once() -> None:
    def change(arrays: dict[str, Array]) -> None:
        for layer in range(3):
            v = arrays[f"model.layers.{layer}.self_attn.v_proj"]
            v.reshape(len(v), 2, -1)[:, 1] += np.random.default_rng(layer).standard_normal((len(v), 16))

    lines = _lines(change)
    assert [line for line in lines if line.startswith("   wrong")] == [
        "   wrong      KV head 1 of 2 (a half: rank 1 of 2?), all tokens",
        "   wrong      heads 2-3 of 4 (a half: rank 1 of 2?), all tokens",
    ], lines
    assert "   right      KV head 0" in lines and "   right      heads 0-1" in lines
    assert "   the same   self_attn.v_proj in layers 1-2" in lines
    assert "   the same   self_attn.attention in layers 1-2" in lines
    assert sum(line.startswith("unexplained: ") for line in lines) == 2


def test_columns_and_what_stands_there() -> None:
    """In the first and the last token, which are no step and no sequence alone: in one it would have a name."""

    def change(arrays: dict[str, Array]) -> None:
        gate = arrays["model.layers.1.mlp.gate_proj"].reshape(-1, 64)
        gate[[0, -1]] = np.roll(gate[[0, -1]], 32, axis=1)
        arrays["model.layers.2.mlp.down_proj"][0] = arrays["model.layers.2.mlp.down_proj"][1]

    lines = _lines(change)
    assert "   instead    of 2 equal parts of the columns, the right values of parts 1, 0" in lines, lines
    assert "   wrong      all columns, position 0: token 0 (position 0, step 0)" in lines, lines
    assert any(line.startswith("   right      tokens 1-") for line in lines)
    assert "   instead    the right values of the token 1 position after" in lines


def test_a_token_is_said_with_its_sequence_position_and_step() -> None:
    info = make_info([5, 6, 7, 8], sequences=(0, 1, 0, 1), steps=(0, 2))
    assert token_text(3, info) == "token 3 (sequence 1, position 1, step 1)"
    assert token_text(3, make_info([5, 6, 7, 8])) == "token 3"
