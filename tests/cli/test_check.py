"""`karat check` and `karat perplexity`, on models small enough to check in seconds.

Covers: karat.check.diagnosis.signs, karat.check.session.other_side, karat.check.stages.generation,
karat.check.stages.health, karat.check.stages.hybrid, karat.check.stages.invariance, karat.check.stages.layers,
karat.check.stages.logits, karat.check.stages.other_engines, karat.check.stages.registry, karat.cli.check_facts,
karat.cli.perplexity.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from karat import LLM
from karat.check.diagnosis.signs import signs
from karat.check.model.checked import open_model
from karat.check.session.perplexity import perplexity, windows
from karat.check.trace.format import Trace
from karat.check.trace.reading import read_trace
from karat.check.trace.writing import write_trace
from karat.cli.app import command
from karat.cli.options import Invocation
from karat.config import embedded_model_path
from karat.errors import UsageError
from karat.ops.api import Op, RmsNorm
from karat.ops.native import NativeOps, unavailable_reason
from tests.cli import alphabet_model
from tests.cli.conftest import Karat
from tests.engine.tiny import write_model


def test_the_embedded_model_passes(tmp_path: Path, karat_here: Karat) -> None:
    page = tmp_path / "check.html"
    done = karat_here(
        "check", "--against", "reference", "--tokens", "12", "--stories", "4", "--report", str(page), "--json"
    )
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["verdict"], facts["flagged"]) == (0, "numerics", []), facts
    assert [stage["name"] for stage in facts["stages"]] == [
        "tokens",
        "weights",
        "layers",
        "logits",
        "generation",
        "story",
        "health",
        "invariance",
    ]
    verdicts = {stage["name"]: stage["verdict"] for stage in facts["stages"]}
    assert verdicts["tokens"] == verdicts["weights"] == verdicts["generation"] == "exact"
    text = page.read_text(encoding="utf-8")
    assert text.count("<circle") >= 100 and facts["digest"] in text
    assert "http" not in text and "<script" not in text, "the page asks for something else"


def test_the_verdict_is_said_in_a_sentence(tmp_path: Path, karat_here: Karat) -> None:
    """On the terminal and on the page: whether it is fine, and what the word means."""
    page = tmp_path / "check.html"
    options = ("--tokens", "8", "--against", "reference", "--stages", "logits", "--report", str(page))
    done = karat_here("check", *options)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == [
        "fine: what differs is rounding, no more than was measured for this model and these tokens",
        "verdict: numerics",
    ]
    assert "<p>fine: what differs is rounding, no more than was measured" in page.read_text(encoding="utf-8")


def test_one_element_of_one_weight_is_found_and_named(tmp_path: Path, karat_here: Karat) -> None:
    """The trace of another run, in which one product is off: the tensor and its element are named."""
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--tokens", "12", "--executor", "reference")
    trace = read_trace(path)
    x, name = trace.arrays["model.layers.2.input_layernorm"], "model.layers.2.self_attn.v_proj"
    wrong = np.array(trace.arrays[name])
    wrong.reshape(len(x), -1)[:, 17] += 0.3 * x[:, 40]
    arrays = {"model.layers.2.input_layernorm": x, name: wrong}
    write_trace(path, Trace(trace.info, arrays))
    done = karat_here("diagnose", str(path))
    assert done.returncode == 1 and f"{name}" in done.stdout
    assert "weight-element: self_attn" not in done.stdout
    assert "element [17, 40] differs by 0.3" in done.stdout


def test_a_healthy_run_alone_is_not_exact(karat_here: Karat) -> None:
    done = karat_here("check", "--stages", "health", "--tokens", "8", "--against", "reference")
    assert done.returncode == 2 and "nothing was compared: health looks at a run alone" in done.stderr
    assert "health      exact" in done.stdout and "verdict: skipped" in done.stdout


def test_wrong_options_are_named(karat_here: Karat) -> None:
    for args, complaint in (
        (["--against", "nowhere.trace"], "expected reference, hf, llama.cpp, or a trace that exists"),
        (["--against", "llama.cpp"], "llama.cpp needs"),
        (["--stages", "layers,wights"], "--stages 'wights': expected some of tokens,weights,"),
        (["--tokens", "1"], "--tokens 1: expected at least 2"),
        (["--kv-dtype", "int8"], "--kv-dtype int8: expected one of float16, bfloat16, float32, float64"),
        (["--max-model-len", "9"], "No such option: --max-model-len"),
        (["--guard"], "No such option: --guard"),
    ):
        done = karat_here("check", *args)
        assert done.returncode == 2 and complaint in done.stderr


def test_a_part_that_the_model_does_not_have_is_refused_before_anything_is_computed(karat_here: Karat) -> None:
    pytest.importorskip("torch", reason="hybrid runs need transformers")
    done = karat_here("check", "--hybrid", "layer:9")
    assert done.returncode == 2 and "with K from 0 to 5" in done.stderr and not done.stdout


def test_red_flags_are_raised(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--tokens", "10", "--executor", "reference")
    model, trace = open_model(None), read_trace(path)
    assert all(sign.good for sign in signs(model.graph, trace, 2.0**-24))
    attn = "model.layers.1.self_attn"
    broken = dict(trace.arrays)
    broken[f"{attn}.weights"] = np.repeat(broken[f"{attn}.weights"][:1], 8, axis=0) * 1.1
    broken[f"{attn}.v_proj"] = np.zeros_like(broken[f"{attn}.v_proj"])
    broken[f"{attn}.q_rope"] = broken[f"{attn}.q_proj"]
    broken["model.layers.3"] = np.repeat(broken["model.layers.3"][:1], 10, axis=0)
    broken["lm_head"] = np.repeat(broken["lm_head"][:1], 10, axis=0)
    broken["model.norm"] = np.full_like(broken["model.norm"], np.nan)
    flagged = {sign.name for sign in signs(model.graph, Trace(trace.info, broken), 2.0**-24) if sign.good is False}
    assert flagged == {
        "no NaN and no infinity",
        "attention weights sum to 1",
        "heads differ from each other",
        "q, k and v are not all zero",
        "RoPE changes q and k",
        "hidden states differ between tokens",
        "the likeliest token changes",
    }


@pytest.mark.parametrize(("count", "window", "stride"), [(2, 5, 2), (5, 5, 4), (6, 5, 2), (23, 7, 3), (40, 8, 1)])
def test_every_token_is_scored_once_with_enough_before_it(count: int, window: int, stride: int) -> None:
    scored: list[int] = []
    for begin, end, first in windows(count, window, stride):
        assert 0 < end - begin <= window and begin < first
        assert all(token - begin >= min(token, window - stride) for token in range(first, end))
        scored += range(first, end)
    assert scored == list(range(1, count))


def test_perplexity_is_transformers(tmp_path: Path, karat_here: Karat) -> None:
    torch = pytest.importorskip("torch")
    from karat.check.record.hf import load_hf

    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a fox. It lived in a hole under a tree, and it was not happy.\n" * 3)
    llm = LLM()
    done = karat_here("perplexity", str(llm.path), str(path), "--window", "32", "--stride", "8", "--json")
    facts = json.loads(done.stdout)
    ids = llm.tokenizer.encode(path.read_text())
    hf = load_hf(str(llm.path))

    def theirs(part: list[int]) -> np.ndarray:
        with torch.no_grad():
            return hf(torch.tensor([part])).logits[0].numpy()

    nats = [
        torch.nn.functional.cross_entropy(
            torch.tensor(theirs(ids[b:e])[f - b - 1 : e - b - 1]).double(), torch.tensor(ids[f:e]), reduction="sum"
        ).item()
        for b, e, f in windows(len(ids), 32, 8)
    ]
    assert facts["scored"] == len(ids) - 1
    assert facts["perplexity"] == pytest.approx(math.exp(sum(nats) / (len(ids) - 1)), rel=1e-6)
    done = karat_here("perplexity", str(path), str(path), "-m", str(path))
    assert done.returncode == 2 and "expected [MODEL] FILE, or FILE with -m MODEL" in done.stderr


def test_perplexity_of_stdin_and_of_what_is_no_text(
    tmp_path: Path, karat_here: Karat, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"Once upon a time\r\nthere was a fox.\n"
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    expected = karat_here("perplexity", str(path)).stdout
    assert karat_here("perplexity", "-", stdin=text).stdout == expected != ""
    path.write_bytes(b"caf\xe9")
    monkeypatch.setattr("karat.cli.perplexity.MAX_PIPE_BYTES", 1000)
    for name, words in [
        ("nosuch.txt", "nosuch.txt: there is no such file; expected a text in UTF-8, or - for stdin"),
        (str(path), "is not UTF-8 (byte 3); convert it, for example with iconv"),
        ("/dev/zero", "/dev/zero: has more than 1000 bytes"),
        (str(tmp_path), "cannot be read (Is a directory); expected a text in UTF-8, or - for stdin"),
    ]:
        done = karat_here("perplexity", name)
        assert done.returncode == 2 and words in done.stderr and "Errno" not in done.stderr


def test_perplexity_needs_two_tokens_and_a_stride_that_fits() -> None:
    with pytest.raises(UsageError, match="at least two"):
        list(perplexity(lambda ids: np.zeros((1, 3)), [1], window=4, stride=2))
    with pytest.raises(UsageError, match="a stride of 4"):
        list(perplexity(lambda ids: np.zeros((1, 3)), [1, 2], window=4, stride=4))


def test_a_trace_of_another_engine_is_judged_too(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "x.trace"
    karat_here("trace", "-o", str(path), "--tokens", "6", "--executor", "reference")
    trace = read_trace(path)
    arrays = dict(trace.arrays) | {"model.embed_tokens": trace.arrays["model.embed_tokens"] * 16}
    write_trace(path, Trace(trace.info, {"model.embed_tokens": arrays["model.embed_tokens"]}))
    done = karat_here("check", "--against", str(path), "--stages", "weights,layers,logits,health", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 1 and facts["verdict"] == "bug"
    assert facts["stages"][-1]["facts"]["named"] == [["embed-scale"]]
    assert [stage["name"] for stage in facts["stages"] if stage["verdict"] == "bug"] == ["layers", "trace"]
    assert (facts["ids_from"], facts["tokens"]) == ("trace", 6)
    for option in ("--tokens", "4"), ("--prompt", "x"):
        done = karat_here("check", "--against", str(path), *option)
        assert done.returncode == 2
        assert f"{option[0]} cannot be combined with --against {path}: its tokens are computed" in done.stderr


def test_a_model_with_odd_weights_is_no_bug(tmp_path: Path, karat_here: Karat) -> None:
    """All projections of the alphabet model are zero, and it tells no stories: remarked on, and no bug."""
    folder = alphabet_model.write(tmp_path / "alphabet")
    done = karat_here("check", str(folder), "--against", "reference", "--tokens", "8", "--stories", "2", "--json")
    facts = json.loads(done.stdout)
    verdicts = {stage["name"]: stage["verdict"] for stage in facts["stages"]}
    lines = [line for stage in facts["stages"] for line in stage["lines"]]
    assert (done.returncode, verdicts["weights"]) == (0, "flagged"), lines
    assert any("is all zero" in line for line in lines)
    assert any(line.startswith("q, k and v are not all zero: NO") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K_M"])
def test_a_quantised_file_is_called_so(quant: str, tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "model.gguf"
    assert karat_here("convert", str(embedded_model_path()), str(path), "--quant", quant, "-q").returncode == 0
    done = karat_here("check", str(path), "--tokens", "8", "--stories", "1", "--executor", "reference", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["verdict"]) == (0, "quantisation"), facts
    assert facts["stages"][2]["verdict"] == "quantisation"


@pytest.mark.skipif(unavailable_reason() is not None, reason="there is no native executor here")
class TestInvariance:
    def test_every_setting_has_the_same_digest(self, tmp_path: Path, karat_here: Karat) -> None:
        done = karat_here("check", str(write_model(tmp_path)), "--invariance", "--tokens", "40")
        rows = done.stdout.splitlines()
        assert done.returncode == 0 and rows.pop() == "verdict: exact"
        assert len(rows) >= 11 and all(row.endswith("  same") for row in rows)
        assert len({row.split()[-2] for row in rows}) == 1

    @pytest.mark.slow
    def test_one_that_has_another_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Op by op, one sum of the last norm is the next number above it."""
        apply = NativeOps.apply

        def broken(self: NativeOps, op: Op[Any]) -> Any:
            out = apply(self, op)
            if isinstance(op, RmsNorm) and op.name == "model.norm":
                out[-1, 0] = np.nextafter(out[-1, 0], np.float32(np.inf))
            return out

        monkeypatch.setattr(NativeOps, "apply", broken)
        words = ["check", str(write_model(tmp_path)), "--invariance", "--tokens", "40", "--json"]
        done = CliRunner().invoke(command(), words, obj=Invocation())
        facts = json.loads(done.stdout)
        assert (done.exit_code, facts["verdict"]) == (1, "bug")
        assert [row["setting"] for row in facts["settings"] if not row["same"]] == ["op by op, every result recorded"]

    def test_another_executor_is_refused(self, karat_here: Karat) -> None:
        done = karat_here("check", "--invariance", "--executor", "reference")
        assert done.returncode == 2 and "only the native executor and GPUs promise" in done.stderr


