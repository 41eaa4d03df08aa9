"""What the user says of a model is part of the converted file, from a folder and from a GGUF file."""

from pathlib import Path
from typing import Any

import pytest

from karat.checkpoint.gguf.header import read_header
from karat.checkpoint.overrides import Overrides
from karat.convert import MIXES, convert
from karat.errors import ConfigError
from karat.models.opening import open_model
from karat.models.registry import read_config
from tests.convert.folders import FAMILIES, folder_of

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind of RoPE, as a folder and as a GGUF file."""
    place, found = tmp_path_factory.mktemp("models"), {}
    for name in ("llama", "yarn", "llama 3"):
        found[name] = folder_of(place / name, **FAMILIES[name])
        found[f"{name}.gguf"] = place / f"{name}.gguf"
        convert(open_model(found[name]), found[f"{name}.gguf"], MIXES["F32"])
    return found


SAID: dict[str, dict[str, Any]] = {
    "llama": {"hf_overrides": {"rope_theta": 5e5, "max_position_embeddings": 200}, "chat_template": TEMPLATE},
    "llama.gguf": {
        "hf_overrides": {"llama.attention.layer_norm_rms_epsilon": 1e-3, "rope_theta": 7e4, "general.sampling.temp": 2},
        "chat_template": TEMPLATE,
    },
    "yarn": {"hf_overrides": {"rope_scaling": None}},
    "yarn.gguf": {"hf_overrides": {"rope_scaling": None, "tokenizer.ggml.add_bos_token": False}},
    "llama 3": {"hf_overrides": {"rope_scaling.factor": 4.0, "rms_norm_eps": 1e-3}},
    "llama 3.gguf": {"hf_overrides": {"llama.context_length": 100}},
}


@pytest.mark.parametrize("name", SAID)
def test_the_file_is_the_model_that_was_said(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    said = open_model(models[name], Overrides(**SAID[name]))
    convert(said, tmp_path / "a.gguf", MIXES["F32"])
    made = open_model(tmp_path / "a.gguf")
    wanted, found = read_config(said.config), read_config(made.config)
    if name == "llama 3":  # GGUF has the factors of its frequencies
        assert found.rms_norm_eps == wanted.rms_norm_eps == 1e-3
        convert(open_model(models[name]), tmp_path / "plain.gguf", MIXES["F32"])
        assert read_config(open_model(tmp_path / "plain.gguf").config).rope != found.rope
    else:
        assert (found.rope, found.rms_norm_eps) == (wanted.rope, wanted.rms_norm_eps)
    assert found.max_position_embeddings == wanted.max_position_embeddings
    metadata = read_header(tmp_path / "a.gguf").metadata
    for key, value in SAID[name]["hf_overrides"].items():
        if key.startswith(("general.", "tokenizer.", "llama.")):
            assert metadata.values[key] == value
    templates = [value for key, value in metadata.values.items() if key.startswith("tokenizer.chat_template")]
    assert templates == [TEMPLATE] or "chat_template" not in SAID[name]


def test_yarn_beyond_the_trained_context(models: dict[str, Path], tmp_path: Path) -> None:
    for name in ("llama", "llama.gguf"):
        said = open_model(models[name], Overrides(rope_scaling="yarn", rope_factor=4))
        convert(said, tmp_path / f"{name}.out", MIXES["F32"])
        wanted, found = read_config(said.config), read_config(open_model(tmp_path / f"{name}.out").config)
        assert (found.rope, found.max_position_embeddings) == (wanted.rope, wanted.max_position_embeddings)


def test_what_gguf_cannot_state_is_refused_and_leaves_no_file(models: dict[str, Path], tmp_path: Path) -> None:
    said = open_model(models["llama.gguf"], Overrides(hf_overrides={"bos_token_id": 3}))
    with pytest.raises(ConfigError, match="cannot state bos_token_id: it would have bos_token_id="):
        convert(said, tmp_path / "a.gguf", MIXES["F32"])
    assert list(tmp_path.iterdir()) == []
