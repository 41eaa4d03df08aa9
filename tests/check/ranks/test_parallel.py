"""`karat check --tensor-parallel-size`: right ranks are exact; wrong ones are found, and the right part is blamed.

Covers: karat.check.ranks.check, karat.check.ranks.rank, karat.check.ranks.session, karat.check.ranks.verdicts.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.check.model.checked import CheckedModel, open_model
from karat.check.model.graph import build_graph
from karat.check.ranks.check import check_parallel
from karat.check.ranks.parallel import Blame, first_difference, record_ranks, shard_faults, shards_of
from karat.check.ranks.rank import HeldPart
from karat.check.ranks.session import ParallelPlan, ParallelStage
from karat.check.record.executors import Steps, record_model
from karat.check.replay.gathering import gathered
from karat.check.session.same_bits import invariance_of
from karat.check.trace.format import Trace
from karat.check.trace.reading import read_trace
from karat.check.trace.selection import Selection
from karat.engine.ranks.rank_model import ParallelModel
from karat.models.registry import build
from karat.ops.native import NativeOps, unavailable_reason
from tests.support import parallel

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

# Sizes that 4 ranks share unevenly: 14 heads, KV heads held twice; square weights, so that shapes hide little.
CONFIG = parallel.config_of(
    "llama",
    hidden_size=140,
    num_attention_heads=14,
    num_key_value_heads=2,
    head_dim=10,
    intermediate_size=77,
    vocab_size=4096,
    num_hidden_layers=2,
    attention_bias=True,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CheckedModel:
    path = parallel.write(tmp_path_factory.mktemp("model"), CONFIG, "BF16")
    embedded = Path(__file__).parents[3] / "src" / "karat" / "embedded"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((embedded / name).read_bytes())
    return open_model(str(path))


def stages(model: CheckedModel, size: int = 4, **changes: Any) -> dict[str, ParallelStage]:
    plan = ParallelPlan(model=model, size=size, num_tokens=20, options={"threads": 1}, **changes)
    return {stage.name: stage for stage in check_parallel(plan)}


def test_right_ranks_are_exact_and_their_traces_are_one_file(model: CheckedModel, tmp_path: Path) -> None:
    found = stages(model, trace=tmp_path / "ranks.trace")
    assert {name: stage.verdict for name, stage in found.items()} == dict.fromkeys(
        ("shards", "logits", "trace"), "exact"
    )
    trace = read_trace(tmp_path / "ranks.trace")
    assert trace.info.ranks == 4
    widths = [trace.arrays[f"model.layers.1.self_attn.q_proj@{rank}"].shape[1] for rank in range(4)]
    assert widths == [3, 4, 3, 4]
    whole, differing = gathered(model.graph, trace)
    assert not differing and whole.arrays["model.layers.1.self_attn.k_proj"].shape == (20, 2, 10)
    for rank in range(4):  # each KV head is held twice, and one copy is wrong
        name = "model.layers.1.self_attn.k_proj"
        assert gathered(model.graph, changed(trace, f"{name}@{rank}"))[1] == [name]


def test_the_reference_executor_is_judged_by_roundings(model: CheckedModel) -> None:
    found = stages(model, size=2, executor="reference", dtype="float64")
    assert found["shards"].verdict == "exact" and found["trace"].verdict == "skipped"
    assert found["logits"].verdict in ("exact", "numerics")
    assert "within roundings" in found["logits"].lines[0] or "the same bits" in found["logits"].lines[0]


# What a rank runs: a mistake, then the right code.
MISTAKES = {
    "reduce-missing": """
from karat.layers.linear import RowParallelLinear
right = RowParallelLinear.__init__
def init(self, *args, **given):
    right(self, *args, **given)
    self._group = None
RowParallelLinear.__init__ = init
""",
    "reduce-twice": """
from karat.ranks import shared_memory
from karat.ops.api import Linear
from karat.ops.native import NativeOps
right = NativeOps.apply
def apply(self, op):
    result = right(self, op)
    return result + result if isinstance(op, Linear) and op.group is not None else result
NativeOps.apply = apply
from karat.ops.native_plan import PlanRecorder
right_plan = PlanRecorder.apply
def planned(self, op):
    result = right_plan(self, op)
    is_sum = isinstance(op, Linear) and op.group is not None and "mlp" not in op.name
    return self.add(result, result, name=op.name) if is_sum else result
PlanRecorder.apply = planned
""",
    "bias-times-tp": """
