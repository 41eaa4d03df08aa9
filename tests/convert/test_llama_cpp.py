"""llama.cpp on what `convert` writes: it gives the same types to the same tensors, loads the files and agrees.

What of this needs no llama.cpp is in test_llama_cpp_files.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.models.opening import open_model
from karat.models.registry import Model, build, read_config
from karat.ops import api
from karat.ops.native import unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.request import SamplingParams
from karat.text import Tokenizer
from tests.convert.comparing import assert_same_tensors
from tests.convert.folders import FAMILIES as GGUF_FAMILIES
from tests.convert.folders import folder_of
from tests.support.forward import run
from tools.peers.models import FAMILIES, make_folder

pytest.importorskip("llama_cpp", exc_type=ImportError)
from tools.peers.llama import LlamaCpp, quantise

pytestmark = pytest.mark.peers
CONFIGS = {
    **GGUF_FAMILIES,
    "gemma2": {**GGUF_FAMILIES["gemma2"], "tie_word_embeddings": True},
    "tied": {"tie_word_embeddings": True},
    "yarn llama": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "llama 3, other factors": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.5,
            "high_freq_factor": 8.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear qwen2": {"model_type": "qwen2", "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "olmoe with as many KV heads": {**GGUF_FAMILIES["olmoe"], "num_key_value_heads": 4},
    "lfm2 without biases": {**GGUF_FAMILIES["lfm2"], "conv_bias": False},
    "qwen3 with biases": {"model_type": "qwen3", "head_dim": 32, "attention_bias": True},
    "qwen2 with wide heads": {"model_type": "qwen2", "head_dim": 32},
}
# Of these converting warns: what llama.cpp does not load, computes otherwise, and computes without the window.
NOT_LOADED = {"qwen3 with biases", "qwen2 with wide heads", "lfm2", "olmoe"}
OTHERWISE = {"exaone4 with windows"}
WITHOUT_WINDOW = {"mistral with a window", "phi3"}
# Seed 0 draws layers that amplify a rounding 70 times as much: 1.7e-5 of the deviation in Karat's float32.
SEEDS = {"gemma4_text": 1}
PROMPT = "One day a fox found a lantern"


class GeluOfLlamaCpp(ReferenceOps):
    """float64, but GELU as llama.cpp has it: between -10 and 10 a table of float16, of x rounded to float16."""

    def apply(self, op: api.Op[Any]) -> Any:
        if not isinstance(op, api.GeluMul):
            return super().apply(op)
        x: NDArray[np.float32] = op.gate.astype(np.float16).astype(np.float32)
        slope, third = np.float32(np.sqrt(2 / np.pi)), np.float32(0.044715)
        table = x / 2 * (1 + np.tanh(slope * x * (1 + third * x * x)))
        return np.where(np.abs(op.gate) < 10, table.astype(np.float16), np.maximum(op.gate, 0)) * op.up


@pytest.fixture(scope="module")
def f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in float32."""
    path = tmp_path_factory.mktemp("models") / "f32.gguf"
    convert(open_model(embedded_model_path()), path, MIXES["F32"])
    return path


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_it_goes_on_with_the_same_tokens(executor: str, f32: Path) -> None:
    """Greedily, from the F32 file of the embedded model."""
    if executor == "native" and (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    ids = Tokenizer.of(open_model(f32)).encode(PROMPT)
    with LlamaCpp(f32) as model:
        expected = model.greedy(ids, 24)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (output,) = LLM(f32, executor=executor).generate(PROMPT, params)
    assert list(output.outputs[0].token_ids) == expected


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("model", ["embedded", *FAMILIES])
def test_its_own_file_has_the_same_blocks_and_behaves_the_same(
    model: str, name: str, f32: Path, tmp_path: Path
) -> None:
    """What its quantiser makes of Karat's F32 file, and what Karat makes of the model: all tensors and, in llama.cpp,
    logits of a text and the tokens after it, bit for bit.

    Where ggml's compiler fuses multiplications and additions, its K formats may choose between near equals otherwise.
    """
    folder = embedded_model_path() if model == "embedded" else make_folder(tmp_path / model, model)
    source, theirs, ours = f32, tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    if model != "embedded":
        source = tmp_path / "f32.gguf"
        convert(open_model(folder), source, MIXES["F32"])
    quantise(source, theirs, MIXES[name].file_type)
    convert(open_model(folder), ours, MIXES[name])
    assert_same_tensors(ours, theirs)
    ids = Tokenizer.of(open_model(source)).encode("the inner thing" if model != "embedded" else PROMPT)
    found = []
    for path in (ours, theirs):
        with LlamaCpp(path) as peer:
            found.append((peer.logits(ids), peer.greedy(ids, 12)))
    np.testing.assert_array_equal(found[0][0].view(np.uint32), found[1][0].view(np.uint32))
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("family", CONFIGS)
def test_it_computes_the_same_model(family: str, tmp_path: Path) -> None:
    """Every kind of RoPE, biases and tied heads, from F32 files; what it does not load is told on converting."""
    folder, path = folder_of(tmp_path / "model", SEEDS.get(family, 0), **CONFIGS[family]), tmp_path / "a.gguf"
    warnings = convert(open_model(folder), path, MIXES["F32"]).warnings
    told = any("llama.cpp does not" in warning for warning in warnings)
    assert told == (family in NOT_LOADED | OTHERWISE)
    assert any("llama.cpp computes without" in warning for warning in warnings) == (family in WITHOUT_WINDOW)
    if family in NOT_LOADED:
        with pytest.raises(AssertionError, match="does not load"):
            LlamaCpp(path)
        return
    ids = [int(token) for token in np.random.RandomState(0).randint(0, 4000, 100)]
    exact = run(as_llama_cpp(path), [ids])[0]
    with LlamaCpp(path) as peer:
        theirs = peer.logits(ids)
    window = 24 if family in WITHOUT_WINDOW else None
    near = np.sqrt(np.square(theirs[:window] - exact[:window]).mean()) <= 3e-5 * exact.std()
    assert near == (family not in OTHERWISE)
    assert window is None or not np.allclose(theirs[window:], exact[window:], atol=0.1 * exact.std())


def as_llama_cpp(path: Path) -> Model:
    """The model in float64, with what llama.cpp computes otherwise: GELU, and yarn of gpt_oss, which it truncates."""
    checkpoint = open_model(path)
    config = read_config(checkpoint.config).reading(256)
    if config.model_type == "gpt_oss":
        config = replace(config, rope=replace(config.rope, truncate=True))
    return build(config, GeluOfLlamaCpp("float64"), checkpoint, num_positions=256)


def test_it_tokenises_the_same(f32: Path) -> None:
    tokenizer = Tokenizer.of(open_model(f32))
    with LlamaCpp(f32) as model:
        for text in (
            PROMPT,
            "  two  spaces\n\nand 1234 Ünïcödé 🙂",
            "<|im_start|>user\nHello<|im_end|>\n",
            "don't I'LL",
        ):
            assert model.tokenise(text) == tokenizer.encode(text)
