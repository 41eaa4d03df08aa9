"""Layer by layer the bits are those of a whole run, and what is found is what is found in a whole trace.

Covers: karat.check.record.hf_observers, karat.check.record.hf_layerwise, karat.check.record.hf_files.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="transformers needs torch")
from safetensors.torch import save_file  # noqa: E402

from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.model.checked import CheckedModel  # noqa: E402
from karat.check.record.executors import Steps, record  # noqa: E402
from karat.check.record.hf import load_hf, record_hf  # noqa: E402
from karat.check.record.hf_files import HfFiles  # noqa: E402
from karat.check.record.hf_layerwise import run_layerwise  # noqa: E402
from karat.check.record.hf_modules import require_text_model  # noqa: E402
from karat.check.record.layerwise import LayerwiseRun  # noqa: E402
from karat.check.replay.drift import compare  # noqa: E402
from karat.check.session.streamed import Streamed  # noqa: E402
from karat.check.trace.format import make_info  # noqa: E402
from karat.checkpoint.joins import renamed  # noqa: E402
from karat.checkpoint.weights import Weight  # noqa: E402
from karat.errors import CheckpointError, ExecutorError  # noqa: E402
from karat.ops.executor import Executor  # noqa: E402
from karat.ops.reference import ReferenceOps  # noqa: E402
from karat.ops.registry import create  # noqa: E402
from tests.support import random_models  # noqa: E402
from tools.zoo.models import Checkpoint, Subject, draw  # noqa: E402

SEED = os.environ.get("KARAT_SEED", "20261121")


def checked(subject: Subject) -> CheckedModel:
    checkpoint: Any = Checkpoint(subject.hf, subject.raw, "F32")
    return CheckedModel(checkpoint.path, subject.graph.config, checkpoint, dict(subject.weights.stored), subject.graph)


def stream(model: CheckedModel, stored: dict[str, Weight], ops: Executor, steps: Steps) -> Streamed:
    streamed = Streamed(model, LayerwiseRun(model.config, stored, ops, steps), seconds=1)
    while streamed.advance():
        pass
    return streamed


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", random_models.WITH_TRACES)
@pytest.mark.parametrize("executor", ["reference", "auto"])
def test_parts_are_a_whole_run_bit_for_bit(family: str, executor: str) -> None:
    subject = draw(f"{SEED}-layerwise-{family}", family=family, steps="chunks")
    model, ops = checked(subject), create(executor, "float32")
    whole = record(model.config, model.checkpoint, ops, subject.steps, with_digest=False)
    run = LayerwiseRun(model.config, model.stored, ops, subject.steps)
    parts = list(run.parts())
    assert len(parts) == model.config.num_layers + 2
    arrays = {name: array for part in parts for name, array in part.items()}
    assert run.info == whole.info and arrays.keys() >= set(model.graph.nodes)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, whole.arrays[name], err_msg=name)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", random_models.WITH_TRACES)
def test_transformers_layer_by_layer_is_transformers(family: str, tmp_path: Path) -> None:
    """Its own forward with weights that come and go: every recorded result has the bits of a model in memory."""
    subject = draw(f"{SEED}-hf-{family}", family=family, steps="whole")
    tied = subject.raw["tie_word_embeddings"]
    tensors = {n: t.contiguous() for n, t in subject.hf.state_dict().items() if not (tied and n == "lm_head.weight")}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(subject.raw))
    ids = subject.steps.prompt
    whole = record_hf(subject.hf, subject.steps)
    parts: list[dict[str, Any]] = []
    run_layerwise(tmp_path, ids, range(len(ids)), parts.append)
    assert len(parts) == subject.graph.config.num_layers + 2
    arrays = {name: array for part in parts for name, array in part.items()}
    assert arrays.keys() == whole.arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, whole.arrays[name], err_msg=name)
    files = HfFiles(tmp_path)
    assert sorted(files.names) == sorted(map(renamed, tensors))
    with pytest.raises(CheckpointError, match="nothing"):
        files.tensor("nothing")


@pytest.mark.parametrize("whole", ["mistral3", "muse_glimmer"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_text_model_beside_others_layer_by_layer(whole: str, tied: bool, tmp_path: Path) -> None:
    """Of a folder as transformers writes it, under other names; loaded whole it is the same text model."""
    drawing = {"mistral3": random_models.draw_mistral3, "muse_glimmer": random_models.draw_muse_glimmer}[whole]
    raw = drawing(random.Random(f"{SEED}-{whole}-{tied}")) | {"tie_word_embeddings": tied}
    hf = random_models.build(raw, 5)
    hf.save_pretrained(tmp_path)
    ids = list(range(2, 42))
    with torch.no_grad():
        expected = hf(torch.tensor([ids])).logits[0].numpy()
    parts: list[dict[str, Any]] = []
    run_layerwise(tmp_path, ids, range(len(ids)), parts.append)
    arrays = {name: array for part in parts for name, array in part.items()}
    np.testing.assert_array_equal(arrays["lm_head"], expected)
    trace = record_hf(load_hf(str(tmp_path)), Steps(tuple(ids)))
    assert arrays.keys() == trace.arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, trace.arrays[name], err_msg=name)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", random_models.WITH_TRACES)
def test_what_is_found_in_parts_is_what_is_found_in_a_trace(family: str) -> None:
    subject = draw(f"{SEED}-streamed-{family}", family=family, lengths=(130, 150))
    model = checked(subject)
    streamed = stream(model, model.stored, ReferenceOps("float32"), subject.steps)
    whole = record(model.config, model.checkpoint, ReferenceOps("float32"), subject.steps, with_digest=False)
    diagnoser = Diagnoser(model.graph, model.weights("float32"), whole)
    results, diagnosis, comparison = streamed.results, diagnoser.run(), compare(diagnoser.replay)
    assert results.diagnosis.is_healthy and diagnosis.is_healthy
    assert [f.name for f in results.findings] == [f.name for f in diagnosis.findings]
    assert [f.error for f in results.findings] == [f.error for f in diagnosis.findings]
    drift = results.drift["float64"]
    assert [(d.name, d.largest) for d in drift] == [(d.name, d.largest) for d in comparison.drift]
    for found in (*results.findings, *diagnosis.findings):
        assert found.ratio < 5, found
        assert found.exact or (len(found.by_token) > 1 and max(found.by_token) == found.ratio)
    for each in drift:
        assert each.ratio < 50, each
    np.testing.assert_array_equal(results.logits["ours"], whole.arrays["lm_head"])


def test_another_engine_is_compared_on_the_way() -> None:
    subject = draw(f"{SEED}-other", steps="whole", changes={"num_hidden_layers": 2})
    model = checked(subject)
    theirs = dict(record_hf(subject.hf, subject.steps).arrays)
    theirs["model.layers.1"] = theirs["model.layers.1"] + 1.0
    info = make_info(subject.steps.prompt)
    run = LayerwiseRun(model.config, model.stored, ReferenceOps("float32"), subject.steps)
    streamed = Streamed(model, run)
    while streamed.advance({"theirs": (info, theirs)}):
        pass
    far = {drift.name for drift in streamed.results.drift["theirs"] if drift.ratio > 100}
    assert far == {"model.layers.1"}
    assert streamed.results.logits.keys() == {"ours", "float64", "theirs"}


# Results that are computed with a tensor of another name, where the tensor's name is no result's.
_OF_DELTA_NETS = {"A_log": "decay", "dt_bias": "decay", "conv1d": "conv", "norm": "delta_normed"}


@settings(max_examples=24, deadline=None)
@given(seed=st.integers(0, 2**31), family=st.sampled_from(random_models.RECORDED), data=st.data())
def test_one_element_that_was_loaded_wrongly_is_found_and_its_tensor_named(
    seed: int, family: str, data: st.DataObject
) -> None:
    """Any element of any tensor, in any family: a bug, at the op that reads the tensor, with the element."""
    subject = draw(f"{seed}-element", family=family, steps="whole", lengths=(12, 24))
    model = checked(subject)
    name = data.draw(st.sampled_from(sorted(model.stored)), "tensor")
    weight = model.stored[name]
    values = weight.to_array(np.dtype(np.float32)).copy()
    used = subject.steps.prompt if "embed" in name else range(weight.shape[0])
    index = (
        data.draw(st.sampled_from(sorted(set(used))), "row"),
        *(data.draw(st.integers(0, n - 1), "column") for n in weight.shape[1:]),
    )
    values[index] += max(0.1, float(values.std()))
    changed = Weight(weight.name, "F32", weight.shape, values.reshape(-1).view(np.uint8), weight.file)
    ours = {n: changed if w is weight else w for n, w in model.stored.items()}
    diagnosis = stream(model, ours, ReferenceOps("float32"), subject.steps).results.diagnosis
    if ".experts." in name:  # of one that tokens chose the layer is named, of others nothing can be
        wrong = {wrong.finding.name for wrong in diagnosis.unexplained} | {p for n in diagnosis.named for p in n.places}
        assert wrong <= {name.partition(".experts.")[0], f"{name.partition('.experts.')[0]}.experts"}, (name, index)
        return
    op = name.removesuffix(".weight").removesuffix(".bias")
    if ".linear_attn." in op:
        prefix, _, part = op.rpartition(".")
        op = f"{prefix}.{_OF_DELTA_NETS.get(part, part)}"
    ops = {op, "lm_head"} if "embed" in name and model.config.tie_word_embeddings else {op}
    places = {place for named in diagnosis.named for place in named.places}
    unexplained = {wrong.finding.name for wrong in diagnosis.unexplained}
    if op.endswith(".decay"):  # of a head that forgets all at once, or nothing, no change is seen
        assert places | unexplained <= ops, (name, index)
        return
    assert places | unexplained == ops, (name, index)
    if op.endswith(".conv"):  # the channel is in the finding; single elements are not fitted
        return
    assert op in places, (name, index)
    (first, *_) = [named for named in diagnosis.named if op in named.places]
    assert "weight-element" in first.bugs
    assert any(f"element {[int(i) for i in index]}" in detail for detail in first.details), first.details


def test_tensors_that_files_join_are_split(tmp_path: Path) -> None:
    """transformers' model of a type whose files have q, k, v apart runs on files that join them, biases too."""
    subject = draw(f"{SEED}-joined", family="qwen2", steps="whole")
    tied = subject.raw["tie_word_embeddings"]
    tensors = {n: t.contiguous() for n, t in subject.hf.state_dict().items() if not (tied and n == "lm_head.weight")}
    for layer in range(subject.graph.config.num_layers):
        for whole, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
            for kind in ("weight", "bias"):
                place = f"model.layers.{layer}.{whole.partition('.')[0]}"
                names = [f"{place}.{part}_proj.{kind}" for part in parts]
                if names[0] in tensors:
                    tensors[f"model.layers.{layer}.{whole}.{kind}"] = torch.cat([tensors.pop(name) for name in names])
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(subject.raw))
    found: list[dict[str, Any]] = []
    run_layerwise(tmp_path, subject.steps.prompt, range(len(subject.steps.prompt)), found.append)
    expected = record_hf(subject.hf, subject.steps)
    arrays = {name: array for part in found for name, array in part.items()}
    loaded = record_hf(load_hf(str(tmp_path)), subject.steps)
    assert arrays.keys() == expected.arrays.keys() == loaded.arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected.arrays[name], err_msg=name)
        np.testing.assert_array_equal(array, loaded.arrays[name], err_msg=name)
    with pytest.raises(CheckpointError, match="the files do not have it"):
        HfFiles(tmp_path).tensor("model.layers.0.self_attn.q_proj.weight")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: transformers' model needs it"):
        load_hf(str(tmp_path))  # transformers itself would draw it at random, and say so


def test_what_transformers_has_no_text_model_of_is_refused() -> None:
    from transformers import SiglipTextConfig

    with pytest.raises(ExecutorError, match="no text model of the type siglip_text_model by itself"):
        require_text_model(SiglipTextConfig())
