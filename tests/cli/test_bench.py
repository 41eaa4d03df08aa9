"""`karat bench`: the whole way on a tiny shape and the embedded model; shapes of the output, never times.

Covers: karat.bench.exchange, karat.bench.session.
"""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from karat.bench import limits
from karat.bench.shape_configs import SHAPES
from karat.cli.bench import as_text
from karat.ops.native import unavailable_reason
from tests.cli.conftest import Karat
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.engine.tiny import write_model

QUICK = ("-n", "2", "--batch", "2", "--repeat", "2")


class Machine(msgspec.Struct, forbid_unknown_fields=True):
    cpu: str | None
    features: list[str]
    usable_cores: int | None
    memory_bytes: int | None


class KaratFacts(msgspec.Struct, forbid_unknown_fields=True):
    name: Literal["karat"]
    version: str
    executor: str
    device: str
    dtype: str
    kv_dtype: str
    activations: str
    numeric_contract: int
    threads: int
    tensor_parallel_size: int
    isa: str | None
    max_num_batched_tokens: int


class Pattern(msgspec.Struct, forbid_unknown_fields=True):
    build: str
    streams: int
    ahead: int
    chunk: int


class Limits(msgspec.Struct, forbid_unknown_fields=True):
    threads: int
    bandwidth_bytes_per_s: float
    fma_peak_flops_per_s: float
    fma_peak_by_build: dict[str, float]
    bandwidth_median_bytes_per_s: float
    fma_median_flops_per_s: float
    best_pattern: Pattern
    runs: int


