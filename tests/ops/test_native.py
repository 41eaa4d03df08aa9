"""The native RMSNorm: bit for bit its contract in csrc/contract/kernels.h; within its roundings of float64."""

import ctypes
import math
import platform
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from karat.checkpoint.weights import Weight
from karat.config import LayerShape
from karat.errors import ExecutorError
from karat.ops import native
from karat.ops.native import NativeOps, supported_isas, unavailable_reason
from karat.ops.reference import ReferenceOps
from tests.support.drawn import examples
from tests.support.fma import fma

if unavailable_reason():
    pytest.skip(f"no native executor: {unavailable_reason()}", allow_module_level=True)

F32 = NDArray[np.float32]
LANES = 16
UNIT_ROUNDOFF = 2.0**-24
ISAS = supported_isas()

# Lengths on both sides of the lane count and of every vector width, and those of real models.
LENGTHS = st.one_of(st.integers(1, 100), st.sampled_from([128, 896, 1023, 1024, 1025, 4096, 4099]))


@pytest.mark.parametrize(
    ("here", "there"),
    [("REGION_SLOTS", "kRegionSlots"), ("_SPLIT_KEYS", "kSplitKeys"), ("_PART_STATS", "kPartStats")],
)
def test_constants_that_sizes_are_computed_with_are_those_of_the_kernels(here: str, there: str) -> None:
    header = (Path(__file__).parents[2] / "csrc" / "contract" / "kernels.h").read_text(encoding="utf-8")
    found = re.search(rf"constexpr std::size_t {there} = (\d+);", header)
    assert found and getattr(native, here) == int(found[1])


def test_parts_of_attention_as_the_plan_allocates_them() -> None:
    """8 KV heads in groups of 4, head_dim 128, 128k context: 151 MB for 16 sequences."""
    shape = LayerShape(num_heads=32, num_kv_heads=8, head_dim=128, inner_size=1, window=None, rope=None)
    ops, small = NativeOps(threads=1), replace(shape, head_dim=20)
    assert ops.step_bytes([small, shape], num_seqs=16, context=131072) == 16 * 8 * 512 * 4 * (128 + 16) * 4
    assert ops.step_bytes([small], num_seqs=1, context=257) == 8 * 2 * 4 * (32 + 16) * 4
    assert ReferenceOps().step_bytes([shape], num_seqs=16, context=131072) == 0


def contract(x: F32, weight: F32, eps: float) -> F32:
    """RMSNorm of [rows, n] as csrc/contract/kernels.h defines it, one NumPy operation a rounding."""
    rows, n = x.shape
    lanes = np.zeros((rows, LANES), np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        for start in range(0, n, LANES):
            part = x[:, start : start + LANES]
            width = part.shape[1]
            lanes[:, :width] = fma(part, part, lanes[:, :width])
        for half in (8, 4, 2, 1):
            lanes[:, :half] += lanes[:, half : 2 * half]
        scale = np.float32(1) / np.sqrt(lanes[:, :1] / np.float32(n) + np.float32(eps))
        return (x * scale) * weight


def bits(x: F32) -> NDArray[np.uint32]:
    """Bit patterns, with one for all NaNs."""
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


@st.composite
def problems(draw: st.DrawFn, *, any_bits: bool) -> tuple[F32, F32, float]:
    """x [rows, n], weight [n], eps: of ordinary size, or random bit patterns (denormals, huge, inf, NaN)."""
    rows, n, seed = draw(st.integers(0, 5)), draw(LENGTHS), draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    if any_bits:
        values = rng.integers(0, 2**32, (rows + 1) * n, dtype=np.uint32).view(np.float32)
        specials = np.array([0, -0.0, np.inf, np.nan, 1e-45, 1.1754944e-38, 3.4e38, -3.4e38], np.float32)
        chosen = rng.random(values.shape) < draw(st.sampled_from([0, 0.02, 0.5]))
        values = np.where(chosen, rng.choice(specials, values.shape), values)
        exponent_limit = draw(st.sampled_from([0, 64, 127, 255]))  # so that sums do not always overflow
        keep = (values.view(np.uint32) >> 23 & 0xFF) <= exponent_limit
        values = np.where(keep | chosen, values, np.float32(0.5))
    else:
        size = np.float32(draw(st.sampled_from([1e-3, 1, 300])))
        values = rng.standard_normal((rows + 1) * n, np.float32) * size
    eps = draw(st.sampled_from([0.0, 1e-6, 1e-5, 0.1]))
    return values[n:].reshape(rows, n), values[:n].copy(), eps


def vector(values: F32) -> Any:
    """A norm's weight, as it is loaded."""
    data = np.ascontiguousarray(values, "<f4").view(np.uint8)
    return NativeOps().load(Weight("norm.weight", "F32", values.shape, data, Path("in-memory")))


def run(isa: str, problem: tuple[F32, F32, float]) -> F32:
    x, weight, eps = problem
    result = NativeOps(isa=isa).rms_norm(x, vector(weight), eps, name="norm")
    assert result.dtype == np.float32
    assert result.shape == x.shape
    return result.astype(np.float32)


finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite_floats, finite_floats, finite_floats), min_size=1, max_size=20))
def test_the_emulated_fma_is_exact(triples: list[tuple[float, float, float]]) -> None:
    a, b, c = (np.array(column, np.float32) for column in zip(*triples, strict=True))
    for got, (p, q, r) in zip(fma(a, b, c), triples, strict=True):
        exact = Fraction(p) * Fraction(q) + Fraction(r)
        candidates = {np.float32(got)}
        with np.errstate(over="ignore"):
            candidates |= {np.nextafter(got, np.float32(way)) for way in (-np.inf, np.inf)}
        if math.isinf(got):
            assert abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103
            continue
        finite = [float(value) for value in candidates if np.isfinite(value)]
        errors = {value: abs(Fraction(value) - exact) for value in finite}
        nearest = min(errors.values())
        assert errors[float(got)] == nearest
        if sum(error == nearest for error in errors.values()) > 1:  # a tie goes to the even one
            assert got.view(np.uint32) % 2 == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("any_bits", [False, True])
def test_every_build_has_the_bits_of_the_contract(isa: str, any_bits: bool) -> None:
    @settings(max_examples=examples(150))
    @given(problems(any_bits=any_bits))
    def check(problem: tuple[F32, F32, float]) -> None:
        np.testing.assert_array_equal(bits(run(isa, problem)), bits(contract(*problem)))

    check()


@given(problems(any_bits=False))
def test_within_the_roundings_of_float64(problem: tuple[F32, F32, float]) -> None:
    x, weight, eps = problem
    if not x.size:
        return
    wide = x.astype(np.float64), weight.astype(np.float64)
    truth = ReferenceOps("float64").rms_norm(*wide, eps, name="norm")
    # The sum of squares: one chain a lane, four folds; then mean, eps and its addition: halved by the root.
    # Root, reciprocal and two products round once more each.
    num_roundings = (math.ceil(x.shape[1] / LANES) + 4 + 3) / 2 + 4
    bound = num_roundings * UNIT_ROUNDOFF * 1.01  # second-order terms
    for isa in ISAS:
        np.testing.assert_array_less(np.abs(run(isa, problem) - truth), bound * np.abs(truth) + 1e-37)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_others(isa: str) -> None:
    rng = np.random.default_rng(7)
    x, weight = rng.standard_normal((9, 133), np.float32), rng.standard_normal(133, np.float32)
    together = run(isa, (x, weight, 1e-6))
    alone = np.concatenate([run(isa, (x[i : i + 1], weight, 1e-6)) for i in range(len(x))])
    np.testing.assert_array_equal(together.view(np.uint32), alone.view(np.uint32))


def test_leading_axes_and_strides_are_the_callers_business() -> None:
    rng = np.random.default_rng(8)
    x, weight = rng.standard_normal((3, 8, 20), np.float32), rng.standard_normal(20, np.float32)
    whole = NativeOps().rms_norm(x[:, ::2, :], vector(weight), 1e-6, name="norm")
    assert whole.shape == (3, 4, 20)
    expected = contract(np.ascontiguousarray(x[:, ::2, :]).reshape(-1, 20), weight, 1e-6).reshape(3, 4, 20)
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize(
    ("x", "num_weights", "eps", "message"),
    [
        (np.ones((2, 4)), 4, 1e-6, "an input of float64"),
        (np.ones((2, 4), np.float32), 5, 1e-6, r"model\.norm: a weight of 5 for rows of 4"),
        (np.ones((2, 4), np.float32), 4, -1e-6, r"model\.norm: eps=-1e-06"),
        (np.ones((2, 4), np.float32), 4, math.nan, r"model\.norm: eps=nan"),
    ],
)
def test_arguments_outside_the_contract_are_refused(x: F32, num_weights: int, eps: float, message: str) -> None:
    with pytest.raises(ExecutorError, match=message):
        NativeOps().rms_norm(x, vector(np.ones(num_weights, np.float32)), eps, name="model.norm")


def test_a_build_that_cannot_run_is_refused_with_the_choices() -> None:
    with pytest.raises(ExecutorError, match=r"kernel build 'sse9': this installation has generic.*KARAT_ISA to one of"):
        NativeOps(isa="sse9")


def test_a_build_that_was_not_compiled_says_what_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `make demo`: this CPU's builds alone."""
    monkeypatch.setattr("karat.ops.native.compiled_isas", lambda: ("generic",))
    monkeypatch.setattr("karat.ops.native.supported_isas", lambda: ("generic",))
    said = r"has generic; .*`make demo` compiles only .* `make test` what it can run, and a wheel"
    with pytest.raises(ExecutorError, match=said):
        NativeOps(isa="avx2")
    monkeypatch.setattr("karat.ops.native.compiled_isas", lambda: ("generic", "avx2"))
    with pytest.raises(ExecutorError, match=r"'avx2': this CPU cannot run it; set KARAT_ISA to one of generic, or"):
        NativeOps(isa="avx2")


def test_other_types_are_refused() -> None:
    with pytest.raises(ExecutorError, match="dtype='float64': the native executor computes in float32"):
        NativeOps("float64")


def test_the_fastest_build_is_the_default() -> None:
    assert ISAS[0] == "generic"
    assert NativeOps().isa == ISAS[-1]


@contextmanager
def float_environment(mxcsr_bits: int) -> Iterator[None]:
    """Bits set in this thread's MXCSR, by way of fenv_t (x86-64 glibc: the last of its eight words)."""
    libm = ctypes.CDLL("libm.so.6")
    saved, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    libm.fegetenv(saved)
    libm.fegetenv(changed)
    changed[7] |= mxcsr_bits
    libm.fesetenv(changed)
    try:
        yield
        after = (ctypes.c_uint32 * 8)()
        libm.fegetenv(after)
        assert after[7] & mxcsr_bits == mxcsr_bits, "a kernel call changed the caller's environment"
    finally:
        libm.fesetenv(saved)


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="knows only how x86-64 glibc keeps the floating-point environment",
)
@pytest.mark.parametrize("mxcsr_bits", [0x8040, 0x4000], ids=["flush denormals", "round upward"])
@pytest.mark.parametrize("isa", ISAS)
def test_the_callers_floating_point_environment_does_not_matter(isa: str, mxcsr_bits: int) -> None:
    rng = np.random.default_rng(9)
    weight = rng.standard_normal(64, np.float32) * np.float32(1e-39)  # denormal weights and results
    problem = rng.standard_normal((4, 64), np.float32), weight, 1e-6
    expected = run(isa, problem)
    assert (expected != 0).any()
    with float_environment(mxcsr_bits):
        got = run(isa, problem)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_the_interpreter_lock_is_released() -> None:
    ops = NativeOps(isa="generic")
    x, loaded = np.ones((512, 8192), np.float32), vector(np.ones(8192, np.float32))
    go, ran = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (go.wait(), ran.set()), daemon=True)
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # from here on this thread loses the lock only by giving it away
    try:
        go.set()
        for _ in range(50):  # the other thread may be scheduled late
            ops.rms_norm(x, loaded, 1e-6, name="norm")
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        other.join()
