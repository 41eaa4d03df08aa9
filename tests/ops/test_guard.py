"""The guard stops at the op where a number goes wrong, ends only the request at fault, and changes no bit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat import LLM, SamplingParams
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
