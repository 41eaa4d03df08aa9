"""llama.cpp's runs, through its evaluation callback: complete, in Karat's names, and right.

Covers: karat.check.record.llamacpp_worker.
"""

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.peers import graph_of
from karat.check.diagnosis.verdict import Diagnosis
from karat.check.model.checked import CheckedModel, open_model
from karat.check.model.graph import build_graph
from karat.check.model.weights import CheckpointWeights, digest
from karat.check.record import llamacpp, llamacpp_worker
from karat.check.record.executors import Steps
from karat.check.record.llamacpp import llamacpp_tokens, record_llamacpp
from karat.check.replay.noise import ggml_half_step
from karat.check.trace.format import Trace
from karat.check.trace.reading import read_trace
from karat.check.trace.selection import EVERYTHING, Selection
from karat.convert import MIXES, convert
from karat.errors import ExecutorError
from karat.models.opening import open_model as open_checkpoint
from karat.quant import FORMATS
from tests.convert.folders import FAMILIES, folder_of
from tools.zoo.llamacpp import STEPS, tiny

SEED = int(os.environ.get("KARAT_SEED", "20261121"), 36) % 2**31
needs_llama = pytest.mark.skipif(not llamacpp.is_installed(), reason="llama-cpp-python is not installed")
IDS = tuple(np.random.default_rng(SEED).integers(3, 4096, 14).tolist())


def gguf(folder: Path, mix: str, **changes: object) -> CheckedModel:
    path = folder / f"{mix}.gguf"
    convert(open_checkpoint(folder_of(folder / "model", SEED, **changes)), path, MIXES[mix])
    return open_model(str(path))


def judged(model: CheckedModel, trace: Trace) -> Diagnosis:
    return Diagnoser(graph_of(trace.info, model), model.weights(trace.info.dtype), trace, seconds=1).run()


# What llama.cpp needs to load a model, or for the factors of a short context.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True},
    "lfm2": {"conv_bias": False},
    "olmoe": {"num_key_value_heads": 4},
    "phi3 with longrope": {"original_max_position_embeddings": 256, "max_position_embeddings": 512},
}
_OF_GEMMA4 = "router.normed chosen_weights mlp_residual input_residual per_layer_input_act".split()
_OF_LFM2 = ".conv. attention_residual q_rope k_rope".split()
_OF_PHI3 = "q_proj k_proj v_proj gate_proj up_proj attention_residual".split()
# Results that have no name there, or are none: parts of a fused tensor, a logit's multiplier, sums and gates.
UNSEEN: dict[str, list[str]] = {
    "gemma4_text": _OF_GEMMA4,
    "gemma4_text with layers that read earlier ones": [
        *_OF_GEMMA4,
        "layer_inputs",
        "_per_layer_scaled",
        "_projection_scaled",
    ],
    "gemma4_unified_text": _OF_GEMMA4,
    "granite": ["lm_head_input"],
    "lfm2": _OF_LFM2,
    "lfm2_moe": _OF_LFM2,
    "muse_glimmer_text": "normed q_rope k_rope attention gated lm_head_input lm_head_uncapped".split(),
    "phi3": _OF_PHI3,
    "phi3 with longrope": _OF_PHI3,
}
# What llama.cpp computes otherwise: RoPE in other layers, of which converting warns; weights without the 1e-6 of their
# sum.
OTHERWISE = {"exaone4 with windows": "rope-extra", "lfm2_moe": "expert-weights"}


@needs_llama
@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_result_of_every_family_is_there_and_right(family: str, tmp_path: Path) -> None:
    """In float32; prompt in two steps, then tokens decoded one by one."""
    model = gguf(tmp_path, "F32", **FAMILIES[family] | CHANGES.get(family, {}))
    trace = record_llamacpp(model.path, model.stored, Steps.chunked(IDS, 9, 3))
    assert trace.info.num_tokens == 17 and trace.info.steps == (0, 9, 14, 15, 16)
    assert family in OTHERWISE or trace.arrays.keys() <= model.graph.nodes.keys()
    diagnosis = judged(model, trace)
    unseen = UNSEEN.get(family, [])
    assert not [name for name in diagnosis.missing if not any(part in name for part in unseen)]
    if family in OTHERWISE:
        classes = {name for named in diagnosis.named for each in named.classes for name in each}
        assert classes <= {OTHERWISE[family]} and not diagnosis.unexplained
        return
    assert diagnosis.is_healthy, diagnosis
    assert max(finding.ratio for finding in diagnosis.findings) < 5


@needs_llama
@pytest.mark.drawn(2)
@pytest.mark.parametrize("mix", ["F16", "Q8_0", "MXFP4_MOE"])
@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_files_of_mixtures_have_the_floor_of_its_rounding(family: str, mix: str, tmp_path: Path) -> None:
    """And wrong weights of experts are seen above it."""
    sizes = {"hidden_size": 256, "intermediate_size": 256}
    if family == "qwen2_moe":
        sizes |= {"moe_intermediate_size": 256}
    model = gguf(tmp_path, mix, **FAMILIES[family] | sizes)
    trace = record_llamacpp(model.path, model.stored, Steps.chunked(IDS, None))
    diagnosis = judged(model, trace)
    assert diagnosis.is_healthy and not diagnosis.missing, diagnosis.unexplained
    weights = trace.arrays["model.layers.1.mlp.chosen_weights"]
    arrays = dict(trace.arrays) | {"model.layers.1.mlp.chosen_weights": np.roll(weights, 1, axis=-1)}
    assert not judged(model, Trace(trace.info, arrays)).is_healthy


