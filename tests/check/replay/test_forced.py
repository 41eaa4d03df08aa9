"""Our ops on another engine's inputs: right ones are at the floor whatever came before, wrong ones are found there.

Covers: karat.check.session.streamed.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")

from karat.check.model.checked import open_model  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.record.layerwise import LayerwiseRun, parts_of  # noqa: E402
from karat.check.replay.replay import Replay  # noqa: E402
from karat.check.session import session as sessions  # noqa: E402
from karat.check.session.session import CheckPlan, CheckSession  # noqa: E402
from karat.check.session.streamed import Streamed  # noqa: E402
from karat.check.stages.registry import run_stages  # noqa: E402
from karat.check.trace.format import Array, Trace, make_info  # noqa: E402
from karat.ops.api import Op, PagedAttention, SiluMul  # noqa: E402
from karat.ops.executor import Executor  # noqa: E402
from karat.ops.reference import ReferenceOps  # noqa: E402
from karat.ops.registry import create  # noqa: E402
from tests.check.record.test_layerwise import checked  # noqa: E402
from tests.support import random_models  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

SEED = os.environ.get("KARAT_SEED", "20261122")


def recorded(subject: Subject) -> dict[str, Array]:
    """transformers' run of the subject, at once."""
    return dict(record_hf(subject.hf, subject.steps).arrays)


def fed(subject: Subject, theirs: Mapping[str, Array], ops: Executor, **options: Any) -> Streamed:
    model = checked(subject)
    run = LayerwiseRun(model.config, model.stored, ops, subject.steps, options.get("kv_dtype"))
    streamed = Streamed(model, run, layers=options.get("layers"))
    info = make_info(subject.steps.prompt, executor="transformers")
    while streamed.advance({"transformers": (info, theirs)}, forced="transformers"):
        pass
    return streamed


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", random_models.WITH_TRACES)
@pytest.mark.parametrize("executor", ["reference", "auto"])
def test_every_op_is_at_the_floor_of_transformers_own(family: str, executor: str) -> None:
    """Every result that both have, on a cache that rounds too."""
    subject = draw(f"{SEED}-forced-{family}", family=family, steps="whole", lengths=(20, 60))
    theirs = recorded(subject)
    found = fed(subject, theirs, create(executor, "float32"), kv_dtype="float16").results.forced["transformers"]
    names = {name for part in parts_of(checked(subject).graph) for name in part.names}
    assert {local.name for local in found} == names & theirs.keys()
    worst = max(found, key=lambda local: local.ratio)
    assert worst.ratio < 10 and not worst.is_wrong, worst


def test_layers_that_read_k_and_v_of_earlier_ones_and_inputs_of_their_own() -> None:
    """Karat's own run beside it has the same bits as without."""
    draws = (draw(f"{SEED}-shared-{i}", family="gemma4_text", steps="whole", lengths=(20, 40)) for i in range(40))
    subject = next(each for each in draws if each.raw["num_kv_shared_layers"])
    model, theirs = checked(subject), recorded(subject)
    results = fed(subject, theirs, ReferenceOps("float32")).results
    found = results.forced["transformers"]
    assert {local.name for local in found} == {n for part in parts_of(model.graph) for n in part.names} & theirs.keys()
    assert max(local.ratio for local in found) < 10
    alone = list(LayerwiseRun(model.config, model.stored, ReferenceOps("float32"), subject.steps).parts())
    np.testing.assert_array_equal(results.logits["ours"], alone[-1]["lm_head"])


def test_in_double_precision_the_floor_is_transformers() -> None:
    subject = draw(f"{SEED}-double", steps="whole", changes={"num_hidden_layers": 2})
    found = fed(subject, recorded(subject), ReferenceOps("float64")).results.forced["transformers"]
    assert 0.1 < max(local.ratio for local in found) < 10


def test_of_few_tokens() -> None:
    """Fewer than have a floor for each feature: heads share their token's."""
    subject = draw(f"{SEED}-few", steps="whole", changes={"num_hidden_layers": 1}, lengths=(5, 6))
    found = fed(subject, recorded(subject), ReferenceOps("float32")).results.forced["transformers"]
    assert 0 < max(local.ratio for local in found) < 10


class Faulty(ReferenceOps):
    """The MLP's product of layer 1 is a thousandth too large; all before and behind is right."""

    def apply(self, op: Op[Any]) -> Any:
        result = super().apply(op)
        return result * np.float32(1.001) if isinstance(op, SiluMul) and ".layers.1." in op.name else result


