"""Ranks of models with recurrent layers: their parts are joined to the bits of one process, and copies must agree."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.check.model.checked import open_model
from karat.check.ranks.check import check_parallel
from karat.check.ranks.session import ParallelPlan
from karat.check.record.executors import Steps, record
from karat.check.replay.gathering import gathered
from karat.check.trace.format import Trace
from karat.check.trace.reading import read_trace
from karat.errors import TraceError
from karat.ops.native import NativeOps, unavailable_reason
from tests.support import parallel

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

# Value heads 0 to 2 of rank 0 read key heads 0 and 1, those of rank 1 key heads 1 and 2: both have key head 1.
HYBRID = {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 6, "linear_value_head_dim": 10}
FAMILIES: dict[str, dict[str, Any]] = {"qwen3_5_text": HYBRID, "qwen3_5_moe_text": HYBRID, "lfm2": {}}


def traced(family: str, folder: Path, out: Path) -> tuple[Any, Trace]:
    """The model, and the trace of two ranks that `karat check` finds to be those of one process, bit for bit."""
    sizes = {"vocab_size": 300, "hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 2}
    config = parallel.config_of(family, **sizes, **FAMILIES[family])
    model = open_model(str(parallel.write(folder, config, "F32")))
    plan = ParallelPlan(model=model, size=2, num_tokens=12, options={"threads": 1}, trace=out)
    found = {stage.name: stage for stage in check_parallel(plan)}
    assert found["trace"].verdict == "exact", found["trace"].lines
    return model, read_trace(out)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_joined_to_the_bits_of_one_process(family: str, tmp_path: Path) -> None:
    model, trace = traced(family, tmp_path, tmp_path / "ranks.trace")
    whole, differing = gathered(model.graph, trace)
    assert not differing
    arrays = {name: np.asarray(trace.arrays[name]) for name in trace.arrays}
    if family == "lfm2":
        widths = [arrays[f"model.layers.0.conv.in_proj@{rank}"].shape[1] for rank in range(2)]
        assert whole.arrays["model.layers.0.conv.in_proj"].shape == (12, sum(widths)) == (12, 3 * 72)
        return
    name = "model.layers.0.linear_attn.k"
    assert whole.arrays[name].shape == (12, 3, 6) and [arrays[f"{name}@{rank}"].shape[1] for rank in range(2)] == [2, 2]
    assert whole.arrays["model.layers.0.linear_attn.conv"].shape == (12, 2 * 18 + 60)
    norms = "model.layers.0.linear_attn.state_norm"
    ops = NativeOps("float32", threads=1)
    alone = record(model.config, model.checkpoint, ops, Steps.chunked(trace.info.token_ids, 6))
    assert alone.arrays[norms].shape == (12, 6)
    np.testing.assert_array_equal(whole.arrays[norms], alone.arrays[norms])
    for rank, head, is_copy in [(0, 1, True), (1, 0, True), (0, 0, False)]:
        changed = arrays[f"{name}@{rank}"].copy()
        changed[:, head] += 1
        told = gathered(model.graph, Trace(trace.info, arrays | {f"{name}@{rank}": changed}))[1]
        assert told == ([name] if is_copy else [])
    cut = arrays | {f"{name}@1": arrays[f"{name}@1"][:, :1]}
    with pytest.raises(TraceError, match=r"linear_attn\.k: rank 1 has 6 columns, expected 12"):
        gathered(model.graph, replace(trace, arrays=cut))
