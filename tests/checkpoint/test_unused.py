"""What is declared unused is set aside by part, and one line counts it with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat.checkpoint import open_folder
from karat.checkpoint.unused import (
    AUDIO,
    PREDICTION,
    VISION,
    remarks_on_unused,
    set_aside,
    unused_in_folder,
)
from karat.checkpoint.weights import Weight
from karat.convert import MIXES, convert
from karat.models.opening import open_gguf
from karat.models.registry import find_weights, read_config
from tests.convert.folders import folder_of


def test_tensors_of_other_parts_are_set_aside() -> None:
    data = np.zeros(2, np.uint8)
    weights = {name: Weight(name, "BF16", (1,), data, Path("fox")) for name in "abcd"}
    used, unused = set_aside(weights, {"b": VISION, "c": AUDIO, "d": VISION}.get)
    assert used == {"a": weights["a"]}
    assert unused == {VISION: (weights["b"], weights["d"]), AUDIO: (weights["c"],)}
    told = "tensors that are not used: 2 of vision (Karat reads no images), 1 of audio (Karat reads no sound)"
    assert remarks_on_unused(unused) == [told]


def test_nothing_is_said_where_all_is_used() -> None:
    assert set_aside({}, lambda _: None) == ({}, {})
    assert remarks_on_unused({}) == []


LAYERS = {"num_hidden_layers": 46, "num_nextn_predict_layers": 2}


@pytest.mark.parametrize(
    ("config", "name", "predicts"),
    [
        ({}, "mtp.fc.weight", True),  # Qwen3.5
        ({}, "model.mtp.layers.0.mlp.up_proj.weight", True),
        ({}, "model.mtp_layers.0.input_proj.weight", True),  # MiMo
        (LAYERS, "model.layers.46.eh_proj.weight", True),  # GLM, DeepSeek
        (LAYERS, "model.layers.47.mlp.up_proj.weight", True),
        (LAYERS, "model.layers.45.mlp.up_proj.weight", False),
        (LAYERS, "model.layers.48.mlp.up_proj.weight", False),
        (LAYERS, "model.layers.046.mlp.up_proj.weight", False),
        (LAYERS | {"num_nextn_predict_layers": 0}, "model.layers.46.eh_proj.weight", False),
        (LAYERS | {"num_nextn_predict_layers": True}, "model.layers.46.eh_proj.weight", False),
        (LAYERS | {"num_hidden_layers": None}, "model.layers.46.eh_proj.weight", False),
        ({}, "model.layers.46.eh_proj.weight", False),
        ({}, "mtp", False),
        ({}, "model.mtpfc.weight", False),
        ({}, "language_model.mtp.fc.weight", False),
    ],
)
def test_what_only_predicts_further_tokens_is_known_by_its_name(
    config: dict[str, Any], name: str, predicts: bool
) -> None:
    assert unused_in_folder(config)(name) is (PREDICTION if predicts else None)


def test_a_folder_is_the_model_without_them(tmp_path: Path) -> None:
    """Its configuration and weights are those of the model alone, and so is what is converted."""
    plain = open_folder(folder_of(tmp_path / "plain"))
    folder = folder_of(tmp_path / "model", num_nextn_predict_layers=1, mtp_num_hidden_layers=1)
    further = ["model.layers.2.eh_proj.weight", "mtp.fc.weight"]
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: np.ones((2, 2), np.float32) for name in further}, file, {"format": "pt"})
    found = open_folder(folder)
    assert sorted(weight.name for weight in found.unused[PREDICTION]) == sorted(further)
    told = "tensors that are not used: 2 of multi-token prediction (it proposes tokens, and changes none)"
    assert found.warnings == (told,)
    done = convert(found, tmp_path / "model.gguf", MIXES["F32"])
    assert told in done.warnings
    convert(plain, tmp_path / "plain.gguf", MIXES["F32"])
    config = read_config(plain.config)
    assert read_config(found.config) == config
    for one, other in ((plain, found), (open_gguf(tmp_path / "plain.gguf"), open_gguf(tmp_path / "model.gguf"))):
        expected, weights = (find_weights(config, checkpoint) for checkpoint in (one, other))
        assert weights.keys() == expected.keys()
        assert all(weights[name].data.tobytes() == expected[name].data.tobytes() for name in expected)
