"""Ranks that should have the same numbers and have not: the rank that is wrong is found, and what follows is told."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")
from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.diagnosis.disagreement import RankTraces  # noqa: E402
from karat.check.diagnosis.verdict import Diagnosis  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.replay.gathering import gathered  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from karat.check.trace.writing import write_trace  # noqa: E402
from karat.cli import main  # noqa: E402
from tests.support.seed import SEED  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402

LAYER, NUM_RANKS = "model.layers.0", 2
O_PROJ = f"{LAYER}.self_attn.o_proj"


@pytest.fixture(scope="module")
def subject() -> Subject:
    changes = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    return draw(f"{SEED}-disagree", family="llama", steps="whole", changes=changes)


def _run(subject: Subject, unsummed: tuple[int, ...], noise: float = 0.0) -> Trace:
    """A run of two ranks, of which some keep their own part of o_proj's sum. What comes before it is equal.

    noise: the relative difference of rank 1's sum.
    """
    trace, layer = record_hf(subject.hf, subject.steps), subject.hf.model.layers[0]
    arrays = {}
    for name, array in trace.arrays.items():
        axis = 0 if name.endswith(("scores", "weights")) else 1
        is_split = ".self_attn." in name and not name.endswith("o_proj")
        for rank in range(NUM_RANKS):
            arrays[f"{name}@{rank}"] = np.split(array, NUM_RANKS, axis=axis)[rank] if is_split else array.copy()

    def rows(linear: torch.nn.Linear, rank: int) -> torch.Tensor:
        return linear.weight.data.chunk(NUM_RANKS)[rank]

    def put(name: str, rank: int, value: torch.Tensor) -> torch.Tensor:
        arrays[f"{name}@{rank}"] = value.detach().numpy()
        return value

    residuals, products, ups = [], [], []
    with torch.no_grad():
        for rank in range(NUM_RANKS):
            mine = torch.from_numpy(np.array(arrays[f"{LAYER}.self_attn.attention@{rank}"])).reshape(
                len(trace.info.token_ids), -1
            )
            whole = torch.from_numpy(np.array(trace.arrays[O_PROJ])) * (1 + noise * rank)
            o_proj = layer.self_attn.o_proj.weight.data.chunk(NUM_RANKS, dim=1)[rank]
            o = put(O_PROJ, rank, mine @ o_proj.T if rank in unsummed else whole)
            residuals.append(
                put(f"{LAYER}.attention_residual", rank, torch.from_numpy(trace.arrays["model.embed_tokens"]) + o)
            )
            normed = put(f"{LAYER}.post_attention_layernorm", rank, layer.post_attention_layernorm(residuals[rank]))
            gate = put(f"{LAYER}.mlp.gate_proj", rank, normed @ rows(layer.mlp.gate_proj, rank).T)
            ups.append(put(f"{LAYER}.mlp.up_proj", rank, normed @ rows(layer.mlp.up_proj, rank).T))
            act = put(f"{LAYER}.mlp.act", rank, torch.nn.functional.silu(gate) * ups[rank])
            products.append(act @ layer.mlp.down_proj.weight.data.chunk(NUM_RANKS, dim=1)[rank].T)
        for rank in range(NUM_RANKS):
            down = put(f"{LAYER}.mlp.down_proj", rank, products[0] + products[1])
            out = put(LAYER, rank, residuals[rank] + down)
            normed = put("model.norm", rank, subject.hf.model.norm(out))
            put("lm_head", rank, subject.hf.lm_head(normed))
    return Trace(replace(trace.info, ranks=NUM_RANKS), arrays)


def _diagnosed(subject: Subject, ranked: Trace) -> tuple[tuple[str, tuple[int, ...]] | None, Diagnosis]:
    trace, differing = gathered(subject.graph, ranked)
    ranks = RankTraces(subject.graph, subject.weights, ranked, differing)
    at = ranks.disagreement()
    if at is not None:
        trace, _ = gathered(subject.graph, ranked, at.rank)
    found = Diagnoser(subject.graph, subject.weights, trace, ranks=ranks, seconds=1).run()
    return (None if at is None else (at.name, at.wrong)), found


@pytest.mark.parametrize("unsummed", [(0,), (1,), (0, 1)])
def test_the_rank_without_a_sum_is_named_and_the_rest_follows(subject: Subject, unsummed: tuple[int, ...]) -> None:
    at, found = _diagnosed(subject, _run(subject, unsummed))
    assert at == (O_PROJ, unsummed)
    assert [(named.bugs, named.places) for named in found.named] == [({"reduce-missing"}, (O_PROJ,))]
    assert not found.unexplained
    assert set(found.follows) == {f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj"}


def test_equal_ranks_and_roundings_are_no_bug(subject: Subject) -> None:
    for noise in (0.0, 1e-7):
        at, found = _diagnosed(subject, _run(subject, (), noise))
        assert at is None and found.is_healthy, noise


def test_another_mistake_behind_the_disagreement_is_no_consequence(subject: Subject) -> None:
    ranked = _run(subject, (1,))
    arrays = dict(ranked.arrays)
    arrays[f"{LAYER}.mlp.up_proj@0"] = arrays[f"{LAYER}.mlp.up_proj@0"] + 1
    _, found = _diagnosed(subject, Trace(ranked.info, arrays))
    assert f"{LAYER}.mlp.up_proj" in [item.finding.name for item in found.unexplained]
    assert found.follows == [f"{LAYER}.mlp.gate_proj"]


def test_the_command_says_it_first_and_ends_with_1(
    subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    tensors = {name: tensor.clone() for name, tensor in subject.hf.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(subject.raw))
    write_trace(tmp_path / "t", _run(subject, (1,)))
    assert main(["diagnose", str(tmp_path / "t"), "-m", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == [
        "verdict: bug",
        "",
        f"ranks disagree: {O_PROJ} is the first result that should be equal on all ranks and is not: wrong on rank 1 "
        "of 2, right on the other; rank 1's is judged",
    ]
    assert main(["diagnose", str(tmp_path / "t"), "-m", str(tmp_path), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["ranks"] == {"name": O_PROJ, "wrong": [1], "num_ranks": 2}
