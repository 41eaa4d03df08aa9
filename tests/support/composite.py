"""Puts a vision encoder beside the text model of a folder, under the names that the hub's files have."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

NUM_UNUSED = 3  # tensors


def with_vision(folder: Path) -> Path:
    """The folder, of a Mistral until now, as Mistral Small 3.1's is."""
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "mistral" and not config.pop("tie_word_embeddings")
    config.pop("architectures", None)
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "image_token_index": 10}
    whole |= {"spatial_merge_size": 2, "projector_hidden_act": "gelu", "multimodal_projector_bias": False}
    whole |= {"text_config": config, "vision_config": {"model_type": "pixtral", "hidden_size": 8}}
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = {f"language_model.{name}": array for name, array in load_file(folder / "model.safetensors").items()}
    tensors["multi_modal_projector.norm.weight"] = np.ones(8, np.float32)
    for layer in range(NUM_UNUSED - 1):
        tensors[f"vision_tower.transformer.layers.{layer}.attention.q_proj.weight"] = np.ones((8, 8), np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