import numpy as np
from dataclasses import replace
from karat.ops.native import NativeOps
right = NativeOps.load
def load(self, weight, **when):
    if weight.name.endswith("o_proj.bias"):
        values = 4 * weight.to_array(np.dtype(np.float32))
        weight = replace(weight, dtype="F32", stored=values.view(np.uint8))
    return right(self, weight, **when)
NativeOps.load = load
""",
    "kv-replication": """
from karat.layers import merged
merged.own_kv_heads = lambda heads, kv_heads, unit, group: (group.rank % kv_heads, group.rank % kv_heads + 1)
""",
    "kv-heads-too-many": """
from karat.layers import merged
right_kv = merged.own_kv_heads
merged.own_kv_heads = lambda heads, kv_heads, unit, group: (
    (0, kv_heads) if group.rank == group.size - 1 else right_kv(heads, kv_heads, unit, group)
)
""",
    "qkv-cut": """
from karat.layers import merged
right = merged.own_heads
merged.own_heads = lambda *args: tuple(head - (right(*args)[0] > 0) for head in right(*args))
""",
    "shard-dim": """
from karat.layers import linear
linear.COLUMN = 1
""",
}
BLAMED = {
    "reduce-missing": (
        "trace",
        "exchange: the first result that differs is model.layers.0.self_attn.o_proj, ranks have",
    ),
    "reduce-twice": ("trace", "exchange: the first result that differs is model.layers.0.self_attn.o_proj, row 0"),
    "bias-times-tp": (
        "shards",
        "loading: model.layers.0.self_attn.o_proj.bias: rank 0's copy is not what the file has",
    ),
    "kv-replication": ("trace", "layer: the first result that differs is model.layers.0.self_attn.k_proj"),
    "kv-heads-too-many": ("shards", "layer: the ranks fail where one process does not: rank 3"),
    "qkv-cut": ("shards", "loading: model.layers.0.self_attn.q_proj.weight: no rank holds row 130"),
    "shard-dim": ("shards", "layer: the ranks fail where one process does not: "),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_ranks_is_found_and_blamed(
    mistake: str, model: CheckedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistaken_rank.py").write_text(MISTAKES[mistake] + "from karat.check.ranks.rank import main\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = stages(model, module="mistaken_rank")
    assert list(found.values())[-1].verdict == "bug"
    stage, said = BLAMED[mistake]
    assert found[stage].verdict == "bug"
    assert any(line.startswith(said) for line in found[stage].lines), found[stage].lines
    if said.startswith("loading"):
        layer = said.split(": ")[1].rpartition(".")[0]
        assert found["trace"].lines[-1].startswith(f"loading: the first result that differs is {layer},")


@pytest.fixture(scope="module")
def right(model: CheckedModel) -> tuple[Trace, Trace, list[tuple[HeldPart, ...]]]:
    """One process' trace, two ranks' and what these hold."""
    from karat.engine.ranks.messages import LoadRank

    tokens = tuple(range(5, 17))
    control = build(model.config, NativeOps(threads=1), model.checkpoint, num_positions=len(tokens))
    alone = record_model(control, Steps(tokens), selection=Selection(attention=False))
    ranks = ParallelModel(2, "karat.check.ranks.rank")
    try:
        load: LoadRank = parallel.load_of(model.path, [list(tokens)], chunk=len(tokens))
        ranks.load(load, model.config)
        return alone, record_ranks(ranks, Steps(tokens), "float16"), shards_of(ranks)
    finally:
        ranks.close()


def test_traces_of_ranks_have_no_name_that_a_killed_check_could_leave(
    model: CheckedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    right_command = ParallelModel.command

    def command(self: ParallelModel, *args: Any, **given: Any) -> Any:
        answer = right_command(self, *args, **given)
        seen.append(list(tmp_path.iterdir()))  # while the files are open
        return answer

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ParallelModel, "command", command)
    assert stages(model, size=2)["trace"].verdict == "exact"
    assert seen and not any(seen)


Right = tuple[Trace, Trace, list[tuple[HeldPart, ...]]]


def changed(trace: Trace, name: str, by: float = 1.0) -> Trace:
    arrays = {key: array.copy() for key, array in trace.arrays.items()}
    for key in arrays:
        if key == name or key.startswith(f"{name}@"):
            arrays[key].reshape(-1)[7] += by
    return Trace(trace.info, arrays)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens", "exchange"),
        ("model.embed_tokens@1", "exchange"),
        ("model.layers.0.self_attn.q_proj@1", "layer"),
        ("model.layers.1.self_attn.o_proj", "exchange"),
        ("model.layers.1.mlp.down_proj", "exchange"),
        ("model.layers.1.mlp.act@0", "layer"),
        ("model.norm", "layer"),
        ("lm_head", "exchange"),
    ],
)
def test_the_first_difference_is_blamed(name: str, kind: str, model: CheckedModel, right: Right) -> None:
    alone, ranks, _ = right
    biases = {
        key.removesuffix(".bias"): weight.to_array(np.dtype(np.float32))
        for key, weight in model.stored.items()
        if key.endswith("o_proj.bias")
    }
    graph = build_graph(model.config)
    assert first_difference(graph, alone, ranks, biases) is None
    blame = first_difference(graph, alone, changed(ranks, name), biases)
    assert blame is not None and (blame.kind, blame.name) == (kind, name.partition("@")[0])


def test_a_part_that_is_wrong_is_no_fault_of_the_sum(model: CheckedModel, right: Right) -> None:
    alone, ranks, _ = right
    name = "model.layers.0.mlp.down_proj"
    wrong = changed(changed(ranks, name), f"{name}.partial@1")
    blame = first_difference(build_graph(model.config), alone, wrong, {})
    assert blame is not None and blame.kind != "loading"
    only_mlp = Trace(alone.info, {key: array for key, array in alone.arrays.items() if "o_proj" not in key})
    blame = first_difference(build_graph(model.config), only_mlp, wrong, {})
    assert blame is not None and (blame.kind, blame.name) == ("layer", name)


def test_a_sum_that_is_no_result_of_the_graph_is_blamed(model: CheckedModel, right: Right) -> None:
    """As the squares of all heads of q and k are (OLMo)."""
    alone, ranks, _ = right
    name, parts = "model.layers.0.self_attn.qk_squares", np.random.default_rng(1).random((2, 12, 2), np.float32)
    of_ranks = {f"{name}.partial@{rank}": part for rank, part in enumerate(parts)}
    of_ranks |= {f"{name}@{rank}": parts[0] + parts[1] for rank in range(2)}
    alone = Trace(alone.info, {**alone.arrays, name: parts[0] + parts[1]})
    ranks = Trace(ranks.info, {**ranks.arrays, **of_ranks})
    graph = build_graph(model.config)
    assert first_difference(graph, alone, ranks, {}) is None
    for wrong, kind in ((name, "exchange"), (f"{name}.partial", None)):
        blame = first_difference(graph, alone, changed(ranks, wrong), {})
        assert (blame and (blame.kind, blame.name)) == (kind and (kind, name))


def test_a_single_byte_of_a_shard_is_seen(model: CheckedModel, right: Right) -> None:
    held = right[2]
    assert shard_faults(held, model.stored) == []
    names = {part.source for part in held[1]}
    assert names == set(model.stored)
    for index in (0, 5, len(held[1]) - 1):
        parts = list(held[1])
        parts[index] = HeldPart(
            source=parts[index].source,
            axis=parts[index].axis,
            pieces=parts[index].pieces,
            dtype=parts[index].dtype,
            digest="another",
        )
        (fault,) = shard_faults([held[0], parts], model.stored)
        assert fault.name == parts[index].source and "rank 1's" in fault.what
    missing = shard_faults([held[0], held[1][:-1]], model.stored)
    assert [fault.what for fault in missing] == ["rank 1 holds nothing of it"]


def test_bytes_of_the_file_that_change_are_seen(model: CheckedModel, right: Right) -> None:
    """The digests are of what the file has: flip one byte of one tensor."""
    name = "model.layers.1.mlp.up_proj.weight"
    stored = model.stored[name].stored.copy()
    stored[-1] ^= 1
    weights = {**model.stored, name: replace(model.stored[name], stored=stored)}
    assert shard_faults(right[2], weights) == [
        Blame("loading", name, "rank 1's rows 38 to 76 is not what the file has there")
    ]


def test_the_command(model: CheckedModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from karat.cli import main

    def run(*arguments: str) -> tuple[int, str]:
        return main(["check", str(model.path), *arguments]), capfd.readouterr().out

    code, out = run("--tensor-parallel-size", "2", "--tokens", "9", "--json", "--threads", "1")
    assert code == 0 and json.loads(out)["verdict"] == "exact" and json.loads(out)["ranks"] == 2
    code, _ = run("--tensor-parallel-size", "3")
    assert code == 2


def test_the_same_bits_table_has_a_row_for_each_degree(model: CheckedModel) -> None:
    rows = list(invariance_of(model.checkpoint, num_tokens=12, options={"threads": 1}))
    assert [row.setting.ranks for row in rows][-4:] == [1, 2, 4, 8]
    assert all(row.same for row in rows) and len({row.digest for row in rows}) == 1