class PeerRow(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
    turn_seconds: list[float]
    ratio: float
    ratio_min: float
    ratio_max: float


class Row(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    kind: Literal["prefill", "decode"]
    prompt_tokens: int
    batch: int
    gen_tokens: int
    seconds: float
    tokens_per_s: float
    tokens_per_s_min: float
    tokens_per_s_max: float
    turn_seconds: list[float]
    bytes_per_s: float
    flops_per_s: float
    weight_bytes: int
    cache_bytes: int
    state_bytes: int
    linear_flops: int
    attention_flops: int
    recurrent_flops: int
    of_bandwidth: float | None
    of_fma_peak: float | None
    of_roofline: float | None
    bound: Literal["bandwidth", "fma"] | None
    overhead: float
    peer: PeerRow | None


class Result(msgspec.Struct, forbid_unknown_fields=True):
    """What docs/cli.md promises."""

    schema: Literal[1]
    date: str
    machine: Machine
    model: str
    shape: str | None
    quantize: str | None
    parameters: int
    stored: dict[str, int]
    stored_bytes: int
    repeat: int
    karat: KaratFacts
    peer: dict[str, Any] | None
    exchange: dict[str, Any] | None
    limits: Limits | None
    rows: list[Row]


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(limits, "last_cache_bytes", lambda: 0)


def parsed(stdout: str) -> Result:
    result = msgspec.json.decode(stdout, type=Result)
    assert (result.limits is None) == (unavailable_reason() is not None)
    for row in result.rows:
        assert len(row.turn_seconds) == result.repeat
        assert 0 < row.tokens_per_s_min <= row.tokens_per_s_max
        assert 0 <= row.overhead < 1
        assert row.weight_bytes > 0 < row.cache_bytes and row.linear_flops > 0 < row.attention_flops
        if result.limits:
            assert row.of_bandwidth == pytest.approx(row.bytes_per_s / result.limits.bandwidth_bytes_per_s)
            assert row.of_fma_peak == pytest.approx(row.flops_per_s / result.limits.fma_peak_flops_per_s)
    return result


@pytest.mark.slow
def test_a_shape_as_json(karat_here: Karat, tmp_path: Path) -> None:
    plot = tmp_path / "roofline.svg"
    more = ("--plot", str(plot)) if unavailable_reason() is None else ()
    lengths = ["-p", "20", "-p", "300", "--context", "200"]
    done = karat_here("bench", "--shape", "tiny", "--quantize", "q4_0", *QUICK, *lengths, "--json", *more)
    assert done.returncode == 0
    lines = (
        done.stderr.splitlines()
    )  # no terminal: each measurement is a line, so that a pipe is not silent for minutes
    assert {"prefill 20: warming up karat", "prefill 20: 1 of 2: karat", "loading the model"} <= {*lines}, lines
    result = parsed(done.stdout)
    assert [row.name for row in result.rows] == [
        "prefill 20",
        "prefill 300",
        "decode after 128",
        "decode after 128, batch 2",
        "decode after 200",
    ]
    assert result.shape == "tiny" and result.stored.keys() == {"Q4_0", "F32"} and result.peer is None
    assert result.stored_bytes == sum(result.stored.values()) and result.parameters == 94_784
    # Every stored byte is read in a step of decode: the head is the embedding.
    assert {row.weight_bytes for row in result.rows if row.kind == "decode"} == {result.stored_bytes}
    if result.limits:
        assert result.limits.runs == 2 * len(result.rows)
        assert ET.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.slow
def test_the_embedded_model_as_a_table(karat_here: Karat) -> None:
    words = ("--chat-template", "chatml")
    done = karat_here("bench", "-q", *QUICK, "-p", "5", "--context", "0", "--executor", "reference", *words)
    said = "--chat-template has no effect: nothing is asked in a chat"
    assert (done.returncode, done.stderr.strip().removeprefix("note: ")) == (0, said)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("model ") and "embedded" in lines[0] and "parameters" in lines[0]
    assert any(re.match(r"karat +\S+, reference, float32, cache float32, \d+ threads$", line) for line in lines)
    (head,) = [i for i, line in enumerate(lines) if "tok/s" in line]
    assert lines[head].split() == "tok/s GB/s of limit GFLOP/s of limit overhead".split()
    assert [re.split(r"\s{2,}", line)[0] for line in lines[head + 1 :]] == [
        "prefill 5",
        "decode after 128",
        "decode after 128, batch 2",
    ]
    if unavailable_reason() is None:
        assert all(re.search(r"\*\d+%", line) for line in lines[head + 1 :])


@pytest.mark.slow
@pytest.mark.skipif(unavailable_reason() is not None, reason="ranks need the native extension")
def test_ranks_are_measured_in_turns_with_one_process(karat_here: Karat) -> None:
    shape = ["--shape", "tiny", "--weights", "q4_0", "-p", "20", "--context", "0"]
    ranks = ["--tensor-parallel-size", "2", "--threads", "2"]
    done = karat_here("bench", "-q", *shape, *QUICK, *ranks, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = parsed(done.stdout)
    assert result.karat.tensor_parallel_size == 2 and result.karat.threads == 2
    assert result.peer is not None
    assert result.peer["name"] == "1 process" and result.peer["logits_deviation"] == 0
    assert result.exchange and result.exchange["floats"] == 64 and result.exchange["all_reduce_s"] > 0
    assert all(row.peer and row.peer.ratio > 0 for row in result.rows)


@pytest.mark.slow
@pytest.mark.skipif(unavailable_reason() is not None, reason="packed files need the native extension")
def test_a_packed_file_is_measured_in_turns_with_memory(karat_here: Karat, tmp_path: Path) -> None:
    """A shape leaves no file; that of a model stays."""
    model = str(write_model(tmp_path))
    (folder := tmp_path / "packed").mkdir()
    for measured, kept in ((["--shape", "tiny", "--weights", "q4_0"], 0), ([model], 1)):
        more = ["-p", "20", "--context", "0", "--packed-cache", str(folder), "--json"]
        done = karat_here("bench", "-q", *measured, *QUICK, *more)
        assert (done.returncode, done.stderr) == (0, "")
        result = parsed(done.stdout)
        assert result.peer is not None and result.peer["name"] == "in memory"
        assert result.peer["logits_deviation"] == 0 and all(row.peer and row.peer.ratio > 0 for row in result.rows)
        assert len(list(folder.iterdir())) == kept


@pytest.mark.slow
def test_a_peer_is_measured_in_turns(karat_here: Karat) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    done = karat_here(
        "bench",
        "--shape",
        "tiny",
        "--weights",
        "f32",
        "--kv-dtype",
        "float32",
        *QUICK,
        "-p",
        "9",
        "--peer",
        "transformers",
        "--json",
    )
    assert done.returncode == 0
    result = parsed(done.stdout)
    assert result.peer and result.peer["name"] == "transformers" and result.peer["logits_deviation"] < 1e-5
    for row in result.rows:
        assert row.peer and row.peer.ratio_min <= row.peer.ratio <= row.peer.ratio_max
        ratios = [theirs / ours for ours, theirs in zip(row.turn_seconds, row.peer.turn_seconds, strict=True)]
        assert min(ratios) == pytest.approx(row.peer.ratio_min) and max(ratios) == pytest.approx(row.peer.ratio_max)
    table = as_text(json.loads(done.stdout))
    assert "least – most" in table and " × " in table


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("./x", "--shape", "tiny"), 2, "both a model (./x) and --shape tiny"),
        (("--shape", "huge"), 2, "shape 'huge' is not known; there are qwen2.5-0.5b"),
        (("--shape", "tiny", "--weights", "q3"), 2, "weights 'q3': expected one of f32"),
        (("--weights", "f32"), 2, "--weights says how --shape stores its weights"),
        (("--shape", "tiny", "-p", "600"), 2, "prefill 600: "),
        (("--shape", "tiny", "-n", "0"), 2, "--gen-tokens 0: expected at least 1"),
        (("--shape", "tiny", "--max-num-batched-tokens", "16"), 2, "expected more than --batch 16"),
        (("--shape", "tiny", "--context", "-1"), 2, "--context -1: expected at least 0"),
        (("--shape", "tiny", "--threads", "0"), 2, "--threads 0: expected at least 1"),
        (("--shape", "tiny", "--plot", "a.png"), 2, "only SVG is drawn"),
        (("--shape", "tiny", "--tensor-parallel-size", "1"), 2, "--tensor-parallel-size 1: expected 2, 4 or 8"),
        (("--shape", "tiny", "--tensor-parallel-size", "8", *QUICK, "-p", "20"), 2, "this model works with 1, 2"),
        (("--shape", "tiny", "--override", "rope_theta=1"), 2, "--shape tiny has no files"),
        (("--shape", "tiny", "--packed-cache", "nowhere"), 2, "--packed-cache nowhere: there is no such folder"),
        (("--shape", "tiny", "--packed-cache", ".", "--peer", "llama.cpp"), 2, "without --peer and ranks"),
        (("--peer", "transformers", "--override", "rope_theta=1"), 2, "--peer reads the model's files alone"),
        (("--shape", "tiny", "--peer", "vllm"), 2, "peer 'vllm' is not known"),
        (("/no/such/folder",), 4, "/no/such/folder"),
        (("--shape", "tiny", "--executor", "gpu"), 9, "gpu"),
    ],
)
def test_what_cannot_be_measured_is_said(args: tuple[str, ...], code: int, message: str, karat_here: Karat) -> None:
    done = karat_here("bench", *args)
    assert (done.returncode, done.stdout) == (code, "")
    *progress, error = done.stderr.splitlines()
    assert error.startswith("karat: error: ") and message in error
    assert not any(line.startswith("karat:") for line in progress)