def test_a_wrong_op_is_wrong_alone() -> None:
    """What follows is fed the right numbers, so nothing behind it is touched; the free run is off from there on."""
    subject = draw(f"{SEED}-faulty", steps="chunks", changes={"num_hidden_layers": 3})
    results = fed(subject, recorded(subject), Faulty("float32")).results
    wrong = [local.name for local in results.forced["transformers"] if local.is_wrong]
    assert wrong == ["model.layers.1.mlp.act"]
    free = {drift.name for drift in results.drift["transformers"] if drift.ratio > 100}
    assert {"model.layers.1.mlp.act", "model.layers.1.mlp.down_proj", "model.layers.1"} <= free


class Sharper(ReferenceOps):
    """The scores of layer 1 are by one part in 100,000 too large."""

    def apply(self, op: Op[Any]) -> Any:
        if isinstance(op, PagedAttention) and ".layers.1." in op.name:
            op = replace(op, scale=op.scale * 1.00001)
        return super().apply(op)


def test_a_cache_that_rounds_hides_nothing() -> None:
    """Our run has a float16 cache; ops that are fed have one that rounds nothing, as transformers has."""
    subject = draw(f"{SEED}-sharper", steps="whole", changes={"num_hidden_layers": 2}, lengths=(60, 80))
    results = fed(subject, recorded(subject), Sharper("float32"), kv_dtype="float16").results
    wrong = [local.name for local in results.forced["transformers"] if local.is_wrong]
    assert wrong[:1] == ["model.layers.1.self_attn.scores"]
    assert {name.rpartition(".")[2] for name in wrong} <= {"scores", "weights", "attention"}


def test_rows_of_few_keys_share_the_floor_of_their_neighbours() -> None:
    """One draw of noise, as long texts get, says little of a row with one score."""
    subject = draw(f"{SEED}-rows", steps="whole", changes={"num_hidden_layers": 1}, lengths=(130, 140))
    model = checked(subject)
    inputs = {name: array for name, array in recorded(subject).items() if name.endswith(("_rope", ".v_proj"))}
    replay = Replay(model.graph, model.weights("float32"), Trace(make_info(subject.steps.prompt), inputs))
    attn = "model.layers.0.self_attn"
    floors = replay.row_floors(replay.segment(f"{attn}.attention"))
    assert set(floors) == {f"{attn}.{part}" for part in ("scores", "weights", "attention")}
    for part in ("scores", "weights"):
        first = floors[f"{attn}.{part}"][:, :8]
        assert (first == first[:, :1]).all() and (first > 0).all()
    single = replay.floor((f"{attn}.scores",), replay.run((f"{attn}.scores",)))
    assert (floors[f"{attn}.scores"] > 0.2 * single).all() and np.isfinite(floors[f"{attn}.attention"]).all()


def test_their_wrong_result_reaches_no_other_op() -> None:
    """A result of theirs that is off is found where it is made and where it is read, and nowhere else."""
    subject = draw(f"{SEED}-theirs", steps="whole", changes={"num_hidden_layers": 3})
    theirs = recorded(subject)
    theirs["model.layers.1"] = theirs["model.layers.1"] + 1.0
    results = fed(subject, theirs, ReferenceOps("float32")).results
    wrong = {local.name for local in results.forced["transformers"] if local.is_wrong}
    readers = {"model.layers.2.input_layernorm", "model.layers.2.attention_residual"}
    assert "model.layers.1" in wrong and wrong <= {"model.layers.1", *readers}


def test_only_chosen_layers_are_fed() -> None:
    subject = draw(f"{SEED}-chosen", steps="whole", changes={"num_hidden_layers": 3})
    found = fed(subject, recorded(subject), ReferenceOps("float32"), layers={2}).results.forced["transformers"]
    layers = {name.split(".")[2] for local in found if (name := local.name).startswith("model.layers.")}
    assert layers == {"2"} and "lm_head" in {local.name for local in found}


def test_the_stage_says_which_op_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model against transformers: right ops are numerics, and a wrong one a bug, by its name."""
    chosen: dict[str, Executor] = {"ops": ReferenceOps("float32")}
    monkeypatch.setattr(sessions, "create", lambda *_, **__: chosen["ops"])
    plan = CheckPlan(model=open_model(None), num_tokens=12, executor="reference", stages=("layers",), with_hf=True)
    (right,) = run_stages(CheckSession(plan))
    assert right.verdict == "numerics" and 0 < right.facts["fed_transformers"] < 10
    assert any("each op on the inputs that transformers had: 105 results, at most" in line for line in right.lines)
    chosen["ops"] = Faulty("float32")
    (wrong,) = run_stages(CheckSession(plan))
    assert wrong.verdict == "bug" and wrong.facts["first_fed_transformers"] == "model.layers.1.mlp.act"
    lines = [line for line in wrong.lines if "another than transformers'" in line]
    assert lines == [line for line in lines if "model.layers.1.mlp.act, off by" in line] and len(lines) == 1
