"""Ops are records: whatever handles them handles every one of them."""

import re
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest

from karat.errors import ExecutorError
from karat.machine.extension import native
from karat.ops import api
from karat.ops.api import OPS, Method, Op, Ops, Several, Single, table_of
from karat.ops.executor import Executor, Traits
from karat.ops.guard import Guard
from karat.ops.native_plan import _RECORDED
from karat.ops.reference import ReferenceOps
from karat.ops.tap import Tap

every_op = pytest.mark.parametrize("kind", sorted(OPS, key=lambda kind: kind.__name__))
METHODS = {name: method for name, method in vars(Ops).items() if isinstance(method, Method)}


def arguments_of(kind: type[Op[Any]]) -> dict[str, Any]:
    """A stand-in for each argument, those that may be left out too."""
    given: dict[str, Any] = {field.name: object() for field in fields(kind)}
    shown: dict[str, Any] = {"name": "model.op", "names": ("model.a", "model.b"), "group": None, "observe": None}
    return given | {key: value for key, value in shown.items() if key in given}


class Standing(ReferenceOps):
    """Shows each op, and has a number as each result."""

    def apply(self, op: Op[Any]) -> Any:
        self.op = op
        if isinstance(op, Several):
            return tuple(np.full(1, float(number)) for number in range(len(op.names)))
        return np.zeros(1) if isinstance(op, Single) else None


class Same(Ops):
    def apply(self, op: Op[Any]) -> Any:
        return op


@every_op
def test_a_method_makes_the_record(kind: type[Op[Any]]) -> None:
    (name,) = (name for name, method in METHODS.items() if method.record is kind)
    given = arguments_of(kind)
    op = getattr(Same(), name)(**given)
    assert type(op) is kind and {key: getattr(op, key) for key in given} == given
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    with pytest.raises(TypeError, match="missing"):
        getattr(Same(), name)(**{key: value for key, value in list(given.items())[1:] if key in needed})


@every_op
def test_the_contract_is_written(kind: type[Op[Any]]) -> None:
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")  # that would be dataclass's own


@every_op
@pytest.mark.parametrize("wrapper", [Tap, Guard])
def test_wrappers_hand_every_op_on(kind: type[Op[Any]], wrapper: type[Tap]) -> None:
    inner, given = Standing("float64"), arguments_of(kind)
    if kind is api.Rope:
        given["x"] = np.zeros((1, 1, 2))
    result = wrapper(inner).apply(kind(**given))
    assert type(inner.op) is kind
    assert all(getattr(inner.op, key) is value for key, value in given.items() if key != "observe")
    assert type(result) is type(inner.apply(kind(**given)))


@every_op
def test_a_tap_keeps_every_result(kind: type[Op[Any]]) -> None:
    op, tap = kind(**arguments_of(kind)), Tap(Standing("float64"))
    tap.apply(op)
    want = {"model.op": 0.0} if isinstance(op, Single) else {}
    if isinstance(op, Several):
        want = {"model.a": 0.0, "model.b": 1.0}
    assert {name: array.item() for name, (array,) in tap.records.items()} == want


@every_op
def test_a_plan_has_a_method_for_every_op_that_is_recorded_as_it_is(kind: type[Op[Any]]) -> None:
    """With an argument for each field but the name and the step."""
    if kind not in _RECORDED:
        (said,) = getattr(native().Plan, OPS[kind]).__nb_signature__
        want = {field.name for field in fields(kind)} - {"name", "step"}
        assert set(re.findall(r"(\w+): ", said[0])) == want


def test_the_reference_executor_refuses_tensors_with_other_numbers_of_rows() -> None:
    with pytest.raises(ExecutorError, match=r"^op: tensors with 1 and 2 rows$"):
        ReferenceOps().add(np.ones((2, 3)), np.ones((1, 3)), name="op")


def test_arguments_are_found_by_type() -> None:
    op = api.KvWrite("k", "v", "cache", "step")
    assert op.given(api.Tensor) == {"k": "k", "v": "v"}
    assert op.given(api.Step) == {"step": "step"}
    assert api.SelectRows("x", "step", name="op").given(api.Loaded) == {}


def test_a_forgotten_op_is_an_error_at_import() -> None:
    table = {kind: lambda executor, op: None for kind in OPS}
    assert table_of(table) is table
    with pytest.raises(TypeError, match="look at Stranger"):
        table_of(table | {type("Stranger", (Op,), {}): lambda executor, op: None})
    del table[api.Add]
    with pytest.raises(TypeError, match="look at Add"):
        table_of(table)


def test_a_tap_asks_its_executor_for_everything() -> None:
    """`runner` is the one of Executor, which runs op by op. Traits are taken over when a tap is made."""
    asked = {name for name in vars(Executor) if not name.startswith("_")}
    assert asked - vars(Tap).keys() == {"runner", "traits"}
    inner = ReferenceOps()
    inner.traits = Traits(overlaps=True)
    assert Tap(inner).traits is inner.traits
