"""`karat perplexity --against float64`."""

import json
from pathlib import Path

import pytest

from karat.cli.perplexity_widths import lines
from tests.cli.conftest import Karat
from tools.peers.real_texts import TEXT


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a fox. It lived in a hole under a tree, and it was happy.\n")
    return str(path)


def test_a_table_of_the_widths_that_are_asked_for(text: str, karat_here: Karat) -> None:
    words = ["perplexity", "--against", "float64", "--quantize", "q4_0", "--window", "12", text]
    asked = ["--activations", "int16", "--activations", "int8"]
    done = karat_here(*words, *asked, "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 0 and facts["tokens"] == 12 < facts["tokens_of_text"]
    assert facts["matrices"] == facts["matrices_in_blocks"] > 0
    kinds = [(row["activations"], row["kv_dtype"]) for row in facts["rows"]]
    caches = dict.fromkeys((facts["rows"][1]["kv_dtype"], "float32"))
    assert kinds == [("float64", "float64"), *((width, cache) for width in ("int16", "int8") for cache in caches)]
    exact = {row["activations"]: row["rms_of_deviation"] for row in facts["rows"] if row["kv_dtype"] != "float16"}
    first, int16, int8 = exact["float64"], exact["int16"], exact["int8"]
    assert 0 == first < int16 < 1e-3 < int8 < 0.1
    done = karat_here(*words, *asked)
    head, columns, *rows = done.stdout.splitlines()
    assert head.startswith(f"logits of 12 tokens (of {facts['tokens_of_text']}; --window N takes N), against float64; ")
    assert columns.split() == "activations cache by RMS/deviation KL likeliest perplexity".split()
    assert rows == lines(facts["rows"])[1:] and rows[1].split()[0] == "int16"


def test_each_width_has_its_place(tmp_path: Path, karat_here: Karat) -> None:
    """What decides the defaults (docs/determinism.md): 16 bits round less than the float16 cache does."""
    (text := tmp_path / "text.txt").write_text(TEXT)
    words = ["perplexity", "--against", "float64", "--quantize", "q4_0", "--window", "38", str(text), "--json"]
    rows = json.loads(karat_here(*words).stdout)["rows"]
    rms = {(row["activations"], row["kv_dtype"]): row["rms_of_deviation"] for row in rows}
    float16_cache = rms["int24", "float16"]
    assert rms["int24", "float32"] < 1e-6 < rms["int16", "float32"] < float16_cache < 1e-3 < rms["int8", "float32"]
    assert rms["int16", "float16"] < 1.2 * float16_cache


def test_a_model_without_blocks_says_that_widths_change_nothing(text: str, karat_here: Karat) -> None:
    done = karat_here("perplexity", "--against", "float64", "--activations", "int8", "--window", "5", text)
    assert "; 0 of " in done.stdout and "matrices are in blocks, which integers are for" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "float32"], "--against float32: expected float64"),
        (["--against", "float64", "--activations", "int4"], "--activations int4: expected int24, int16, int8"),
        (["--activations", "int8", "--activations", "int16"], "--activations int8 and int16: expected one"),
        (["--against", "float64", "--stride", "4"], "--stride has no meaning with --against"),
        (["--against", "float64", "--executor", "native"], "--executor has no meaning with --against"),
        (["--against", "float64", "--kv-dtype", "float64"], "--kv-dtype float64: expected one of float16"),
        (["--against", "float64", "--quantize", "q9"], "--quantize q9: expected"),
        (["--against", "float64", "--window", "1"], "--window 1: expected 2 to"),
    ],
)
def test_refusals(words: list[str], message: str, text: str, karat_here: Karat) -> None:
    done = karat_here("perplexity", *words, text)
    assert done.returncode == 2 and message in done.stderr


def test_a_text_of_one_token_is_refused(tmp_path: Path, karat_here: Karat) -> None:
    (tmp_path / "empty.txt").write_text("")
    done = karat_here("perplexity", "--against", "float64", str(tmp_path / "empty.txt"))
    assert done.returncode == 2 and "tokens: perplexity needs at least two" in done.stderr
