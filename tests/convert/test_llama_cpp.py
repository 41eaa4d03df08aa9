"""llama.cpp on what `convert` writes: it gives the same types to the same tensors, loads the files and agrees.

What of this needs no llama.cpp is in test_llama_cpp_files.py.
"""

from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint import open_model
from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.ops.native import unavailable_reason
from karat.request import SamplingParams
from karat.text import Tokenizer
from tests.convert.comparing import compare_blocks
from tools.peers.models import FAMILIES, make_folder

pytest.importorskip("llama_cpp", exc_type=ImportError)
from tools.peers.llama import LlamaCpp, quantise

pytestmark = pytest.mark.peers
PROMPT = "One day a fox found a lantern"
# Types whose blocks are ggml's bit for bit, so whole files can be the same.
EXACT = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


@pytest.fixture(scope="module")
def f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in float32."""
    path = tmp_path_factory.mktemp("models") / "f32.gguf"
    convert(open_model(embedded_model_path()), path, MIXES["F32"])
    return path


@pytest.mark.parametrize("name", [name for name, mix in MIXES.items() if mix.base not in ("F32", "F16", "BF16")])
def test_the_same_types_and_blocks(name: str, f32: Path, tmp_path: Path) -> None:
    """As llama.cpp's quantiser of the same file; the error of K formats is at most 1.02 times its."""
    theirs, ours = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    quantise(f32, theirs, MIXES[name].file_type)
    convert(open_model(f32), ours, MIXES[name])
    compare_blocks(ours, theirs, f32)


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


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("model", ["embedded", *FAMILIES])
def test_files_of_the_same_blocks_behave_the_same(model: str, name: str, f32: Path, tmp_path: Path) -> None:
    """In llama.cpp, bit for bit, whichever of the two wrote the file: logits of a text, and the tokens after it.

    All matrices in the one type: in a mix the head would be of Q6_K, whose blocks are searched for.
    """
    folder = embedded_model_path() if model == "embedded" else make_folder(tmp_path / model, model)
    source, theirs, ours = f32, tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    if model != "embedded":
        source = tmp_path / "f32.gguf"
        convert(open_model(folder), source, MIXES["F32"])
    quantise(source, theirs, MIXES[name].file_type, pure=True)
    convert(open_model(folder), ours, MIXES[name], pure=True)
    assert compare_blocks(ours, theirs, source) >= 9
    ids = Tokenizer.of(open_model(source)).encode("the inner thing" if model != "embedded" else PROMPT)
    found = []
    for path in (ours, theirs):
        with LlamaCpp(path) as peer:
            found.append((peer.logits(ids), peer.greedy(ids, 12)))
    np.testing.assert_array_equal(found[0][0].view(np.uint32), found[1][0].view(np.uint32))
    assert found[0][1] == found[1][1]


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
