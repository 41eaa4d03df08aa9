"""Fusing a recorded plan: each rule joins the ops that it is for, no others, and changes no bit."""

import tempfile
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import numpy as np
import pytest

from karat.batch import plain_batch
from karat.machine.extension import native
from karat.ops.native import supported_isas, unavailable_reason
from karat.ops.native_plan import PlanRecorder
from tests.support import golden
from tests.support.weights import random_blocks

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

WIDTH = 256
# What a call records: the register to keep, of a plan whose inputs are x and y.
Recording = Callable[[Any, int, int], int]


def matrix(stored: str = "F32", seed: int = 0) -> Any:
    weight = random_blocks(stored, WIDTH, WIDTH, np.random.default_rng(seed))
    return native().pack(stored, WIDTH, WIDTH, np.frombuffer(weight.data, np.uint8), 1)


def linear(plan: Any, x: int, *seeds: int, stored: str = "F32") -> list[int]:
    matrices = [matrix(stored, seed) for seed in seeds]
    found: list[int] = plan.linear(x, matrices, [None] * len(matrices), [WIDTH])
    return found


def group_of_two() -> Any:
    """The channel of rank 0 of two; the plan is recorded and never run."""
    with tempfile.TemporaryFile() as file:
        file.truncate(native().SharedMemory.num_bytes(2, 1 << 16, 1 << 16))
        return native().SharedMemory(file.fileno(), 0, 2, 1 << 16, 1 << 16, False)


def swiglu(plan: Any, x: int, y: int) -> int:
    return int(plan.silu_mul(*linear(plan, x, 1, 2)))


def geglu(plan: Any, x: int, y: int) -> int:
    return int(plan.gelu_mul(*linear(plan, x, 1, 2)))


def residual(plan: Any, x: int, y: int) -> int:
    return int(plan.add(y, *linear(plan, x, 1)))


def residual_of_blocks(plan: Any, x: int, y: int) -> int:
    return int(plan.add(y, *linear(plan, x, 1, stored="Q4_K")))


def residual_over_ranks(plan: Any, x: int, y: int) -> int:
    return int(plan.add(y, plan.linear_over(group_of_two(), x, matrix(), None, [WIDTH])))


FUSED: dict[Recording, tuple[str, list[str]]] = {
    swiglu: ("swiglu_into_gate_and_up", ["linear"]),
    geglu: ("swiglu_into_gate_and_up", ["linear"]),
    residual: ("residual_into_linear", ["linear"]),
    residual_of_blocks: ("residual_into_linear", ["quantise", "linear"]),
    residual_over_ranks: ("residual_into_all_reduce", ["linear", "all_reduce"]),
}


def first_term(plan: Any, x: int, y: int) -> int:
    """The layer's result is the first term: it would be added in another order."""
    return int(plan.add(*linear(plan, x, 1), y))


def read_twice(plan: Any, x: int, y: int) -> int:
    (out,) = linear(plan, x, 1)
    return int(plan.add(plan.add(y, out), out))


def doubled(plan: Any, x: int, y: int) -> int:
    (out,) = linear(plan, x, 1)
    return int(plan.add(out, out))


def one_of_two(plan: Any, x: int, y: int) -> int:
    return int(plan.add(y, linear(plan, x, 1, 2)[1]))


def swapped(plan: Any, x: int, y: int) -> int:
    gate, up = linear(plan, x, 1, 2)
    return int(plan.silu_mul(up, gate))


def apart(plan: Any, x: int, y: int) -> int:
    (out,) = linear(plan, x, 1)
    return int(plan.add(plan.add(x, y), out))


NOT_FUSED = (first_term, read_twice, doubled, one_of_two, swapped, apart)


def second_sum(plan: Any, x: int, y: int) -> int:
    """Two sums follow a layer: it has room for one residual."""
    return int(plan.add(x, residual(plan, x, y)))


def recorded(recording: Recording, isa: str = "generic", **finish: Any) -> tuple[Any, tuple[int, int, int]]:
    plan = native().Plan(isa, 2)
    x, y = plan.input(WIDTH), plan.input(WIDTH)
    out = recording(plan, x, y)
    plan.finish(40, 0, 1, 1, [out], **finish)
    return plan, (x, y, out)


