"""The guard stops at the op where a number goes wrong, ends only the request at fault, and changes no bit."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat import LLM, SamplingParams
from karat.batch import ForwardBatch
from karat.ops import registry
from karat.ops.api import Embedding, Linear, Op, PagedAttention, Rope
from karat.ops.reference import ReferenceOps
from tests.cli import alphabet_model


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with NaN in the embedding of one token."""
    folder = alphabet_model.write(tmp_path_factory.mktemp("models") / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = np.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def test_the_first_op_that_is_not_finite_is_named(broken: Path) -> None:
    llm = LLM(broken, guard=True, executor="reference")
    with np.errstate(all="ignore"):
        good, bad = llm.generate([[1, 2, 3], [4, 5, 7, 6]], GREEDY)
    assert good.outputs[0].finish_reason == "length" and len(good.outputs[0].token_ids) == 3
    assert bad.outputs[0].finish_reason == "error"
    error = str(bad.outputs[0].error)
    assert "model.embed_tokens[2, 0]: nan at position 2 of sequence 0" in error


def test_the_bits_are_the_same(broken: Path) -> None:
    plain, guarded = (LLM(broken, guard=guard).logits([1, 2, 3, 9]) for guard in (False, True))
    np.testing.assert_array_equal(plain, guarded)


class Wrong(ReferenceOps):
    """The reference, with one op wrong for the token at position 2."""

    def __init__(self, what: str) -> None:
        super().__init__("float32")
        self.what = what

    def _spoilt(self, what: str, x: np.ndarray, step: ForwardBatch, factor: float) -> np.ndarray:
        if what == self.what:
            x = np.array(x)
            x[step.positions == 2] *= np.float32(factor)
        return x

    def begin(self, batch: ForwardBatch) -> ForwardBatch:
        self.batch = batch
        return batch

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, PagedAttention) and (observe := op.observe):
            op = replace(op, observe=lambda what, values: observe(what, self._weights(what, values)))
        out = super().apply(op)
        match op:
            case Rope():
                return self._spoilt("rope", out, op.step, 1.01)
            case Embedding():
                return self._spoilt("embedding", out, op.step, 1e20)
            case Linear(name="lm_head") if self.what in ("same", "absurd"):
                out = np.array(out)
                out[-1] = out[-1, 0] if self.what == "same" else out[-1] * np.float32(1e7)
        return out

    def _weights(self, what: str, values: np.ndarray) -> np.ndarray:
        if self.what == "weights" and what == "weights":
            values = values.copy()
            values[1, -1] *= 0.9
        return values


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("rope", r"layers\.0\.self_attn\.q_rope\[2, 0\]: 1\.01 at position 2 of sequence 0 .* RoPE must keep lengths"),
        ("embedding", r"model\.embed_tokens\[2, \d+\]: .*e\+\d+ at position 2 .* magnitudes stay below 1e\+18"),
        ("same", r"lm_head\[0, 0\]: .* at position \d of .* all logits of the token are this number"),
        ("absurd", r"lm_head\[0, \d+\]: .* magnitudes stay below 1e\+06"),
        (
            "weights",
            r"layers\.0\.self_attn\.weights\[1, \d\]: weights of at least [\d.]+ with sum 0\.9,.* head 1 ",
        ),
    ],
)
def test_values_that_no_model_gives_are_named(what: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "create", lambda *_, **__: Wrong(what))
    llm = LLM(guard=True, max_model_len=32)
    (output,) = llm.generate([[4, 5, 7, 6]], GREEDY)
    assert output.outputs[0].finish_reason == "error"
    assert re.search(complaint, str(output.outputs[0].error)), output.outputs[0].error


@pytest.mark.parametrize("executor", ["reference", "auto"])
def test_the_embedded_model_passes_with_the_same_bits(executor: str) -> None:
    plain, guarded = (
        LLM(guard=guard, executor=executor, max_model_len=64).generate(["Once upon a time", "The cat"], GREEDY)
        for guard in (False, True)
    )
    for a, b in zip(plain, guarded, strict=True):
        assert b.outputs[0].finish_reason == "length" and a.outputs[0].token_ids == b.outputs[0].token_ids
