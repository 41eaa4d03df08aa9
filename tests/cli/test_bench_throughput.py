"""`karat bench throughput` on the embedded model, in vLLM's words."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Karat

SMALL = ("--num-prompts", "3", "--prompt-tokens", "8", "--tokens", "4", "-q")


def test_the_embedded_model(karat: Karat) -> None:
    done = karat("bench", "throughput", *SMALL)
    assert done.returncode == 0, done.stderr
    found = re.search(r"Throughput: (\S+) requests/s, (\S+) total tokens/s, (\S+) output tokens/s", done.stdout)
    assert found and float(found[2]) == pytest.approx(3 * float(found[3]), rel=0.02)
    assert "Total num prompt tokens:  24\nTotal num output tokens:  12\n" in done.stdout


def test_json_beside_a_program_in_turns(karat: Karat, tmp_path: Path) -> None:
    line = '{"pp": 8, "tg": 4, "pl": 2, "t": 2.0, "speed_pp": 1.0, "speed_tg": 1.0}'
    peer = tmp_path / "peer"
    peer.write_text(f"#!/bin/sh\necho '{line}'\n")
    peer.chmod(0o755)
    words = ("--shape", "tiny", "--batch", "2", "--repeat", "2", "--json", "--peer", "llama-batched-bench", str(peer))
    done = karat("bench", "throughput", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "throughput" and len(found["turns"]) == len(found["peer"]["turns"]) == 2
    assert found["peer"]["total_tokens_per_s"] == 12 and found["karat"]["total_output_tokens"] == 12
    assert found["ratios"]["total_tokens_per_s"]["median"] == pytest.approx(found["karat"]["total_tokens_per_s"] / 12)


@pytest.mark.parametrize("width", ["int8", "int24"])
def test_activations_are_those_asked_for(karat: Karat, width: str) -> None:
    words = ("--shape", "tiny", "--weights", "q4_0", "--activations", width)
    done = karat("bench", "throughput", *SMALL, *words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["activations"] == width


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--num-prompts 0", "--num-prompts 0"),
        ("--seed -1", "--seed -1"),
        ("--tokens x", "--tokens x"),
        ("--activations int9", "--activations int9: expected one of"),
        ("--peer vllm x --rope-scaling yarn --rope-factor 2", "reads the model's files alone"),
        ("--peer vllm x", "expected llama-batched-bench"),
        ("--peer llama-batched-bench /no/such", "no such program"),
        ("--peer llama-batched-bench sh --tokens uniform:1:2", "of one length"),
        ("m.gguf --shape tiny", "give one of them"),
    ],
)
def test_what_cannot_be_is_refused(karat_here: Karat, words: str, said: str) -> None:
    done = karat_here("bench", "throughput", "-q", *words.split())
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr
