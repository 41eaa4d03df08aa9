"""Executors and their options: what each takes, what it says of others, and a new one that no caller knows."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from karat import LLM
from karat.check.model.checked import open_model
from karat.check.session.session import CheckPlan, CheckSession
from karat.cli.options import ComputeOptions
from karat.engine import async_llm
from karat.engine.remote import messages
from karat.errors import ExecutorError, KaratError, UsageError
from karat.ops import registry
from karat.ops.native import supported_isas, unavailable_reason
from karat.ops.reference import ReferenceOps
from karat.ops.registry import ExecutorEntry, Option, create, device_of, devices, take_options
from tests.engine.tiny import write_model

needs_native = pytest.mark.skipif(unavailable_reason() is not None, reason="no native executor here")


@pytest.mark.parametrize(
    ("executor", "options", "error", "message"),
    [
        (
            "reference",
            {"isa": "generic"},
            UsageError,
            "isa='generic': the reference executor has no such",
        ),
        ("reference", {"threads": 0}, UsageError, "threads=0: expected an integer of at least 1"),
        ("reference", {"threads": True}, UsageError, "threads=True: expected an integer"),
        ("auto", {"activations": "int4"}, UsageError, "activations='int4': expected one of .*int16"),
        ("auto", {"activations": ["int8"]}, UsageError, r"activations=\['int8'\]: expected one of"),
        ("far", {}, ExecutorError, "executor='far' is unknown; Karat has auto, reference, native, cuda, cuda-emulated"),
        ("auto", {"device": "gpu"}, UsageError, "device='gpu': expected cpu, cuda, cuda:N "),
        ("auto", {"device": 1}, UsageError, "device=1: expected cpu"),
        ("reference", {"device": "cuda:1"}, UsageError, "device='cuda:1': the reference executor computes on cpu"),
        ("reference", {"host_layers": 1}, UsageError, "host_layers=1: the reference executor has no such option"),
        pytest.param("native", {"isa": "z80"}, ExecutorError, "kernel build 'z80'", marks=needs_native),
        pytest.param("native", {"isa": 80}, UsageError, "isa=80: expected the name of a kernel", marks=needs_native),
        pytest.param("native", {"threads": 10**6}, ExecutorError, "threads=1000000: expected", marks=needs_native),
    ],
)
def test_refusals(executor: str, options: dict[str, Any], error: type[KaratError], message: str) -> None:
    with pytest.raises(error, match=message):
        create(executor, "float32", options)


@needs_native
def test_an_executor_says_what_its_options_are() -> None:
    """Made again with them, it is the same."""
    isa = supported_isas()[0]
    ops = create("auto", "float32", {"threads": 1, "isa": isa, "activations": None})
    assert ops.executor == "native" and ops.options == {"threads": 1, "isa": isa, "activations": "int16"}
    assert create(ops.executor, ops.dtype, ops.options).options == ops.options
    assert create("reference", "float64", {"threads": 3}).options == {"activations": "float64"}


def test_auto_is_the_last_that_is_available_and_has_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    assert create("auto", "float64").executor == "reference"
    monkeypatch.setattr(registry, "unavailable_reason", lambda: "no compiler")
    assert create().executor == "reference"


class Far(ReferenceOps):
    """An executor that comes later, with options of its own."""

    executor = "far"
    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, dtype: Any, **options: Any) -> None:
        super().__init__(dtype)
        self.given = options
        Far.made.append(options)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> ExecutorEntry:
    """One entry in each of two tables, and nothing else."""
    for name in ("place", "depth"):
        count = Option(lambda value: type(value) is int and value >= 0, "an integer of at least 0")
        monkeypatch.setitem(registry.OPTIONS, name, count)  # type: ignore[arg-type]
    entry = ExecutorEntry(Far, ("float32", "float64"), ("activations", "place", "depth"), rounds_nothing=True)
    monkeypatch.setitem(registry.EXECUTORS, "far", entry)  # type: ignore[arg-type]
    monkeypatch.setattr(Far, "made", [])
    return entry


OPTIONS = {"place": 1, "depth": 0}


def test_callers_hand_options_through(far: ExecutorEntry, tmp_path: Path) -> None:
    """LLM, its process, `karat check`."""
    folder = write_model(tmp_path)
    with LLM(folder, executor="far", **OPTIONS) as llm:
        assert llm.executor == "far" and llm.generate("x")[0].outputs[0].token_ids
    opening = async_llm.opening_of(folder, {"executor": "far", **OPTIONS})
    sent = msgspec.msgpack.Decoder(messages.Open).decode(msgspec.msgpack.encode(opening))
    assert {name: value for name, value in sent.options.executor_options.items() if value is not None} == OPTIONS
    assert Far.made == [OPTIONS]
    plan = CheckPlan(model=open_model(str(folder)), num_tokens=4, executor="far", options=OPTIONS)
    assert CheckSession(replace(plan)).llm.executor == "far"
    assert Far.made == [OPTIONS] * 3


def test_their_errors_are_said_before_a_process_starts(far: ExecutorEntry, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    for open_it in (lambda options: LLM(folder, **options), lambda options: async_llm.opening_of(folder, options)):
        with pytest.raises(UsageError, match="place='gpu': expected an integer of at least 0"):
            open_it({"executor": "far", "place": "gpu"})
    with pytest.raises(UsageError, match="place=1: the reference executor has no such option; it has threads"):
        LLM(folder, executor="reference", place=1)
    with pytest.raises(UsageError, match=r"threads=2: the far executor has no such option; it has .*place"):
        LLM(folder, executor="far", threads=2)


def test_options_are_taken_out_of_other_arguments() -> None:
    given = ComputeOptions(dtype="float32", threads=2, activations=["int8"]).given()
    assert take_options(given) == {"threads": 2, "activations": "int8"}
    assert given == {"dtype": "float32"}


def test_a_device_is_its_executor() -> None:
    assert create("auto", "float64", {"device": "cpu"}).executor == "reference"
    assert devices().keys() == {"cpu", "cuda", "cuda-emulated"} and devices()["cpu"] is None
    for device in ("cuda", "cuda-emulated"):
        with pytest.raises(ExecutorError, match=rf"dtype='float64': the {device} executor computes in float32"):
            create("auto", "float64", {"device": device})
        if devices()[device] is None:
            assert device_of(create("auto", "float32", {"device": device}).executor) == device


@needs_native
def test_a_device_that_is_not_there_says_how_to_get_it() -> None:
    """A module, or the driver that the module asks for."""
    cuda = "`make cuda`" if find_spec("karat_cuda") is None else "NVIDIA driver"
    for device, how in (("cuda", cuda), ("cuda:1", cuda), ("cuda-emulated", "`make emulated`")):
        if devices()[device.partition(":")[0]] is not None:
            with pytest.raises(ExecutorError, match=f"executor is not available: .*{how}"):
                create("auto", "float32", {"device": device})
