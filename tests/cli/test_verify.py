"""`karat run --receipt` and `karat verify`.

Covers: karat.cli.verify, karat.cli.verify_request, karat.cli.run_receipt.
"""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Karat
from tests.engine.tiny import write_model
from tests.receipts.keys import PUBLIC, SECRET, pem


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    return str(write_model(folder))


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--chat",),
        ("--json",),
        ("--n", "2"),
        ("--seed", "5", "--quantize", "q8_0"),
        ("--json-schema", "schema.json"),
    ],
)
def test_a_receipt_is_written_and_verified(
    more: tuple[str, ...], model: str, tmp_path: Path, karat_here: Karat
) -> None:
    path, schema = tmp_path / "receipt.json", tmp_path / "schema.json"
    schema.write_text('{"type": "string"}')
    more = tuple(str(schema) if option == schema.name else option for option in more)
    asked = ("run", "-m", model, "-p", "Once", "--max-tokens", "12", *more)
    plain, written = karat_here(*asked), karat_here(*asked, "--receipt", str(path))
    assert written.returncode == 0, written.stderr
    assert "--json" in more or written.stdout == plain.stdout
    num = 2 if "--n" in more else 1
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


def test_a_signed_receipt_says_by_whom(model: str, tmp_path: Path, karat_here: Karat) -> None:
    pytest.importorskip("cryptography")
    key, path = tmp_path / "key.pem", tmp_path / "receipt.json"
    key.write_bytes(pem(SECRET))
    asked = ("run", "-m", model, "-p", "Once", "--max-tokens", "5", "--receipt", str(path))
    assert karat_here(*asked, "--receipt-key", str(key)).returncode == 0
    done = karat_here("verify", str(path), "-m", model)
    assert done.returncode == 0 and done.stdout.endswith(f", signed by {PUBLIC}\n")
    assert karat_here(*asked, "--receipt-key", str(path)).returncode == 2
    alone = karat_here("run", "-m", model, "-p", "Once", "--receipt-key", str(key))
    assert alone.returncode == 2 and "need --receipt" in alone.stderr


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("how", "request_"),
    [
        ((), {"prompt": "Once"}),
        ((), {"prompt": ["Once"], "temperature": 0.3, "max_tokens": 7}),
        (("--chat",), {"messages": [{"role": "user", "content": "Once"}]}),
        (("--chat",), {"messages": [{"role": "user", "content": [{"type": "text", "text": "Once"}]}], "max_tokens": 9}),
        (
            ("--chat", "--system", "Be"),
            {"messages": [{"role": "user", "content": "Once"}], "system": "Be", "max_tokens": 9},
        ),
        (("--chat",), {"input": "Once"}),
    ],
)
def test_a_receipt_of_digests_is_verified_beside_its_request(
    how: tuple[str, ...], request_: dict[str, object], model: str, tmp_path: Path, karat_here: Karat
) -> None:
    path, asked = tmp_path / "receipt.json", tmp_path / "request.json"
    command = ("run", "-m", model, "-p", "Once", "--max-tokens", "9", *how, "--n", "2", "--receipt", str(path))
    done = karat_here(*command, "--receipt-digests")
    assert done.returncode == 0, done.stderr
    first = json.loads(path.read_text().splitlines()[0])
    assert isinstance(first["prompt"]["token_ids"], str) and isinstance(first["output"]["token_ids"], str)
    alone = karat_here("verify", str(path), "-m", model)
    assert alone.returncode == 2 and "give the request too (--request FILE;" in alone.stderr
    asked.write_text(json.dumps(request_))
    done = karat_here("verify", str(path), "-m", model, "--request", str(asked))
    assert done.returncode == 0, done
    assert [line.split(", ")[0] for line in done.stdout.splitlines()] == ["identical"] * 2
    asked.write_text(json.dumps({"prompt": "Twice"}))
    done = karat_here("verify", str(path), "-m", model, "--request", str(asked))
    assert done.returncode == 1 and "prompt.token_ids: their digest is not that of the request" in done.stdout


def test_a_whole_receipt_is_compared_with_the_request_too(model: str, tmp_path: Path, karat_here: Karat) -> None:
    path, asked = tmp_path / "receipt.json", tmp_path / "request.json"
    karat_here("run", "-m", model, "-p", "Once", "--max-tokens", "4", "--receipt", str(path))
    asked.write_text(json.dumps({"prompt": ["Twice", "Once"]}))
    done = karat_here("verify", str(path), "-m", model, "--request", str(asked))
    assert done.returncode == 0 and done.stdout.startswith("identical"), done
    asked.write_text(json.dumps({"prompt": "Twice"}))
    done = karat_here("verify", str(path), "-m", model, "--request", str(asked))
    assert done.returncode == 1, done
    assert done.stdout == "different: prompt.token_ids: they are not those of the request\n"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"messages": 3}', '{"prompt": "a", "nonsense": 1}'])
def test_what_is_no_request_is_refused(content: str, model: str, tmp_path: Path, karat_here: Karat) -> None:
    path, asked = tmp_path / "receipt.json", tmp_path / "request.json"
    karat_here("run", "-m", model, "-p", "Once", "--max-tokens", "2", "--receipt", str(path), "--receipt-digests")
    asked.write_text(content)
    done = karat_here("verify", str(path), "-m", model, "--request", str(asked))
    assert done.returncode == 2
    assert "expected the request" in done.stderr or "give it as it was sent" in done.stderr


def test_the_reference_judges_too(model: str, tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "receipt.json"
    karat_here("run", "-m", model, "-p", "Once", "--max-tokens", "6", "--temperature", "0", "--receipt", str(path))
    done = karat_here("verify", str(path), "-m", model, "--by", "reference")
    assert done.returncode == 0 and done.stdout.startswith("agrees, 6 tokens, "), done
    other = karat_here("verify", str(path), "-m", model, "--by", "reference", "--quantize", "q8_0")
    assert other.returncode == 2 and "another weights (" in other.stderr
    refused = karat_here("verify", str(path), "-m", model, "--by", "reference", "--threads", "2")
    assert refused.returncode == 2 and "--threads with --by reference" in refused.stderr
    receipt = json.loads(path.read_text())
    receipt["seed"] = "9"
    path.write_text(json.dumps(receipt))
    done = karat_here("verify", str(path), "-m", model, "--by", "reference")
    assert done.returncode == 1 and done.stdout == "differs: the receipt was changed after it was written: seed\n"
