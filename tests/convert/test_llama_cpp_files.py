"""What llama.cpp's quantiser once made of Karat's F32 files (python -m tools.peers.record), against what Karat makes.

Where llama.cpp is installed, tests/convert/test_llama_cpp.py asks it anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from karat.checkpoint.gguf import read_header
from karat.convert import MIXES, convert
from karat.convert.mix import type_of
from karat.models.decoder import weight_specs
from karat.models.families import FAMILIES
from karat.models.opening import open_model
from karat.models.registry import read_config
from tests.convert.comparing import assert_same_tensors
from tools.peers.models import make_config, make_folder
from tools.peers.recorded import DATA, MIXED_MODELS, PLAIN, STORED, by_type, digest_of

FILES = [(family, name) for family, names in STORED.items() for name in names]


@pytest.fixture(scope="module")
def mixes() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "mixes.json").read_text())
    return found


@pytest.mark.drawn(4)
@pytest.mark.parametrize("model", MIXED_MODELS)
def test_every_mix_gives_the_types_of_llama_cpp(model: str, mixes: Mapping[str, Any]) -> None:
    config = read_config(make_config(*MIXED_MODELS[model]))
    assert set(mixes[model]) == set(MIXES)
    for name, mix in MIXES.items():
        types = {}
        for spec in weight_specs(config):
            layer = spec.source.split(".")[2] if spec.source.startswith("model.layers.") else None
            types[FAMILIES[config.model_type].gguf.stored_name(spec.source)] = type_of(
                mix, spec.source, spec.shape, None if layer is None else int(layer), config
            )
        if config.rope.rope_type == "llama3":
            types["rope_freqs.weight"] = "F32"
        assert _sets(by_type(types)) == _sets(mixes[model][name]), name


def _sets(types: Mapping[str, Mapping[str, str]]) -> set[tuple[str, str, str]]:
    return {(kind, name, layers) for kind, found in types.items() for name, layers in found.items()}


@pytest.mark.parametrize(("family", "name"), [each for each in FILES if each[1] in MIXES])
def test_blocks_and_metadata_are_those_of_llama_cpp(family: str, name: str, tmp_path: Path) -> None:
    """All bit for bit, so llama.cpp does with Karat's file just what it does with its own."""
    convert(open_model(make_folder(tmp_path / family, family)), tmp_path / "ours.gguf", MIXES[name])
    theirs = DATA / f"{family}-{name}.gguf"
    assert_same_tensors(tmp_path / "ours.gguf", theirs)
    ours, expected = (read_header(path).metadata for path in (tmp_path / "ours.gguf", theirs))
    assert set(ours.values) == set(expected.values)
    for key in expected.values:
        assert ours.stored(key) == expected.stored(key), key


@pytest.mark.parametrize("family", STORED)
@pytest.mark.parametrize("name", PLAIN)
def test_plain_types_are_rounded_as_by_llama_cpp(family: str, name: str, tmp_path: Path) -> None:
    convert(open_model(make_folder(tmp_path / family, family)), tmp_path / "ours.gguf", MIXES[name])
    with np.load(DATA / "results.npz") as results:
        assert digest_of(tmp_path / "ours.gguf") == str(results[f"{family}-{name}.digest"])


def test_a_changed_block_is_seen(tmp_path: Path) -> None:
    """What the tests above rest on."""
    path = DATA / "qwen3-Q8_0.gguf"
    data = bytearray(path.read_bytes())
    (tensor,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.1.attn_v.weight")
    data[tensor.data_offset + 40] ^= 1
    (tmp_path / "changed.gguf").write_bytes(data)
    assert digest_of(tmp_path / "changed.gguf") != digest_of(path)
    with pytest.raises(AssertionError, match=r"blk\.1\.attn_v\.weight"):
        assert_same_tensors(tmp_path / "changed.gguf", path)
