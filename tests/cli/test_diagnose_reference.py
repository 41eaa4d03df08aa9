"""`karat diagnose --reference`: a right reference decides, with the model, with a wrong one, and without any.

Covers: karat.check.diagnosis.reference, karat.cli.diagnose.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat.check.trace.format import Trace
from karat.check.trace.reading import read_trace
from karat.check.trace.writing import write_trace
from tests.cli import alphabet_model
from tests.cli.conftest import Karat

IDS = "70,71,72,73,74,75"


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """A small model whose layers do something."""
    return _with_weights(tmp_path / "right", 1.0)


def _with_weights(folder: Path, factor: float) -> Path:
    """The alphabet model with random projections, layer 1's o_proj multiplied."""
    alphabet_model.write(folder)
    rng, path = np.random.default_rng(5), folder / "model.safetensors"
    weights = load_file(path)
    for name in sorted(weights):
        if "_proj.weight" in name:
            weights[name] = (0.1 * rng.standard_normal(weights[name].shape)).astype(np.float32)
    weights["model.layers.1.self_attn.o_proj.weight"] *= np.float32(factor)
    save_file(weights, path, {"format": "pt"})
    return folder


def _trace(karat_here: Karat, model: Path, path: Path, *options: str) -> Path:
    done = karat_here("trace", str(model), "-o", str(path), "--ids", IDS, "--executor", "reference", *options)
    assert done.returncode == 0, done.stderr
    return path


def _without_model(path: Path) -> None:
    made = read_trace(path)
    arrays = {name: np.array(made.arrays[name]) for name in made.arrays}
    write_trace(path, Trace(replace(made.info, model=None, digest=None), arrays))


def test_a_model_with_wrong_weights_does_not_excuse_its_run(right: Path, tmp_path: Path, karat_here: Karat) -> None:
    wrong = _with_weights(tmp_path / "wrong", 1.3)
    ours, theirs = _trace(karat_here, wrong, tmp_path / "ours"), _trace(karat_here, right, tmp_path / "theirs")
    for args in (["-m", str(wrong)], []):  # the one that the trace names is the wrong one
        done = karat_here("diagnose", str(ours), "--reference", str(theirs), *args)
        assert done.returncode == 1, done.stdout
        lines = done.stdout.splitlines()
        assert lines[1] == "verdict: bug" and "arithmetic verdict: numerics" in done.stdout
        assert "first leaves the reference at model.layers.1.self_attn.o_proj: off by" in done.stdout
        assert "every op is what MODEL's weights give" in done.stdout
        facts = json.loads(karat_here("diagnose", str(ours), "--reference", str(theirs), *args, "--json").stdout)
        assert facts["verdict"] == "bug"
        assert facts["first_leaves_reference"] == "model.layers.1.self_attn.o_proj"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_weights_show_where_rounding_could_hide_them(
    right: Path, tmp_path: Path, karat_here: Karat, dtype: str
) -> None:
    """A weight off by a hundredth stays within 100 times what bfloat16 does to a whole run, and shows at its own op."""
    wrong = _with_weights(tmp_path / "wrong", 1.01)
    ours, theirs = _trace(karat_here, wrong, tmp_path / "ours"), _trace(karat_here, right, tmp_path / "theirs")
    if dtype == "bfloat16":
        made = read_trace(ours)
        arrays = {name: _to_bfloat16(made.arrays[name]) for name in made.arrays}
        write_trace(ours, Trace(replace(made.info, dtype="bfloat16", kv_dtype="bfloat16"), arrays))
    done = karat_here("diagnose", str(ours), "--reference", str(theirs), "-m", str(wrong))
    assert done.returncode == 1 and "arithmetic verdict: numerics" in done.stdout, done.stdout
    assert "the reference is not what MODEL's weights give at model.layers.1.self_attn.o_proj: off by" in done.stdout
    assert ("first leaves the reference" in done.stdout) == (dtype == "float32")


def _to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, in float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).reshape(x.shape)


@pytest.mark.parametrize("options", [(), ("--kv-dtype", "float32"), ("--dtype", "float64")])
def test_a_right_run_stays_with_its_reference(
    right: Path, tmp_path: Path, karat_here: Karat, options: tuple[str, ...]
) -> None:
    """Whatever the two round in: the coarser has the floor. In either direction."""
    ours, theirs = (
        _trace(karat_here, right, tmp_path / "ours"),
        _trace(karat_here, right, tmp_path / "theirs", *options),
    )
    for first, second in ((ours, theirs), (theirs, ours)):
        done = karat_here("diagnose", str(first), "--reference", str(second))
        assert done.returncode == 0 and "first leaves" not in done.stdout, done.stdout
        assert "lm_head:" in done.stdout


def test_without_a_model_the_traces_are_compared_by_name(right: Path, tmp_path: Path, karat_here: Karat) -> None:
    wrong = _with_weights(tmp_path / "wrong", 1.3)
    ours, theirs = _trace(karat_here, wrong, tmp_path / "ours"), _trace(karat_here, right, tmp_path / "theirs")
    again = _trace(karat_here, right, tmp_path / "again", "--dtype", "float64", "--kv-dtype", "float32")
    for path in (ours, theirs, again):
        _without_model(path)
    done = karat_here("diagnose", str(ours), "--reference", str(theirs))
    assert done.returncode == 1 and "verdict: bug" in done.stdout
    assert "first leaves the reference at model.layers.1.self_attn.o_proj" in done.stdout
    assert "--model gives more" in done.stderr
    done = karat_here("diagnose", str(again), "--reference", str(theirs))
    assert done.returncode == 0 and "verdict: numerics" in done.stdout, done.stdout
    done = karat_here("diagnose", str(theirs), "--reference", str(theirs), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["verdict"] == "exact"
    done = karat_here("diagnose", str(ours))
    assert done.returncode == 2 and "give its own with --model" in done.stderr


def test_traces_with_nothing_in_common_are_refused(right: Path, tmp_path: Path, karat_here: Karat) -> None:
    ours, theirs = (_trace(karat_here, right, tmp_path / name) for name in ("ours", "theirs"))
    for path, name in ((ours, "lm_head"), (theirs, "model.embed_tokens")):
        made = read_trace(path)
        write_trace(path, Trace(made.info, {name: np.array(made.arrays[name])}))
    for args in ([], ["-m", str(right)]):
        done = karat_here("diagnose", str(ours), "--reference", str(theirs), *args)
        assert done.returncode == 2 and "no result is in both traces" in done.stderr