@needs_llama
@pytest.mark.parametrize("mix", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q6_K"])
def test_files_whose_activations_it_rounds_have_a_floor_of_their_own(mix: str, tmp_path: Path) -> None:
    """And a wrong weight is seen above it."""
    if mix not in MIXES:
        pytest.skip(f"convert makes no {mix}")
    sizes = {"hidden_size": 256, "intermediate_size": 512}
    model = gguf(tmp_path, mix, model_type="qwen2", **sizes)
    trace = record_llamacpp(model.path, model.stored, Steps.chunked(IDS, None))
    assert trace.info.activations == "ggml"
    diagnosis = judged(model, trace)
    assert diagnosis.is_healthy, diagnosis.unexplained
    arrays = dict(trace.arrays)
    arrays["model.layers.1.mlp.up_proj"] = arrays["model.layers.1.mlp.gate_proj"]
    assert not judged(model, Trace(trace.info, arrays)).is_healthy


@needs_llama
def test_a_selection_keeps_what_was_asked_for(tmp_path: Path) -> None:
    model = gguf(tmp_path, "F32")
    selection = Selection(frozenset({1}), heads=(0, 3), logit_rows=2)
    trace = record_llamacpp(model.path, model.stored, Steps.chunked(IDS, None), selection=selection)
    assert {name.split(".")[2] for name in trace.arrays if name.startswith("model.layers.")} == {"1"}
    assert trace.arrays["model.layers.1.self_attn.scores"].shape == (2, len(IDS), len(IDS))
    assert len(trace.arrays["lm_head"]) == 2
    assert judged(model, trace).is_healthy


@needs_llama
def test_its_tokenizer_gives_ids_of_texts(tmp_path: Path) -> None:
    model = gguf(tmp_path, "F32")
    assert llamacpp_tokens(model.path, {"none": ""}, {}).ids["none"] == []
    assert len(llamacpp_tokens(model.path, {"x": "Once upon a time"}, {}).ids["x"]) >= 4


@needs_llama
def test_what_it_refuses_is_an_error_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ExecutorError, match=r"llama\.cpp ended with code 1: it does not load this file"):
        record_llamacpp(path, {}, Steps((1, 2)))


def test_where_it_is_not_installed_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "is_installed", lambda: False)
    with pytest.raises(ExecutorError, match="pip install llama-cpp-python"):
        record_llamacpp(Path("x.gguf"), {}, Steps((1, 2)))


def test_a_recorded_trace_of_it_is_healthy(pytestconfig: pytest.Config) -> None:
    """Made by `python -m tools.zoo.llamacpp`; needs no llama.cpp."""
    trace = read_trace(pytestconfig.rootpath / "tests/data/llama_cpp_tiny.trace")
    _, config, stored = tiny()
    assert trace.info.digest == digest(stored), "the model is drawn otherwise now: record the trace anew"
    assert trace.info.token_ids[: len(STEPS.prompt)] == STEPS.prompt and trace.info.activations == "ggml"
    diagnosis = Diagnoser(build_graph(config), CheckpointWeights(stored), trace, seconds=1).run()
    assert diagnosis.is_healthy and not diagnosis.missing
    assert max(finding.ratio for finding in diagnosis.findings) < 5


@pytest.mark.parametrize("stored", ["Q8_0", "Q4_K", "F16", "BF16"])
def test_half_a_step_is_as_far_as_rounding_goes(stored: str) -> None:
    """Against rounding itself: 8-bit blocks scaled by their largest magnitude, or a float of fewer bits."""
    x = np.random.default_rng(SEED).standard_normal((5, 512))
    step = ggml_half_step(x, stored)
    assert step is not None
    if stored in FORMATS:
        blocks = x.reshape(5, -1, FORMATS[stored].block_size)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        rounded = (np.rint(blocks / scale) * scale).reshape(x.shape)
    elif stored == "F16":
        rounded = x.astype(np.float16).astype(np.float64)
    else:
        bits = (x.astype(np.float32).view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
        rounded = bits.view(np.float32).astype(np.float64)
    moved = np.abs(rounded - x)
    assert (moved <= step * 1.001 + 1e-7).all() and moved.max() > 0.5 * step.min()
    assert ggml_half_step(x, "F32") is None


class Ggml:
    """A library whose tensors are as `_Tensor` says, or a few bytes longer."""

    def __init__(self, more: int) -> None:
        self.values = np.arange(6, dtype=np.float32)

        def named(_address: int) -> bytes:
            return b"kq-0"

        def data(_address: int) -> int:
            return self.values.ctypes.data

        def num_bytes(_address: int) -> int:
            return self.values.nbytes + more

        def op_name(_op: int) -> bytes:
            return b"NONE"

        self.ggml_get_name, self.ggml_get_data, self.ggml_nbytes = named, data, num_bytes
        self.ggml_op_name = op_name


def values_of(ggml: Ggml) -> NDArray[np.float32]:
    tensor = llamacpp_worker._Tensor(type=0, ne=(3, 2, 1, 1), nb=(4, 12, 24, 24))
    observer = llamacpp_worker._Observer(ggml, EVERYTHING, frozenset((64,)), "9.9.9")
    return observer._values(ctypes.addressof(tensor), 2)


def test_a_version_that_keeps_its_tensors_in_another_way_is_named() -> None:
    np.testing.assert_array_equal(values_of(Ggml(0)), [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(
        ExecutorError, match=r"llama-cpp-python 9\.9\.9 keeps .* \(0\.3\.36\): kq-0 has 32 bytes, .* 24"
    ):
        values_of(Ggml(8))
