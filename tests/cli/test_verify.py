"""`karat run --receipt` and `karat verify`.

Covers: karat.cli.verify, karat.cli.run_receipt.
"""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Karat
from tests.engine.tiny import write_model


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    return str(write_model(folder))


@pytest.mark.parametrize("more", [(), ("--chat",), ("--json",), ("-n", "2"), ("--seed", "5", "--quantize", "q8_0")])
def test_a_receipt_is_written_and_verified(
    more: tuple[str, ...], model: str, tmp_path: Path, karat_here: Karat
) -> None:
    path = tmp_path / "receipt.json"
    asked = ("run", "-m", model, "-p", "Once", "--max-tokens", "12", *more)
    plain, written = karat_here(*asked), karat_here(*asked, "--receipt", str(path))
    assert written.returncode == 0, written.stderr
    assert "--json" in more or written.stdout == plain.stdout
    num = 2 if "-n" in more else 1
    assert path.read_bytes().count(b"\n") == num
    loading = ("--quantize", "q8_0") if "--quantize" in more else ()
    done = karat_here("verify", str(path), "-m", model, *loading)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == num and all(line.startswith("identical, ") for line in lines)


def test_exit_codes(model: str, tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "receipt.json"
    karat_here("run", "-m", model, "-p", "Once", "--max-tokens", "5", "--kv-dtype", "float32", "--receipt", str(path))
    assert karat_here("verify", str(path), "-m", model).returncode == 0  # with the receipt's types
    done = karat_here("verify", str(path), "-m", model, "--kv-dtype", "float16")
    assert done.returncode == 2 and "another kv_dtype (float32, here float16)" in done.stderr and done.stdout == ""
    done = karat_here("verify", str(path), "-m", model, "--quantize", "q8_0")
    assert done.returncode == 2 and "another weights (" in done.stderr
    receipt = json.loads(path.read_text())
    receipt["output"]["token_ids"][2] ^= 1
    path.write_text(json.dumps(receipt))
    done = karat_here("verify", str(path), "-m", model)
    assert done.returncode == 1 and done.stderr.count("error") == 0
    assert done.stdout == "different: the receipt was changed after it was written: output.token_ids\n"
    path.write_text("{}")
    done = karat_here("verify", str(path), "-m", model)
    assert done.returncode == 2 and "line 1" in done.stderr
