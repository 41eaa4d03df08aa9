"""`karat trace` and `karat diagnose`, from the command line to the verdict.

Covers: karat.check.replay.validate, karat.cli.traced_model.
"""

import json
import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from karat.check.trace.format import Trace
from karat.check.trace.reading import read_trace
from karat.check.trace.writing import write_trace
from tests.cli import alphabet_model
from tests.cli.conftest import Karat
from tests.engine.tiny import write_model


def test_a_trace_of_karat_is_healthy(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    done = karat_here("trace", "-o", str(path), "--chunk", "5", "--decode", "3", "--executor", "reference")
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
    trace = read_trace(path)
    best = trace.arrays["lm_head"][-1].argmax()
    assert "sum to 1.000000 … 1.000000" in done.stderr and f"of token {best} of 4096" in done.stderr
    assert len(trace.info.steps) >= 5 and trace.info.generated is not None and len(trace.info.generated) == 3
    assert trace.info.token_ids[-3:] == trace.info.generated
    done = karat_here("diagnose", str(path))
    assert done.returncode == 0 and "verdict: numerics" in done.stdout
    facts = json.loads(karat_here("diagnose", str(path), "--json").stdout)
    assert facts["verdict"] == "numerics" and not facts["bugs"] and not facts["missing"]


def test_a_text_goes_behind_prompt(karat_here: Karat) -> None:
    done = karat_here("trace", "model.gguf", "Once upon a time")
    assert done.returncode == 2
    message = "2 words, expected MODEL alone; give a text with --prompt, in quotes"
    assert done.stderr == f"karat: error: {message}\n"


def test_a_wrong_trace_is_named_with_its_evidence(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--ids", "5,9,300,7,8,9", "--dtype", "float64", "--executor", "reference")
    trace = read_trace(path)
    prefix = "model.layers.5.self_attn"
    arrays = {f"{prefix}.{part}": trace.arrays[f"{prefix}.{part}"] for part in ("q_rope", "k_rope", "scores")}
    arrays[f"{prefix}.scores"] = arrays[f"{prefix}.scores"] * np.sqrt(32)
    write_trace(path, Trace(trace.info, arrays))
    done = karat_here("diagnose", str(path))
    assert done.returncode == 1
    assert "verdict: bug" in done.stdout
    assert "scale-missing: the softmax scale is missing" in done.stdout
    assert "where      self_attn.scores in layer 5" in done.stdout
    facts = json.loads(karat_here("diagnose", str(path), "--json").stdout)
    (bug,) = facts["bugs"]
    assert bug["classes"] == [["scale-missing"]] and bug["places"] == [f"{prefix}.scores"]


def _renamed(path: Path, names: dict[str, str]) -> None:
    trace = read_trace(path)
    write_trace(path, Trace(trace.info, {names.get(name, name): np.array(x) for name, x in trace.arrays.items()}))


def test_validate_takes_the_model_that_the_trace_names(tmp_path: Path, karat_here: Karat) -> None:
    folder, path = tmp_path / "model", tmp_path / "x.trace"
    alphabet_model.write(folder)
    karat_here("trace", str(folder), "-o", str(path), "--ids", "70,71")
    done = karat_here("trace", "--validate", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == karat_here("trace", str(folder), "--validate", str(path)).stdout
    assert f"model: {folder}, which the trace names" in done.stderr


def test_validate_says_what_is_missing(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--ids", "5,9", "--layers", "0,2-3")
    done = karat_here("trace", "--validate", str(path))
    assert done.returncode == 0
    assert "self_attn.scores in layers 1, 4-5" in done.stdout
    assert "a bug is located to the op: layers 0, 2-3, model.embed_tokens, model.norm, lm_head; " in done.stdout
    assert "to the layer: layer 1; elsewhere it can only be narrowed down to this range: layers 4-5, and" in done.stdout


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("written", "meant", "why"),
    [
        ("model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj", "spelt otherwise"),
        ("model.layers.3.mlp.gate_porj", "model.layers.3.mlp.gate_proj", "spelt otherwise"),
        ("layers.3.mlp.gate_proj", "model.layers.3.mlp.gate_proj", "another order|spelt otherwise"),
        ("model.mlp.layers.3.gate_proj", "model.layers.3.mlp.gate_proj", "another order"),
        ("model.layers.3.mlp.proj_gate", "model.layers.3.mlp.gate_proj", "another order"),
        ("model.layers.9.mlp.gate_proj", None, "the model has layers 0 to 5"),
    ],
)
def test_validate_names_what_is_misnamed(
    written: str, meant: str | None, why: str, tmp_path: Path, karat_here: Karat
) -> None:
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--ids", "5,9")
    assert karat_here("trace", "--validate", str(path)).returncode == 0
    _renamed(path, {"model.layers.3.mlp.gate_proj": written})
    done = karat_here("trace", "--validate", str(path))
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("misnamed")]
    assert line.startswith(f"misnamed: '{written}': ") and re.search(why, line)
    assert line.endswith(f"; is it {meant}?") if meant else "?" not in line
    done = karat_here("diagnose", str(path))
    assert done.returncode == 0 and f"not used: {written}" in done.stderr


def test_validate_lets_arrays_of_other_things_be(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--ids", "5,9")
    _renamed(path, {"model.rotary_emb.sin": "timing"})
    done = karat_here("trace", "--validate", str(path))
    assert done.returncode == 0 and "not used, as no result is called so: 'timing'" in done.stdout


@pytest.mark.slow
def test_single_tokens_are_traced_and_judged_as_a_part(tmp_path: Path, karat_here: Karat) -> None:
    """Against the rows of a full trace; alone, beside the full one, and with a mistake in one of the rows."""
    whole, part, wrong = tmp_path / "whole", tmp_path / "part", tmp_path / "wrong"
    model = str(write_model(tmp_path, num_hidden_layers=4))
    options = (model, "--ids", "5,9,200,7,8,9,44,12", "--executor", "reference")
    karat_here("trace", "-o", str(whole), *options)
    done = karat_here("trace", "-o", str(part), *options, "--only-tokens", "1,4-5,-1")
    assert done.returncode == 0, done.stderr
    all_of, some = read_trace(whole), read_trace(part)
    assert set(some.arrays) == set(all_of.arrays) and some.info.token_ids == all_of.info.token_ids
    for name, x in some.arrays.items():
        if not name.endswith("inv_freq"):
            assert some.info.rows[name] == (1, 4, 5, 7)
            np.testing.assert_array_equal(
                x,
                np.take(
                    all_of.arrays[name], [1, 4, 5, 7], axis=x.ndim - 2 if name.endswith((".scores", ".weights")) else 0
                ),
            )
    done = karat_here("trace", "--validate", str(part))
    assert done.returncode == 0 and "only some tokens or heads are there of model.embed_tokens" in done.stdout
    done = karat_here("diagnose", str(part), "--reference", str(whole))
    assert done.returncode == 0 and "verdict: numerics" in done.stdout and "lm_head:" in done.stdout, done.stdout
    done = karat_here("diagnose", str(part), "--reference", str(part))  # of the same tokens
    assert done.returncode == 0 and "model.layers.3:" in done.stdout, done.stdout + done.stderr
    arrays = {name: np.array(x) for name, x in some.arrays.items()}
    arrays["model.layers.2.self_attn.scores"] *= np.sqrt(8)
    write_trace(wrong, Trace(some.info, arrays))
    facts = json.loads(karat_here("diagnose", str(wrong), "--json").stdout)
    bugs = [(bug["classes"], bug["places"]) for bug in facts["bugs"]]
    assert bugs == [([["scale-missing"]], ["model.layers.2.self_attn.scores"])]
    assert facts["unexplained"] == ["model.layers.2.self_attn.weights"]  # which were not changed
    karat_here("trace", "-o", str(part), *options, "--only-tokens", "-1")
    assert karat_here("diagnose", str(part)).returncode == 0


def test_transformers_and_karat_agree(tmp_path: Path, karat_here: Karat) -> None:
    pytest.importorskip("torch")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    karat_here("trace", "-o", str(ours), "--prompt", "Once upon a time", "--logits", "2")
    assert karat_here("trace", "--with", "hf", "-o", str(theirs), "--prompt", "Once upon a time").returncode == 0
    done = karat_here("diagnose", str(ours), "--reference", str(theirs))
    assert done.returncode == 0 and "verdict: numerics" in done.stdout and "lm_head:" in done.stdout


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--with", "tf"], "expected karat, hf or llama.cpp"),
        (["--with", "llama.cpp"], "needs a GGUF file; make one of"),
        (["--ids", "1,x"], "expected numbers and ranges"),
        (["--ids", "5000"], "expected ids from 0 to 4095"),
        (["--ids", "1", "--prompt", "x"], "give one"),
        (["--layers", "6"], "layer 6: the model has layers 0 to 5"),
        (["--chunk", "0"], "--chunk 0"),
        (["--ids", "1,2", "--only-tokens", "2"], "token 2: the trace has tokens 0 to 1, or -2 to -1 from the end"),
        (["--ids", "1,2", "--only-tokens", "-1-0"], "token 0 comes before token 1"),
        (["--ids", "1,2", "--only-tokens", "1;2"], "expected indices and ranges"),
        (["--decode", "-1"], "--decode -1"),
    ],
)
def test_wrong_options_are_named(args: list[str], complaint: str, tmp_path: Path, karat_here: Karat) -> None:
    done = karat_here("trace", "-o", str(tmp_path / "x"), *args)
    assert done.returncode == 2 and complaint in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_reference_of_other_tokens_is_refused(tmp_path: Path, karat_here: Karat) -> None:
    for name, ids in (("a", "1,2"), ("b", "1,3")):
        karat_here("trace", "-o", str(tmp_path / name), "--ids", ids)
    done = karat_here("diagnose", str(tmp_path / "a"), "--reference", str(tmp_path / "b"))
    assert done.returncode == 2 and "other token ids" in done.stderr


def test_a_trace_that_cannot_be_written(tmp_path: Path, karat_here: Karat) -> None:
    """One sentence, and the code of output that cannot be written."""
    for place, reason in (("/dev/full", "No space left on device"), (str(tmp_path), "Is a directory")):
        done = karat_here("trace", "--ids", "1,2", "--executor", "reference", "-o", place)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"karat: error: {place}: cannot be written ({reason}); ")
        assert done.stderr.count("\n") == 1
    done = karat_here("trace", "--ids", "1,2", "-o", str(tmp_path / "none" / "x.trace"))
    assert done.returncode == 1 and "there is no folder" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit of file sizes")
def test_nothing_half_written_stays_behind(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(b"an older one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        done = karat_here("trace", "--executor", "reference", "-o", str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert done.returncode == 1 and f"{path}: cannot be written (File too large)" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["x.trace"] and path.read_bytes() == b"an older one"
