"""Live: a file that Karat writes of each family beside what llama.cpp computes on it, both in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.models.families import FAMILIES as FORMS
from karat.models.opening import open_model
from karat.models.registry import read_config
from tests.convert.folders import FAMILIES, folder_of

llama_cpp = pytest.importorskip("llama_cpp", exc_type=ImportError)
pytestmark = pytest.mark.peers
NEAR = 1e-4  # of the deviation; the root mean square of the differences is 3e-7 to 5e-5
CASES: dict[str, dict[str, Any]] = {  # what llama.cpp computes as the model is
    "exaone4": {},
    "gemma2": {"tie_word_embeddings": True},
    "gemma3_text": {},
    "granite": {},
    "ministral3": {},
    "muse_glimmer_text": {},
    "olmo2": {},
    "olmo3": {},
    "phi3": {"sliding_window": None},
    "phi3 with longrope": {"sliding_window": None},
    "seed_oss": {},
    "smollm3": {},
}


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", 5, **FAMILIES[name] | CASES[name])
    source = open_model(folder)
    config = read_config(source.config)
    assert FORMS[config.model_type].gguf.not_in_llama_cpp(config) is None
    convert(source, tmp_path / "model.gguf", MIXES["F32"])
    ids = np.random.default_rng(0).integers(3, 60, 60).tolist()
    ours = LLM(tmp_path / "model.gguf", executor="reference", dtype="float64", max_model_len=128).logits(ids)
    theirs = llama_cpp.Llama(
        str(tmp_path / "model.gguf"), n_ctx=128, logits_all=True, verbose=False, type_k=0, type_v=0, flash_attn=False
    )
    theirs.eval(ids)
    apart = np.array(theirs.scores[: len(ids)]) - ours
    assert np.sqrt(np.square(apart).mean()) <= NEAR * ours.std()
