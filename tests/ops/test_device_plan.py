"""A model on a device as launches: what is joined and recorded, and the same bits as the native executor's steps."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from karat import LLM
from karat.batch import COLUMNS, GROUP_COLUMNS, ForwardBatch
from karat.check.session.same_bits import invariance_of
from karat.engine.model_running import Preparation, open_runner
from karat.errors import DeviceLostError, ExecutorError, NumericsError, packed, unpacked
from karat.models.opening import open_model
from karat.models.registry import build, read_config
from karat.ops import api
from karat.ops.device import EmulatedOps, missing
from karat.ops.device_ops import LinearPlus, RopeKvWrite
from karat.ops.device_plan import DevicePlan, graph_size, joined, padded, recorded
from karat.ops.executor import Executor, Runner, StepLimits
from karat.ops.native import NativeOps, unavailable_reason
from tests.engine.tiny import GREEDY, write_model
from tests.support.seed import SEED

if reason := unavailable_reason() or missing("cuda-emulated"):
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

SIZE, BLOCKS = 16, 20  # of a block, and blocks of a sequence
SEQS = 3


def runner_of(ops: Executor, folder: Path, stored: str | None = "Q4_0") -> Runner:
    checkpoint = open_model(folder)
    prepare = Preparation(stored, quiet=True)
    model = build(read_config(checkpoint.config), ops, checkpoint, num_positions=SIZE * BLOCKS, prepare=prepare)
    limits = StepLimits(num_tokens=SIZE * BLOCKS, num_logit_rows=8, num_seqs=8, context_len=SIZE * BLOCKS)
    return open_runner(model, "float16", [BLOCKS * SEQS], limits, block_size=SIZE)


def batch_of(spans: Sequence[tuple[int, int, int]]) -> ForwardBatch:
    """For each (sequence, begin, end) its tokens begin … end - 1, with the logits of the last one."""
    tokens = [(seq, position) for seq, begin, end in spans for position in range(begin, end)]
    ends = np.cumsum([end - begin for _, begin, end in spans])
    return ForwardBatch.of(
        SIZE,
        token_ids=[(37 * position + 11 * seq + int(SEED)) % 256 for seq, position in tokens],
        positions=[position for _, position in tokens],
        query_starts=[0, *ends],
        context_lens=[end for _, _, end in spans],
        logit_rows=[end - 1 for end in ends],
        slots=[[seq * SIZE * BLOCKS + position for seq, position in tokens]],
        block_tables=[[list(range(seq * BLOCKS, (seq + 1) * BLOCKS)) for seq, _, _ in spans]],
    )


def test_steps_have_the_bits_of_native_ones(tmp_path: Path) -> None:
    """Prompts, and graphs of two sizes in turns; a sequence whose keys fill more than one split."""
    folder = write_model(tmp_path, num_hidden_layers=2)
    emulated, native = runner_of(EmulatedOps(), folder), runner_of(NativeOps(threads=1), folder)
    assert isinstance(emulated, DevicePlan)
    steps = [
        [(0, 0, 6), (1, 0, 3)],
        [(2, 0, 259)],
        [(0, 6, 7)],
        [(0, 7, 8), (1, 3, 4), (2, 259, 260)],
        [(0, 8, 9)],
        [(1, 4, 5), (2, 260, 261)],
        [(1, 5, 6), (0, 9, 12)],
        [(2, 261, 262), (0, 12, 13), (1, 6, 7)],
    ]
    for spans in steps:
        batch = batch_of(spans)
        np.testing.assert_array_equal(emulated(batch).view(np.uint32), native(batch).view(np.uint32), str(spans))


@pytest.mark.parametrize("stored", [None, "Q4_0"])
def test_what_is_joined(tmp_path: Path, stored: str | None) -> None:
    folder = write_model(tmp_path, num_hidden_layers=1)
    ops, found = EmulatedOps(), []

    def note(forward: object, limits: StepLimits) -> Runner:
        found.append(recorded(forward))  # type: ignore[arg-type]
        return Executor.runner(ops, forward, limits)  # type: ignore[arg-type]

    ops.runner = note  # type: ignore[method-assign, assignment]
    runner_of(ops, folder, stored)
    nodes = joined(*found[0])
    kinds = [type(node.op) for node in nodes]
    assert kinds == [
        api.Embedding,
        *(api.RmsNorm, api.Qkv, RopeKvWrite, api.PagedAttention, LinearPlus),
        *(api.RmsNorm, api.GateUp, api.SiluMul, LinearPlus),
        *(api.SelectRows, api.RmsNorm, api.Linear),
    ]
    # Rows of 48 numbers are no blocks of Q4_0: the layer that reads them keeps its type.
    expected = {1, 4, 6, 11} if stored else set()
    assert {i for i, node in enumerate(nodes) if node.digits} == expected


def kinds_of(forward: Callable[[Any, Any], Any]) -> list[type]:
    return [type(node.op) for node in joined(*recorded(forward))]


def test_what_others_read_is_not_joined_away() -> None:
    weight, table, other = SimpleNamespace(in_blocks=False), SimpleNamespace(), SimpleNamespace()

    def sums(ops: Any, step: Any, *, again: bool, twice: bool) -> Any:
        x = ops.embedding(step, None, name="x")
        y = ops.linear(x, weight, name="y")
        z = ops.add(y if twice else x, y, name="z")
        return ops.add(z, y, name="w") if again else z

    assert kinds_of(partial(sums, again=False, twice=False)) == [api.Embedding, LinearPlus]
    assert kinds_of(partial(sums, again=True, twice=False)) == [api.Embedding, api.Linear, api.Add, api.Add]
    assert kinds_of(partial(sums, again=False, twice=True)) == [api.Embedding, api.Linear, api.Add]

    def turned(ops: Any, step: Any, *, of_k: Any, again: bool) -> Any:
        x = ops.embedding(step, None, name="x")
        q, k = ops.rope(x, table, step, name="q"), ops.rope(x, of_k, step, name="k")
        ops.kv_write(k, x, None, step)
        return ops.add(q, k, name="sum") if again else q

    alone = [api.Embedding, api.Rope, api.Rope, api.KvWrite]
    assert kinds_of(partial(turned, of_k=table, again=False)) == [api.Embedding, RopeKvWrite]
    assert kinds_of(partial(turned, of_k=other, again=False)) == alone
    assert kinds_of(partial(turned, of_k=table, again=True)) == [*alone, api.Add]


def test_a_number_that_does_not_fit_the_cache(tmp_path: Path) -> None:
    """In a prompt and in a graph, with the words of the native executor."""
    folder = write_model(tmp_path, num_hidden_layers=2)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"] *= 1e6
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    emulated, native = (runner_of(ops, folder, None) for ops in (EmulatedOps(), NativeOps(threads=1)))
    for spans in ([(0, 0, 3)], [(0, 3, 4)], [(0, 3, 4), (1, 0, 1), (2, 0, 1)], [(2, 0, 1)]):
        said = []
        for run in (emulated, native):
            with pytest.raises(NumericsError, match="does not fit the KV cache") as caught:
                run(batch_of(spans))
            said.append(str(caught.value))
        assert said[0] == said[1]


@given(st.data())
def test_a_padded_step(data: st.DataObject) -> None:
    """It has the columns of the step, and its first sequence again."""
    contexts = data.draw(st.lists(st.integers(1, SIZE * BLOCKS), min_size=1, max_size=SEQS))
    batch = batch_of([(seq, context - 1, context) for seq, context in enumerate(contexts)])
    size = graph_size(batch)
    assert size is not None
    num_tokens, splits = size
    assert len(contexts) <= num_tokens < 2 * len(contexts) and splits * 256 >= max(contexts)
    made = padded(batch, num_tokens, splits)
    rows = [*range(len(contexts)), *[0] * (num_tokens - len(contexts))]

    def of_rows(column: NDArray[np.int32]) -> NDArray[np.int32]:
        return column[rows]

    for column in COLUMNS:
        if column.name in ("query_starts", "logit_rows"):
            assert getattr(made, column.name).tolist() == list(range(num_tokens + (column.name == "query_starts")))
        else:
            assert getattr(made, column.name).tolist() == of_rows(getattr(batch, column.name)).tolist()
    for column in GROUP_COLUMNS:
        width = min(BLOCKS, splits * 256 // SIZE) if column.length == "table" else None
        got, want = getattr(made, column.name)(0), of_rows(getattr(batch, column.name)(0))
        np.testing.assert_array_equal(got[..., :width], want[..., :width])


def test_a_step_that_is_no_decode_has_no_graph() -> None:
    assert graph_size(batch_of([(0, 0, 2)])) is None
    assert graph_size(batch_of([(0, 4, 5), (1, 0, 3)])) is None
    assert graph_size(batch_of([(0, 4, 5), (1, 3, 4), (2, 300, 301)])) == (4, 4)


def test_a_column_beyond_what_it_points_to(tmp_path: Path) -> None:
    """Of a graph that was recorded, too: nothing is read or written outside of memory."""
    run = runner_of(EmulatedOps(), write_model(tmp_path, num_hidden_layers=1))
    run(batch_of([(0, 0, 1)]))
    run(batch_of([(0, 1, 2)]))
    for name, number in (("token_ids", 264), ("positions", SIZE * BLOCKS), ("slots", 10_000)):
        batch = batch_of([(0, 2, 3)])
        batch.flat[batch.place(name)] = number
        with pytest.raises(ExecutorError, match=f"{name} from {number} to {number}; expected 0 to"):
            run(batch)


def test_nothing_is_copied_from_the_host_while_launches_are_recorded() -> None:
    ops = EmulatedOps()
    device = ops.kernels.device
    device.begin_recording()
    try:
        with pytest.raises(Exception, match="while launches are recorded"):
            device.array(np.zeros(3, np.float32))
    finally:
        device.end_recording()


def test_ranks_and_layers_on_the_cpu_run_op_by_op(tmp_path: Path) -> None:
    folder = write_model(tmp_path, num_hidden_layers=2)
    assert not isinstance(runner_of(EmulatedOps(host_layers=1), folder), DevicePlan)
    rows = invariance_of(open_model(folder), num_tokens=5, options={"device": "cuda-emulated"})
    assert all(row.is_right for row in rows)


def test_a_device_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine ends; a server's keeper starts another one. The error has an exit code of its own."""
    with LLM(write_model(tmp_path, num_hidden_layers=1), device="cuda-emulated") as llm:
        assert llm.generate("a", GREEDY)[0].outputs[0].finish_reason == "length"
        ops = llm._model.ops  # type: ignore[union-attr]
        error = ops._module.DeviceError("an illegal memory access was encountered")

        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(DevicePlan, "_read", fail)
        with pytest.raises(DeviceLostError, match=r"a step: the GPU emulation failed \(an illegal memory") as caught:
            llm.generate("a", GREEDY)
    assert caught.value.exit_code == 15 and unpacked(*packed(caught.value)).exit_code == 15
