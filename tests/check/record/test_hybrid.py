"""Ours in theirs changes nothing where both are right, and takes a fault away where it sits."""

import os

import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.model.checked import open_model  # noqa: E402
from karat.check.record.hf import load_hf  # noqa: E402
from karat.check.record.hybrid import Hybrid, check_part, suspects  # noqa: E402
from karat.config import embedded_model_path  # noqa: E402
from karat.errors import UsageError  # noqa: E402
from karat.ops.reference import ReferenceOps  # noqa: E402
from tests.support import random_models  # noqa: E402
from tools.zoo.models import Checkpoint, Subject, draw  # noqa: E402

SEED = os.environ.get("KARAT_SEED", "20261121")
PARTS = ("attention", "mlp", "norm", "head", "layer:0")


def _hybrid(subject: Subject, checkpoint: Checkpoint) -> Hybrid:
    ops = ReferenceOps("float32")
    return Hybrid(subject.hf, subject.graph.config, checkpoint, ops, subject.steps.prompt)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", random_models.WITH_TRACES)
def test_every_part_of_ours_fits_into_theirs(family: str) -> None:
    subject = draw(f"{SEED}-hybrid-{family}", family=family)
    runs = _hybrid(subject, Checkpoint(subject.hf, subject.raw, "F32")).run(PARTS)
    assert [run.part for run in runs] == ["none", *PARTS]
    assert max(max(run.from_theirs, run.from_ours) for run in runs) < 1e-3
    assert suspects(runs) == []
    assert any(run.from_theirs > 0 for run in runs[1:]), "nothing was replaced"


@pytest.mark.parametrize("part", ["attention", "mlp", "norm", "head"])
def test_the_faulty_part_is_the_one_whose_replacement_helps(part: str) -> None:
    subject = draw(f"{SEED}-hybrid-fault-{part}", changes={"num_hidden_layers": 2, "tie_word_embeddings": False})
    checkpoint = Checkpoint(subject.hf, subject.raw, "F32")
    layer = subject.hf.model.layers[1]
    match part:
        case "attention":
            layer.self_attn.scaling *= 3
        case "mlp":
            layer.mlp.down_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 1.5,))
        case "norm":
            layer.input_layernorm.weight.data += 1
        case _:
            subject.hf.lm_head.weight.data *= 1.5
    runs = _hybrid(subject, checkpoint).run(PARTS)
    assert suspects(runs) == [part]
    assert "forward" not in vars(layer.mlp), "a replacement was left in place"


@pytest.mark.parametrize("part", ["attention", "mlp", "norm", "head"])
def test_theirs_in_ours_brings_the_fault_along(part: str) -> None:
    """A fault of their MLP is in a run whose MLP is theirs, and in no other."""
    subject = draw(f"{SEED}-hybrid-theirs-{part}", changes={"num_hidden_layers": 2})
    checkpoint = Checkpoint(subject.hf, subject.raw, "F32")
    subject.hf.model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 1.5,))
    (_, run) = _hybrid(subject, checkpoint).run([f"theirs:{part}"])
    if part == "mlp":
        assert run.from_theirs < 1e-3 < run.from_ours
    else:
        assert run.from_ours < 1e-3 < run.from_theirs


@pytest.mark.parametrize("layer", range(3))
def test_their_layer_in_ours_brings_its_fault_along(layer: int) -> None:
    """With one layer theirs and all else ours: the fault is there if it is that layer's."""
    subject = draw(f"{SEED}-hybrid-layer-{layer}", changes={"num_hidden_layers": 3})
    checkpoint = Checkpoint(subject.hf, subject.raw, "F32")
    subject.hf.model.layers[layer].mlp.down_proj.register_forward_pre_hook(lambda _m, args: (args[0] * 1.5,))
    runs = _hybrid(subject, checkpoint).run([f"theirs:layer:{index}" for index in range(3)])
    for index, run in enumerate(runs[1:]):
        if index == layer:
            assert run.from_theirs < 1e-3 < run.from_ours
        else:
            assert run.from_ours < 1e-3 < run.from_theirs
    assert "forward" not in vars(subject.hf.model.layers[0]), "a replacement was left in place"


def test_a_folder_and_a_model_are_enough() -> None:
    """As docs/diagnosis.md has it: another engine's model, wrong in one layer, beside the weights it was made of."""
    folder = str(embedded_model_path())
    model = load_hf(folder)
    model.model.layers[2].self_attn.scaling *= 3
    right = open_model(folder)
    hybrid = Hybrid(model, right.config, right.checkpoint, ReferenceOps("float32"), range(40, 60))
    runs = hybrid.run(["attention", "mlp", *(f"layer:{k}" for k in range(6))])
    assert suspects(runs) == ["attention", "layer:2"]
    by_part = {run.part: run.from_ours for run in runs}
    assert max(by_part["attention"], by_part["layer:2"]) < 1e-3 < min(by_part["mlp"], by_part["layer:1"])
    with pytest.raises(UsageError, match="layer:6"):
        hybrid.logits("layer:6")


def test_unknown_parts_are_named() -> None:
    subject = draw(f"{SEED}-hybrid-unknown", changes={"num_hidden_layers": 2})
    hybrid = _hybrid(subject, Checkpoint(subject.hf, subject.raw, "F32"))
    for part in ("layer:2", "layer:x", "heads", "theirs:layer:2", "theirs:", "theirs:theirs:mlp", "layer:²"):
        with pytest.raises(UsageError, match="expected attention, mlp, norm, head, layer:K with K from 0 to 1"):
            hybrid.logits(part)
        with pytest.raises(UsageError, match="expected attention, mlp, norm, head, layer:K with K from 0 to 1"):
            check_part(part, 2)
    for part in (*PARTS, "theirs:mlp", "layer:1", "theirs:layer:1"):
        check_part(part, 2)
