"""Of a mixture of experts: a choice that rounding decides is said and counted, and is no bug."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat.check.model.checked import open_model
from karat.check.record.executors import Steps, record
from karat.check.session.session import CheckPlan, CheckSession
from karat.check.stages.registry import run_stages
from karat.check.trace.writing import write_trace
from karat.ops.api import Op, Route
from karat.ops.reference import ReferenceOps
from karat.ops.registry import create
from tests.convert.folders import FAMILIES, folder_of

PLAN = {"executor": "reference", "dtype": "float32", "stages": ("layers",), "num_tokens": 12}
APPLY = ReferenceOps.apply


def with_twins(folder: Path, apart: float) -> str:
    """A model whose routers have the same rows for experts 2n and 2n + 1, but for this part of them. It takes three."""
    made = folder_of(folder, 5, **FAMILIES["qwen3_moe"] | {"num_experts_per_tok": 3})
    tensors = load_file(file := next(made.glob("*.safetensors")))
    for name in (name for name in tensors if name.endswith("mlp.gate.weight")):
        rows = tensors[name].copy()
        rows[1::2] = rows[::2] * np.float32(1 - apart)
        tensors[name] = rows
    save_file(tensors, file, {"format": "pt"})
    return str(made)


def takes_twins(ops: ReferenceOps, op: Op[Any]) -> Any:
    """Of the twins 0 and 1, or 2 and 3, the second where the contract takes the first."""
    result = APPLY(ops, op)
    if not isinstance(op, Route):
        return result
    ids = np.array(result[0])
    for row in ids:
        for place, one in enumerate(row):
            row[place] = one + 1 if one in (0, 2) and one + 1 not in row else one
    return ids, result[1]


@pytest.mark.parametrize("apart", [0.0, 0.05])
def test_a_close_choice_is_counted(apart: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Karat's own, beside float64; and those of another engine's trace, beside Karat's."""
    model = open_model(with_twins(tmp_path / "m", apart))
    with monkeypatch.context() as patched:
        patched.setattr(ReferenceOps, "apply", takes_twins)
        session = CheckSession(CheckPlan(model=model, **PLAN))
        (stage,) = run_stages(session)
        other = record(model.config, model.checkpoint, create("reference", "float32"), Steps(tuple(session.ids)))
    write_trace(tmp_path / "x.trace", other)
    beside = CheckSession(CheckPlan(model=model, other=tmp_path / "x.trace", **PLAN))
    (against,) = (done for done in run_stages(beside) if done.name == "layers")
    words = "numerics (a close choice): "
    if apart:
        assert stage.verdict == "bug" and against.verdict == "bug"
        return
    assert stage.verdict == against.verdict == "numerics"
    taken = stage.facts["close_choices"]
    assert 0 < taken < stage.facts["choices"] == model.config.num_layers * len(session.ids)
    assert any(f"{words}{taken} of {stage.facts['choices']} choices" in line for line in stage.lines)
    assert against.facts["close_choices"] == 0
    assert any("from there on both chose other experts; " + words in line for line in against.lines)
