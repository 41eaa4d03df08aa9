"""Damaged index and configs beside intact weights: the same weights as before, or an error that names the file."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from karat.checkpoint import Weight, open_folder
from karat.errors import CheckpointError, ConfigError
from tests.checkpoint.builders import f32, write_folder

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TENSORS = {"a": f32((2, 3), 1), "b": f32((4,), 2), "c": f32((1,), 3)}
INDEX = "model.safetensors.index.json"
CONFIG = {"model_type": "llama", "hidden_size": 32, "rope_scaling": None, "eos_token_id": [1, 2], "rms_norm_eps": 1e-5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three tensors in two shards, and every kind of file that `open_folder` reads beside them."""
    shards = {A: {"a": TENSORS["a"], "b": TENSORS["b"]}, B: {"c": TENSORS["c"]}}
    path = write_folder(tmp_path / "model", shards, CONFIG)
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2], "temperature": 0.5}')
    return path


def is_refused(folder: Path, name: str) -> bool:
    """Whether the folder or a file in it is refused, which must be said of it, in one line.

    Of a folder that is opened, the weights must be what they were.
    """
    refused: Exception | None = None
    weights: Mapping[str, Weight] = {}
    try:
        checkpoint = open_folder(folder)
        weights, refused = checkpoint.weights, checkpoint.generation_fault
    except (CheckpointError, ConfigError) as error:
        refused = error
    if weights or refused is None:
        assert {key: weight.data.tobytes() for key, weight in weights.items()} == {
            key: data for key, (_, _, data) in TENSORS.items()
        }
    if refused is None:
        return False
    assert str(refused).startswith(str(folder)) and str(refused).isprintable()
    assert isinstance(refused, CheckpointError) == (name == INDEX)
    return True


@pytest.mark.parametrize("name", [INDEX, "config.json", "generation_config.json"])
class TestDamage:
    @pytest.mark.drawn(6)
    @pytest.mark.parametrize("flip", [1, 2, 4, 32, 128, 255])
    def test_every_byte_flipped(self, folder: Path, name: str, flip: int) -> None:
        whole = (folder / name).read_bytes()
        num_refused = 0
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= flip
            (folder / name).write_bytes(damaged)
            num_refused += is_refused(folder, name)
        assert num_refused > len(whole) / 10

    def test_every_truncation_is_refused(self, folder: Path, name: str) -> None:
        whole = (folder / name).read_bytes()
        for length in range(len(whole)):
            (folder / name).write_bytes(whole[:length])
            assert is_refused(folder, name)

    def test_what_is_no_json_is_refused(self, folder: Path, name: str) -> None:
        for content in (b"\0" * 100, b"null", b"[]", b'"{}"', b"{}{}", b"\xff\xfe{\0}\0", b"[" * 100_000, b"{" * 9999):
            (folder / name).write_bytes(content)
            assert is_refused(folder, name)
