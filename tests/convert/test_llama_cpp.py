"""llama.cpp on what `convert` writes: it gives the same types to the same tensors, loads the files and agrees."""

import ctypes
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from karat.checkpoint import open_model
from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.request import SamplingParams
from karat.text import Tokenizer

llama_cpp: Any = pytest.importorskip("llama_cpp", exc_type=ImportError)
PROMPT = "One day a fox found a lantern"


@pytest.fixture(scope="module")
def f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model in float32."""
    path = tmp_path_factory.mktemp("models") / "f32.gguf"
    convert(open_model(embedded_model_path()), path, MIXES["F32"])
    return path


def loaded(path: Path) -> Any:
    return llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, logits_all=True, verbose=False)


def logits(path: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    model = loaded(path)
    model.eval(ids)
    return np.array(model.scores[: len(ids)])


@pytest.mark.parametrize("name", [name for name, mix in MIXES.items() if mix.base not in ("F32", "F16", "BF16")])
def test_the_same_types_and_blocks(name: str, f32: Path, tmp_path: Path) -> None:
    """As llama.cpp's quantiser of the same file; the error of K formats is at most 1.02 times its."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = MIXES[name].file_type, 1
    theirs, ours = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    assert llama_cpp.llama_model_quantize(str(f32).encode(), str(theirs).encode(), ctypes.byref(options)) == 0
    convert(open_model(f32), ours, MIXES[name])
    found, expected = ({t.name: t for t in gguf.GGUFReader(path).tensors} for path in (ours, theirs))
    values = {t.name: t.data for t in gguf.GGUFReader(f32).tensors}
    assert {n: t.tensor_type for n, t in found.items()} == {n: t.tensor_type for n, t in expected.items()}
    errors: dict[str, list[float]] = {}
    for tensor_name, tensor in expected.items():
        kind = tensor.tensor_type.name
        if not kind.endswith("_K"):
            assert found[tensor_name].data.tobytes() == tensor.data.tobytes()
            continue
        for i, data in enumerate((found[tensor_name].data, tensor.data)):
            back = gguf.quants.dequantize(data, tensor.tensor_type).astype(np.float64)
            errors.setdefault(kind, [0.0, 0.0])[i] += float(np.square(back - values[tensor_name]).sum())
    print(name, {kind: ours / theirs for kind, (ours, theirs) in errors.items()})
    for own, other in errors.values():
        assert own <= 1.02 * other


def test_it_goes_on_with_the_same_tokens(f32: Path) -> None:
    """Greedily, from the F32 file; its sampler is ours: the largest logit."""
    model = loaded(f32)
    ids = Tokenizer.of(open_model(f32)).encode(PROMPT)
    expected: list[int] = []
    model.eval(ids)
    for _ in range(24):
        expected.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(expected[-1:])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (output,) = LLM(f32, executor="reference").generate(PROMPT, params)
    assert list(output.outputs[0].token_ids) == expected


def test_files_of_the_same_blocks_behave_the_same(f32: Path, tmp_path: Path) -> None:
    """In llama.cpp, bit for bit, whichever of the two wrote the file."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = MIXES["Q8_0"].file_type, 1
    theirs, ours = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    assert llama_cpp.llama_model_quantize(str(f32).encode(), str(theirs).encode(), ctypes.byref(options)) == 0
    convert(open_model(embedded_model_path()), ours, MIXES["Q8_0"])
    ids = Tokenizer.of(open_model(f32)).encode(PROMPT)
    np.testing.assert_array_equal(logits(ours, ids), logits(theirs, ids))


def test_it_tokenises_the_same(f32: Path) -> None:
    model, tokenizer = loaded(f32), Tokenizer.of(open_model(f32))
    for text in (PROMPT, "  two  spaces\n\nand 1234 Ünïcödé 🙂", "<|im_start|>user\nHello<|im_end|>\n", "don't I'LL"):
        assert model.tokenize(text.encode(), add_bos=False, special=True) == tokenizer.encode(text)
