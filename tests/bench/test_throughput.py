"""Throughput: its figures, and llama.cpp's batched bench as a program that does what the real one does, or fails."""

import stat
from pathlib import Path

import pytest

from karat.bench.throughput import BatchedBench, ThroughputPlan, rates
from karat.errors import ExecutorError, UsageError

PLAN = ThroughputPlan(num_prompts=4, batch=2, repeat=1, threads=3)
LINE = (
    '{"n_kv_max": 24, "pp": 8, "tg": 4, "pl": 2, "n_kv": 24, "t_pp": 0.5, "speed_pp": 32.0, "t_tg": 1.5, '
    '"speed_tg": 5.3, "t": 2.0, "speed": 12.0}'
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    return tmp_path / "llama-batched-bench", model


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_rates_are_under_vllms_names() -> None:
    found = rates(4, 30, 10, 2.0)
    assert (found["requests_per_s"], found["total_tokens_per_s"], found["output_tokens_per_s"]) == (2, 20, 5)
    assert (found["total_prompt_tokens"], found["total_output_tokens"]) == (30, 10)


def test_the_peers_figures_are_of_its_own_seconds(files: tuple[Path, Path]) -> None:
    peer = BatchedBench(program(files[0], f"echo 'loading'; echo '{LINE}'; echo; echo log >&2"), files[1], 8, 4)
    peer.check()
    assert peer.command(PLAN)[3:] == "-c 24 -npp 8 -ntg 4 -npl 2 -t 3 -tb 3 --output-format jsonl".split()
    found = peer.measure(PLAN)
    assert (found["requests_per_s"], found["total_tokens_per_s"], found["output_tokens_per_s"]) == (1, 12, 4)
    assert (found["prompt_tokens_per_s"], found["decode_tokens_per_s"]) == (32.0, 5.3)


@pytest.mark.parametrize("body", ["echo no such model >&2; exit 1", "true", f"echo '{LINE}'; exit 3", "echo '{}'"])
def test_a_peer_that_fails(files: tuple[Path, Path], body: str) -> None:
    with pytest.raises(ExecutorError, match="llama-batched-bench"):
        BatchedBench(program(files[0], body), files[1], 8, 4).measure(PLAN)


def test_a_peer_that_is_none(files: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="no such program"):
        BatchedBench(str(files[0]), files[1], 8, 4).check()
    with pytest.raises(UsageError, match="GGUF files only"):
        BatchedBench(program(files[0], ""), files[1].parent, 8, 4).check()
