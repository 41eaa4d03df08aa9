"""A shape's file is a model that Karat opens, with a tokenizer, and that gives tokens."""

from pathlib import Path

import pytest

from karat import LLM, SamplingParams
from karat.bench.shape_file import write_shape
from karat.errors import UsageError


def test_the_file_is_a_whole_model(tmp_path: Path) -> None:
    write_shape(tmp_path / "tiny.gguf", "tiny", "q8_0")
    with LLM(tmp_path / "tiny.gguf", generation_config="none") as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3


def test_a_shape_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not known"):
        write_shape(tmp_path / "x.gguf", "no-shape", "bf16")
    assert not list(tmp_path.iterdir())