def test_layers_stages_and_the_original_are_chosen(tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "model.gguf"
    assert karat_here("convert", str(embedded_model_path()), str(path), "--quant", "Q4_0", "-q").returncode == 0
    what = ["--tokens", "8", "--stages", "weights,layers,logits", "--layers", "1,3-4"]
    sides = ["--against", "reference", "--original", str(embedded_model_path())]
    done = karat_here("check", str(path), *what, *sides, "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["verdict"]) == (0, "quantisation"), facts
    stages = {stage["name"]: stage for stage in facts["stages"]}
    assert list(stages) == ["weights", "layers", "logits"]
    assert any(line.startswith("furthest from the original: ") for line in stages["weights"]["lines"])
    assert 0 < stages["logits"]["facts"]["against_original"]["mean_kl"] < 1
    assert stages["layers"]["lines"][0].startswith(f"{3 * 17 + 4} results, each re-run")
    done = karat_here("check", str(path), "--layers", "6")
    assert done.returncode == 2 and "--layers 6: the model has layers 0 to 5" in done.stderr


@pytest.mark.parametrize("alone", [["--tensor-parallel-size", "2"], ["--invariance"]])
@pytest.mark.parametrize(
    "option",
    [
        ["--against", "hf"],
        ["--prompt", "x"],
        ["--stories", "3"],
        ["--layers", "0"],
        ["--stages", "logits"],
        ["--original", "/nope"],
        ["--hybrid", "mlp"],
        ["--seed", "1"],
        ["--report", "r.html"],
    ],
)
def test_what_the_comparison_of_bits_does_not_heed_is_refused(
    option: list[str], alone: list[str], karat_here: Karat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what the option needs is not installed."""
    monkeypatch.setattr("karat.check.session.agreement.has_transformers", lambda: False)
    done = karat_here("check", *option, *alone)
    assert done.returncode == 2 and f"{option[0]} cannot be combined with {alone[0]}" in done.stderr


def test_signs_of_a_sick_run_are_flagged(alphabet: Path, karat_here: Karat) -> None:
    """A model made by hand, whose attention looks at nothing: every op does what it says."""
    done = karat_here("check", str(alphabet), "--against", "reference", "--tokens", "12", "--stages", "logits,health")
    assert done.returncode == 0 and "q, k and v are not all zero: NO" in done.stdout
    assert done.stdout.endswith("verdict: numerics; flagged: health\n")
