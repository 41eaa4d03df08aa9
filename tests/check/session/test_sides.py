"""`karat check` beside a trace or llama.cpp: every stage has its word, and a wrong run is a bug where it is wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.check.model.checked import open_model
from karat.check.record import llamacpp
from karat.check.record.executors import Steps, record
from karat.check.session import session
from karat.check.session.agreement import greedy_difference, has_transformers
from karat.check.session.session import CheckPlan, CheckSession
from karat.check.session.stage import Stage
from karat.check.stages.registry import run_stages
from karat.check.trace.format import Trace, make_info
from karat.check.trace.writing import write_trace
from karat.checkpoint.weights import Weight
from karat.convert import MIXES, convert
from karat.ops.registry import create

IDS = tuple(range(300, 314))
COMPARED = ("tokens", "weights", "layers", "logits", "generation", "health")
needs_llama = pytest.mark.skipif(not llamacpp.is_installed(), reason="llama-cpp-python is not installed")


def recorded(change: Callable[[dict[str, Any]], None] | None = None) -> Trace:
    """The embedded model on the reference executor; `change` alters what is stored before."""
    model = open_model(None)
    if change is not None:
        change(model.checkpoint.weights)  # type: ignore[arg-type]
    return record(model.config, model.checkpoint, create("reference", "float32"), Steps(IDS, (0, 9)))


def checked(trace: Trace, path: Path, stages: tuple[str, ...] = COMPARED) -> dict[str, Stage]:
    write_trace(path, trace)
    plan = CheckPlan(model=open_model(None), num_tokens=8, other=path, stages=stages)
    return {stage.name: stage for stage in run_stages(CheckSession(plan))}


def test_a_right_trace_is_compared_in_every_stage(tmp_path: Path) -> None:
    done = checked(recorded(), tmp_path / "x.trace")
    assert list(done) == [*COMPARED, "trace"]
    assert {name: stage.verdict for name, stage in done.items()} == {
        "tokens": "exact",
        "weights": "exact",
        "layers": "numerics",
        "logits": "numerics",
        "generation": "exact",
        "health": "exact",
        "trace": "numerics",
    }
    assert done["weights"].lines[-1] == "the trace states the digest of these weights"
    assert 0 < done["layers"].facts["against_trace"] < 10
    assert any(line.startswith("against the trace: at most ") for line in done["layers"].lines)
    assert done["logits"].facts["against_trace"]["top1"] == len(IDS)
    assert done["generation"].lines[-1] == f"the trace takes the same next token after each of {len(IDS)}"
    assert done["health"].lines[-1].startswith("the trace: 8 signs, no red flag")


def test_a_wrong_weight_is_a_bug_from_its_product_on(tmp_path: Path) -> None:
    """An engine that read one tensor wrongly: its ids, its inputs and all before are those of the right run."""

    def doubled(weights: dict[str, Weight]) -> None:
        name = "model.layers.3.mlp.up_proj.weight"
        weight = weights[name]
        bits = weight.data.view("<u2").copy() + np.uint16(0x80)  # the exponent of bfloat16
        weights[name] = replace(weight, stored=bits.view(np.uint8))

    done = checked(recorded(doubled), tmp_path / "x.trace")
    assert done["weights"].facts["digest_of_trace"] is False and done["weights"].verdict == "exact"
    assert done["layers"].verdict == done["logits"].verdict == done["trace"].verdict == "bug"
    assert done["layers"].facts["first_against_trace"] == "model.layers.3.mlp.up_proj"
    assert any("what rounding does to a whole run" in line for line in done["logits"].lines)
    assert done["generation"].verdict == "bug" and " in the trace (ahead by " in done["generation"].lines[-1]


def test_logits_of_the_last_tokens_are_enough(tmp_path: Path) -> None:
    trace = recorded()
    rows = (11, 13)
    arrays = {"lm_head": trace.arrays["lm_head"][list(rows)], "model.layers.2": trace.arrays["model.layers.2"]}
    done = checked(Trace(replace(trace.info, rows={"lm_head": rows}), arrays), tmp_path / "x.trace")
    assert done["logits"].facts["against_trace"]["rows"] == 2
    assert done["generation"].lines[-1] == "the trace takes the same next token after each of 2"


def test_layers_alone_say_nothing_of_logits(tmp_path: Path) -> None:
    trace = recorded()
    done = checked(Trace(trace.info, {"model.layers.2": trace.arrays["model.layers.2"]}), tmp_path / "x.trace")
    assert "against_trace" in done["layers"].facts and "against_trace" not in done["logits"].facts
    assert not any("trace" in line for line in done["generation"].lines)


def test_several_sequences_are_judged_by_themselves(tmp_path: Path) -> None:
    trace, name = recorded(), "model.embed_tokens"
    info = make_info(IDS * 2, sequences=(0,) * len(IDS) + (1,) * len(IDS))
    twice = Trace(info, {name: np.concatenate([trace.arrays[name]] * 2)})
    done = checked(twice, tmp_path / "x.trace", ("layers", "logits"))
    assert "not laid beside the trace, which is judged by itself: the trace has 2 sequences" in done["layers"].lines
    assert done["trace"].verdict == "exact"


def test_ids_that_are_not_those_of_the_prompt(tmp_path: Path) -> None:
    trace = recorded()
    done = checked(Trace(replace(trace.info, prompt="something else"), trace.arrays), tmp_path / "x.trace", ("tokens",))
    assert done["tokens"].verdict == "bug" and done["tokens"].facts["trace"] == [[]]


@pytest.mark.skipif(not has_transformers(), reason="needs transformers")
def test_a_trace_in_bfloat16_has_a_floor_of_its_own(tmp_path: Path) -> None:
    from karat.check.record.hf import load_hf, record_hf

    trace = record_hf(load_hf(str(open_model(None).path), "bfloat16"), Steps(IDS))
    done = checked(trace, tmp_path / "x.trace", ("layers", "logits", "generation"))
    assert {stage.verdict for stage in done.values()} == {"numerics", "exact"}
    assert done["layers"].facts["against_trace"] < 10
    assert done["logits"].facts["against_trace"]["largest"] > 1e-2, "far beyond what float32 does"


def test_a_side_that_rounds_more_is_no_bug_for_its_distance(tmp_path: Path) -> None:
    """Said, and left to the judgement of its ops; where it rounds as we do, it is one."""
    trace = recorded()
    arrays = dict(trace.arrays)
    arrays["lm_head"] = np.roll(arrays["lm_head"], 1, axis=0) * np.float32(100)
    for dtype, verdict in (("bfloat16", "numerics"), ("float32", "bug")):
        info = replace(trace.info, dtype=dtype, kv_dtype=dtype)
        done = checked(Trace(info, arrays), tmp_path / "x.trace", ("layers", "logits", "generation"))
        assert done["logits"].verdict == done["layers"].verdict == verdict
        assert any("its ops decide" in line for line in done["layers"].lines) == (dtype == "bfloat16")
        assert done["generation"].lines[-1].startswith("undecided" if dtype == "bfloat16" else "bug")
        assert done["trace"].verdict == "bug", "the logits are not those of the recorded norm"


@needs_llama
@pytest.mark.parametrize("mix", ["F32", "Q8_0"])
def test_llama_cpp_is_compared_in_every_stage(mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    convert(open_model(None).checkpoint, path, MIXES[mix])
    plan = CheckPlan(model=open_model(str(path)), num_tokens=8, with_llamacpp=True, stages=COMPARED)
    done = {stage.name: stage for stage in run_stages(CheckSession(plan))}
    assert not [stage for stage in done.values() if stage.verdict == "bug"]
    assert done["layers"].facts["against_llama.cpp"] < 20
    assert done["logits"].facts["against_llama.cpp"]["rows"] == 8
    assert "llama.cpp takes the same 24 tokens" in done["generation"].lines[1]
    assert done["health"].lines[-1] == "llama.cpp: 8 signs, no red flag"

    right = session.record_llamacpp

    def wrong(*args: Any, **options: Any) -> Trace:
        trace = right(*args, **options)
        name = "model.layers.4.self_attn.o_proj"
        return Trace(trace.info, {**trace.arrays, name: -trace.arrays[name]})

    monkeypatch.setattr(session, "record_llamacpp", wrong)
    done = {stage.name: stage for stage in run_stages(CheckSession(replace(plan, stages=("layers",))))}
    assert done["layers"].facts["first_against_llama.cpp"] == "model.layers.4.self_attn.o_proj"
    assert done["layers"].verdict == ("bug" if mix == "F32" else "quantisation")
    assert done["llama.cpp"].verdict == "bug"


def test_what_a_side_may_differ_by_is_counted_and_rows_are_called_by_their_tokens() -> None:
    theirs = np.zeros((2, 4))
    theirs[:, 1], ours = 1.0, np.zeros((2, 4))
    ours[0, 1], ours[1, 2] = 1.0, 1.0
    assert str(greedy_difference(theirs, ours, 0.9, tokens=[7, 9])).startswith("bug: token 9 is 2 here")
    assert str(greedy_difference(theirs, ours, 1.1, tokens=[7, 9])).startswith("rounding decides: token 9 is 2 here")