@pytest.mark.parametrize("recording", FUSED, ids=lambda call: call.__name__)
def test_a_rule_joins_what_it_is_for(recording: Recording) -> None:
    rule, ops = FUSED[recording]
    plan, _ = recorded(recording)
    assert (plan.fused, plan.op_names) == ([rule], ops)


@pytest.mark.parametrize("recording", FUSED, ids=lambda call: call.__name__)
def test_without_fusing_each_call_is_an_op_of_its_own(recording: Recording) -> None:
    plan, _ = recorded(recording, fusing=False)
    (last,) = {"swiglu": ["silu_mul"], "geglu": ["gelu_mul"]}.get(recording.__name__, ["add"])
    assert (plan.fused, plan.op_names) == ([], [*FUSED[recording][1], last])


@pytest.mark.parametrize("recording", NOT_FUSED, ids=lambda call: call.__name__)
def test_other_plans_stay_as_they_were_recorded(recording: Recording) -> None:
    assert recorded(recording)[0].fused == []


def test_a_layer_takes_one_residual() -> None:
    plan, _ = recorded(second_sum)
    assert (plan.fused, plan.op_names) == (["residual_into_linear"], ["linear", "add"])


def test_what_is_read_after_the_run_is_not_fused_away() -> None:
    plan = native().Plan("generic", 1)
    x, y = plan.input(WIDTH), plan.input(WIDTH)
    (out,) = linear(plan, x, 1)
    plan.finish(4, 0, 1, 1, [out, plan.add(y, out)])
    assert plan.fused == []


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize(
    "recording", [swiglu, residual, residual_of_blocks, second_sum, *NOT_FUSED], ids=lambda call: call.__name__
)
def test_fusing_changes_no_bit(recording: Recording, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    values = rng.standard_normal((2, tokens, WIDTH)).astype(np.float32)
    for isa in supported_isas():
        results = []
        for fusing in (False, True):
            plan, (x, y, out) = recorded(recording, isa, fusing=fusing)
            plan.write(x, values[0])
            plan.write(y, values[1])
            plan.run(plain_batch(range(tokens)).flat)
            results.append(plan.read(out).copy())
        np.testing.assert_array_equal(*results, err_msg=isa)
        assert np.isfinite(results[0]).all()


def test_a_model_has_the_same_bits_without_fusing(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: dict[bool, Any] = {}
    finish = PlanRecorder.finish

    def finish_and_keep(recorder: PlanRecorder, *arguments: Any, fusing: bool) -> None:
        finish(recorder, *arguments, fusing=fusing)
        plans[fusing] = recorder.plan

    digests = []
    for fusing in (True, False):
        monkeypatch.setattr(PlanRecorder, "finish", partialmethod(finish_and_keep, fusing=fusing))
        digests.append(golden.embedded_digest())
    assert digests[0] == digests[1]
    fused, unfused = plans[True], plans[False]
    assert set(fused.fused) == {"swiglu_into_gate_and_up", "residual_into_linear"}
    assert not unfused.fused
    assert len(unfused.op_names) == len(fused.op_names) + len(fused.fused)


def test_recording_ends_with_finish() -> None:
    plan, (x, y, _) = recorded(residual)
    for record in (lambda: plan.add(x, y), lambda: plan.input(4), lambda: linear(plan, x, 1)):
        with pytest.raises(ValueError, match="nothing more can be recorded"):
            record()
    with pytest.raises(ValueError, match="finished once"):
        plan.finish(1, 0, 1, 1, [])


def test_one_result_is_gathered_in_a_plan() -> None:
    """There is one place for it in the memory that ranks share."""
    plan, channel = native().Plan("generic", 1), group_of_two()
    x = plan.input(WIDTH)
    plan.gather(channel, x, 0, 2 * WIDTH)
    with pytest.raises(ValueError, match="two results in one place"):
        plan.gather(channel, x, 0, 2 * WIDTH)
