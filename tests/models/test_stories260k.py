"""A really trained model, from files to greedy tokens, through checkpoint, tokenizer-free ids and cache."""

import json
from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint import open_folder
from karat.models.registry import build, read_config
from karat.ops.reference import ReferenceOps
from tests.support import forward

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball."
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_greedy_story(data_dir: Path, dtype: str) -> None:
    """As transformers and llama.cpp continue it (data README)."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = data_dir / "stories260k"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    checkpoint = open_folder(folder)
    config = read_config(checkpoint.config)
    assert config == read_config(json.loads((folder / "config.json").read_text()))
    model = build(config, ReferenceOps(dtype), checkpoint, num_positions=128)
    want = tokenizer.encode(STORY).ids
    start = len(tokenizer.encode("Once upon a time").ids)
    (logits,) = forward.run(model, [want[:-1]])
    assert (np.argmax(logits[start - 1 :], axis=-1) == want[start:]).all()
