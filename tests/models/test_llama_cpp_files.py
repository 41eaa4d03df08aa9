"""Logits on files made by llama.cpp's quantiser (python -m tools.peers.record), and beside what llama.cpp computed.

Karat's native logits with activations of 24 bits are within 1e-4 of their deviation of the float64 reference on the
dequantised weights, which is the same computation up to roundings; with integers, within what those cost. llama.cpp's
own logits show that this is the same model: they differ by what rounding activations to 8 bits (16 in F16, 8 in BF16)
costs, measured by python -m tools.peers.distance.
"""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from karat.checkpoint.gguf.form import ROPE_FACTORS
from karat.config import Activations
from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.models.families import FAMILIES
from karat.models.opening import open_model
from karat.ops.native import unavailable_reason
from karat.request import SamplingParams
from tools.peers.models import make_folder, prompt
from tools.peers.recorded import DATA, NUM_GREEDY, PLAIN, PREFIX_LEN, STORED

NEAR = 1e-4
# The largest difference over the deviation, by activations: about four times what was measured (1.4e-3, 0.2).
WIDTHS: Mapping[Activations, float] = {"int24": NEAR, "int16": 5e-3, "int8": 0.8}
# Root mean square of llama.cpp's differences over the deviation: about three times what was measured.
THEIRS = {"F32": 2e-6, "F16": 4e-3, "BF16": 3e-2, "quantised": 0.12}
FILES = [(family, name) for family, names in STORED.items() for name in (*names, "F32", *PLAIN)]


@pytest.fixture(params=FILES, ids="-".join)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Family and type, with the file: llama.cpp's, or for plain types Karat's, which has the same bytes."""
    family, name = request.param
    path = DATA / f"{family}-{name}.gguf"
    if name not in STORED[family]:
        path = tmp_path / f"{family}-{name}.gguf"
        convert(open_model(make_folder(tmp_path / family, family)), path, MIXES[name])
    return f"{family}-{name}", path


@pytest.mark.drawn(10)
def test_logits(file: tuple[str, Path]) -> None:
    name, path = file
    ids = prompt()
    exact = LLM(path, executor="reference", dtype="float64").logits(ids)
    single = LLM(path, executor="reference").logits(ids)
    assert exact.std() > 1
    assert np.abs(single - exact).max() <= NEAR * exact.std()
    with np.load(DATA / "results.npz") as results:
        theirs = results[f"{name}.logits"]
    distance = np.sqrt(np.square(theirs - exact).mean()) / exact.std()
    print(f"{name}: llama.cpp {distance:.1e}")
    kind = name.partition("-")[2]
    assert distance <= THEIRS.get(kind, THEIRS["quantised"])
    if (reason := unavailable_reason()) is None:
        for activations, bound in WIDTHS.items():
            with LLM(path, executor="native", kv_dtype="float32", activations=activations) as llm:
                native = llm.logits(ids)
                bound = bound if llm.activations == activations else NEAR
            assert np.abs(native - exact).max() <= bound * exact.std(), activations
    else:
        pytest.skip(f"no native executor: {reason}")


@pytest.mark.parametrize("family", STORED)
def test_f32_goes_on_with_the_same_tokens(family: str, tmp_path: Path) -> None:
    convert(open_model(make_folder(tmp_path / family, family)), tmp_path / "f32.gguf", MIXES["F32"])
    with np.load(DATA / "results.npz") as results:
        expected = results[f"{family}-F32.greedy"].tolist()
    assert len(expected) == NUM_GREEDY
    params = SamplingParams(temperature=0, max_tokens=NUM_GREEDY, ignore_eos=True)
    (output,) = LLM(tmp_path / "f32.gguf").generate([prompt()[:PREFIX_LEN]], params)
    assert list(output.outputs[0].token_ids) == expected


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in STORED.items() for name in names])
def test_values_are_those_of_the_gguf_package(family: str, name: str) -> None:
    """Bit for bit, in every tensor of every file, and nothing is left out."""
    path = DATA / f"{family}-{name}.gguf"
    opened = open_model(path)
    weights, form = opened.weights, FAMILIES[opened.config["model_type"]].gguf
    compared = set()
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == ROPE_FACTORS:
            continue
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        (found,) = (weight for name, weight in weights.items() if form.stored_name(name) == tensor.name)
        got = found.to_array(np.dtype(np.float32)).reshape(-1)
        if found.row_order is not None:
            expected = expected[found.row_order()]
        np.testing.assert_array_equal(got.view(np.uint32), expected.reshape(-1).view(np.uint32))
        compared.add(found.name)
    assert compared == set(weights)
