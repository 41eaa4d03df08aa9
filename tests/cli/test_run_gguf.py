"""`karat run` on GGUF files with nothing else given: a path, org/name:TYPE on the hub, the first file of a split."""

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from karat.checkpoint.gguf import read_header
from karat.checkpoint.gguf.writer import NewTensor, scalar, write_gguf
from tests.checkpoint.fake_hub import FakeHub, Model, running_hub
from tests.cli.conftest import Karat
from tools.peers.recorded import DATA

FILE = DATA / "qwen2-Q4_K_M.gguf"
GREEDY = ("--temperature", "0", "--max-tokens", "12", "-q")
PROMPT = "the other thing"


def split(path: Path, folder: Path, name: str, num_parts: int) -> list[Path]:
    """The file `path` as the parts of a split, as llama.cpp's gguf-split names and marks them."""
    header, tensors = read_header(path), gguf.GGUFReader(path).tensors
    written = []
    for number, part in enumerate(np.array_split(np.arange(len(tensors)), num_parts)):
        pairs = [(key, header.metadata.stored(key)) for key in header.metadata.values] if number == 0 else []
        pairs += [
            ("split.no", scalar("UINT16", number)),
            ("split.count", scalar("UINT16", num_parts)),
            ("split.tensors.count", scalar("INT32", len(tensors))),
        ]
        written.append(folder / f"{name}-{number + 1:05}-of-{num_parts:05}.gguf")
        write_gguf(written[-1], pairs, [copied(tensors[index]) for index in part])
    return written


def copied(tensor: gguf.ReaderTensor) -> NewTensor:
    data = np.frombuffer(tensor.data.tobytes(), np.uint8)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return NewTensor(tensor.name, tensor.tensor_type.name, shape, lambda: [data])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    return split(FILE, tmp_path_factory.mktemp("split"), "fox-Q5_K_M", 3)


@pytest.fixture(scope="module")
def hub(parts: Sequence[Path]) -> Iterator[FakeHub]:
    """A repository as they are: several types, a split, and files that belong to a model but are none."""
    files = {
        "README.md": b"# A fox",
        "config.json": b'{"model_type": "qwen2"}',
        "fox-Q8_0.gguf": b"not asked for",
        "fox-Q4_K_M.gguf": FILE.read_bytes(),
        "mmproj-fox-Q4_K_M.gguf": b"an image encoder",
        "fox.mmproj-Q5_K_M.gguf": b"another",
        "fox.imatrix.gguf": b"statistics",
        **{f"Q5_K_M/{part.name}": part.read_bytes() for part in parts},
    }
    with running_hub() as running:
        running.models = {"org/fox": Model({"main": files})}
        yield running


@pytest.fixture(scope="module")
def expected(karat: Karat) -> str:
    """What the file alone says."""
    done = karat("run", "-m", str(FILE), "-p", PROMPT, *GREEDY)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 6
    return done.stdout


def on_hub(hub: FakeHub, home: Path) -> dict[str, str]:
    proxies = {name: "" for name in os.environ if name.lower().endswith("proxy")}
    return {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "NO_PROXY": "*", **proxies}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fetched"),
    [
        ("org/fox:Q4_K_M", ["fox-Q4_K_M.gguf"]),
        ("org/fox:q5_k_m", [f"Q5_K_M/fox-Q5_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]),
    ],
)
def test_a_type_on_the_hub(
    model: str, fetched: list[str], expected: str, hub: FakeHub, tmp_path: Path, karat: Karat
) -> None:
    """Its files are fetched and no others; the second time it runs without a network."""
    hub.requests.clear()
    done = karat("run", model, PROMPT, *GREEDY, **on_hub(hub, tmp_path))
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert sorted({name for name in hub.fetched() if name.endswith(".gguf")}) == fetched
    hub.requests.clear()
    again = karat("run", model, PROMPT, *GREEDY, **(on_hub(hub, tmp_path) | {"HF_HUB_OFFLINE": "1"}))
    assert (again.returncode, again.stdout, hub.requests) == (0, expected, [])


def test_a_type_that_the_hub_does_not_have(hub: FakeHub, tmp_path: Path, karat: Karat) -> None:
    done = karat("run", "org/fox:Q6_K", PROMPT, **on_hub(hub, tmp_path))
    assert done.returncode != 0
    assert done.stdout == ""
    assert "there are Q5_K_M/fox-Q5_K_M, fox-Q4_K_M, fox-Q8_0" in done.stderr
    assert "mmproj" not in done.stderr


def test_the_first_file_of_a_split(parts: Sequence[Path], expected: str, karat: Karat) -> None:
    done = karat("run", "-m", str(parts[0]), "-p", PROMPT, *GREEDY)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_another_file_of_a_split(parts: Sequence[Path], karat: Karat) -> None:
    done = karat("run", "-m", str(parts[1]), "-p", PROMPT, *GREEDY)
    assert done.returncode == 4
    assert "is part 2 of 3 of a split; expected the first part" in done.stderr


def test_a_file_of_the_other_byte_order(tmp_path: Path, karat: Karat) -> None:
    path = tmp_path / "big.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    done = karat("run", "-m", str(path), "-p", PROMPT)
    assert done.returncode == 4
    assert "big-endian" in done.stderr