def test_the_model_is_measured_as_it_was_said(karat_here: Karat, tmp_path: Path) -> None:
    words = ("bench", str(write_model(tmp_path)), *QUICK, "-p", "200", "-q")
    assert karat_here(*words, "--rope-scaling", "yarn", "--rope-factor", "2").returncode == 0
    refused = karat_here(*words)
    assert refused.returncode == 2 and "200" in refused.stderr


def test_a_plot_that_cannot_be_written(karat_here: Karat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if unavailable_reason():
        pytest.skip("no roofline without the native extension")
    args = ["bench", "--shape", "tiny", *QUICK, "--context", "0", "--plot"]
    with monkeypatch.context() as patch:
        patch.setattr("karat.bench.session.run_bench", lambda *_: pytest.fail("measured first"))
        done = karat_here(*args, str(tmp_path / "no" / "x.svg"))
        assert done.returncode == 2 and f"there is no folder {tmp_path / 'no'}; make it" in done.stderr
        (tmp_path / "folder.svg").mkdir()
        done = karat_here(*args, str(tmp_path / "folder.svg"))
        assert done.returncode == 2 and "is a directory" in done.stderr
    (tmp_path / "full.svg").symlink_to("/dev/full")
    done = karat_here(*args, str(tmp_path / "full.svg"))
    assert done.returncode == 2 and "cannot be written (No space left on device)" in done.stderr
    assert "tok/s" in done.stdout, "what was measured is not lost"


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_terminal_shows_one_line_of_progress_that_is_gone_at_the_end(is_quiet: bool) -> None:
    options = ("--shape", "tiny", "-n", "1", "--repeat", "1", "--batch", "1", "-p", "4", "--context", "0")
    if is_quiet:
        with PseudoTerminal("bench", *options, "-q", NO_COLOR="1") as terminal:
            terminal.wait_for_end()
        assert terminal.raw.startswith("model   ")
        return
    with PseudoTerminal("bench", *options, NO_COLOR="1") as terminal:
        code, _ = terminal.wait_for_end()
    assert code == 0
    progress, _, table = terminal.raw.partition("model   ")
    steps = [line.strip() for line in progress.split("\r")]
    assert "prefill 4: warming up karat …" in steps and "decode after 128: 1 of 1: karat …" in steps
    assert "\n" not in progress and "\x1b" not in progress and "␍" not in progress
    assert progress.endswith("\r") and set(progress.split("\r")[-2]) == {" "}, "the last line is blanked"
    assert " tok/s " in table and "…" not in table


@pytest.mark.slow
def test_the_json_survives_a_program(karat: Karat) -> None:
    """In a process of its own, with the true size of the buffer."""
    done = karat("bench", "-q", "--shape", "tiny", "-n", "1", "--repeat", "1", "--batch", "1", "-p", "4", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema"] == 1


def test_its_help_names_every_shape(karat_here: Karat) -> None:
    said = "".join(karat_here("bench", "--help").stdout.split())
    assert [name for name in SHAPES if name not in re.sub("[│|]", "", said)] == []
