"""A Mistral with a vision encoder in its folder: its text part has transformers' logits, and is a Mistral's to the bit.

Tolerances are those of test_exactness.py.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat.checkpoint import Weight
from karat.checkpoint.unused import VISION
from karat.errors import CheckpointError, ConfigError
from karat.models.mistral3 import COMPOSITE
from karat.models.opening import open_model
from karat.models.registry import Model, build, find_weights, read_config
from karat.ops.api import Ops
from karat.ops.reference import ReferenceOps
from karat.ops.registry import create
from karat.ops.rope_table import inverse_frequencies
from tests.support.seed import SEED

torch = pytest.importorskip("torch", reason="transformers needs torch")
from safetensors.torch import save_file  # noqa: E402

from tests.checkpoint.gguf.builders import write_model  # noqa: E402
from tests.support import forward, random_models  # noqa: E402
from tests.support.float64 import InFloat64  # noqa: E402

PROMPT_LEN = 200
SPELLINGS = ("hub", "transformers 5", "modules")
CASES = [pytest.param(index, marks=[pytest.mark.long] if index >= 3 else []) for index in range(60)]


def write(folder: Path, spelling: str, raw: dict[str, Any], hf: Any) -> Path:
    """The folder of a transformers model: as the hub has it, as transformers writes it, and by its modules' names."""
    if spelling == "transformers 5":
        hf.save_pretrained(folder)
        return folder
    tied = raw["tie_word_embeddings"]
    tensors = {n: t.contiguous() for n, t in hf.state_dict().items() if not (tied and n == "lm_head.weight")}
    if spelling == "hub":
        tensors = {on_hub(name): tensor for name, tensor in tensors.items()}
        raw = {key: value for key, value in raw.items() if key != "tie_word_embeddings"}  # files leave it out
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def on_hub(name: str) -> str:
    if name.startswith("model.language_model."):
        return name.replace("model.language_model.", "language_model.model.")
    return f"language_model.{name}" if name.startswith("lm_head") else name.removeprefix("model.")


def loaded(folder: Path, ops: Ops) -> Model:
    checkpoint = open_model(folder)
    return build(read_config(checkpoint.config), ops, checkpoint, num_positions=512)


def drawn(
    key: str, rope_type: str | None = None, family: str = "mistral", **text: Any
) -> tuple[dict[str, Any], Any, list[int]]:
    """A config.json with these changes to its text model's, a transformers model of it, and a prompt."""
    rng = random.Random(f"{SEED}-mistral3-{key}")
    raw = random_models.draw_mistral3(rng, rope_type, family)
    raw["text_config"] |= text
    hf = random_models.build(raw, rng.randrange(2**31))
    return raw, hf, [rng.randrange(raw["text_config"]["vocab_size"]) for _ in range(PROMPT_LEN)]


@pytest.mark.parametrize("index", CASES)
def test_logits_equal_transformers(index: int, tmp_path: Path) -> None:
    raw, hf, ids = drawn(str(index), random_models.ROPE_TYPES[index % 4])
    _compare(write(tmp_path / "model", SPELLINGS[index % 3], raw, hf), hf, ids)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_logits_of_a_ministral_equal_transformers(spelling: str, tmp_path: Path) -> None:
    raw, hf, ids = drawn(spelling, "yarn", "ministral3")
    _compare(write(tmp_path / "model", spelling, raw, hf), hf, ids)


def _compare(folder: Path, hf: Any, ids: list[int]) -> None:
    with torch.no_grad():
        single = hf(torch.tensor([ids])).logits[0].numpy()
    assert single.std() >= 1, "the random model is too tame to test anything"
    (logits,) = forward.run(loaded(folder, ReferenceOps("float32")), [ids])
    assert np.abs(logits - single).max() <= 1e-4 * single.std()

    truth = loaded(folder, ReferenceOps("float64"))
    hf = hf.double()
    with torch.no_grad(), InFloat64(hf, inverse_frequencies(truth.config.rope, truth.config.head_dim)):
        double = hf(torch.tensor([ids])).logits[0].numpy()
    (logits,) = forward.run(truth, [ids])
    assert np.abs(logits - double).max() <= 1e-9


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_it_is_a_mistral_to_the_bit(spelling: str, tmp_path: Path) -> None:
    """The folder of the text model alone, and its GGUF file, which is a plain llama's, give the same configuration,
    the same weights and the same logits.
    """
    raw, hf, ids = drawn("bits", "default", sliding_window=None)
    folder = write(tmp_path / "composite", spelling, raw, hf)
    found = open_model(folder)
    config = read_config(found.config)
    assert (config.model_type, config.tie_word_embeddings) == ("mistral", raw["tie_word_embeddings"])
    num_vision = sum("language_model" not in name and "lm_head" not in name for name in hf.state_dict())
    assert found.warnings == (f"tensors that are not used: {num_vision} of vision (Karat reads no images)",)
    assert {part: len(weights) for part, weights in found.unused.items()} == {VISION: num_vision}

    text = {"architectures": ["MistralForCausalLM"], **raw["text_config"]}
    text["tie_word_embeddings"] = raw["tie_word_embeddings"]
    weights = {name: weight.to_array(np.dtype(np.float32)) for name, weight in found.weights.items()}
    (tmp_path / "text").mkdir()
    save_file({name: torch.from_numpy(array) for name, array in weights.items()}, tmp_path / "text/model.safetensors")
    (tmp_path / "text" / "config.json").write_text(json.dumps(text))
    alone = open_model(tmp_path / "text")
    stated = {"dtype": None, "torch_dtype": None}
    assert read_config({**found.config, **stated}) == read_config({**alone.config, **stated})
    assert find_weights(config, found).keys() == find_weights(config, alone).keys()

    write_model(tmp_path / "model.gguf", text, weights)
    assert open_model(tmp_path / "model.gguf").config["model_type"] == "llama"
    ops = create("auto", "float32")
    paths = (folder, tmp_path / "text", tmp_path / "model.gguf")
    logits = [forward.run(loaded(path, ops), [ids])[0] for path in paths]
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def test_what_the_hub_states_of_mistral_small_3_1() -> None:
    """Its config.json says neither whether the head is tied nor where a text ends."""
    text = {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120}
    text |= {"initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072}
    text |= {"model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8}
    text |= {"rms_norm_eps": 1e-05, "rope_theta": 1e9, "sliding_window": None, "use_cache": True, "vocab_size": 131072}
    vision = {"attention_dropout": 0.0, "head_dim": 64, "hidden_act": "gelu", "hidden_size": 1024, "image_size": 1540}
    vision |= {"initializer_range": 0.02, "intermediate_size": 4096, "model_type": "pixtral", "num_channels": 3}
    vision |= {"num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3"}
    whole |= {"multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2}
    whole |= {"text_config": text, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0"}
    whole |= {"vision_config": vision, "vision_feature_layer": -1}
    head = Weight("language_model.lm_head.weight", "BF16", (131072, 5120), np.zeros(0, np.uint8), Path("model"))
    config = read_config(COMPOSITE.text_part(whole, {head.name: head}).config)
    assert (config.model_type, config.num_layers, config.num_heads, config.num_kv_heads) == ("mistral", 40, 32, 8)
    assert (config.head_dim, config.rope.theta, config.layer_windows) == (128, 1e9, (None,) * 40)
    assert (config.tie_word_embeddings, config.dtype, config.eos_token_ids) == (False, "bfloat16", ())


def test_what_the_hub_states_of_ministral_3() -> None:
    """In the form of its releases: RoPE names its type twice, and q grows by what is among its parameters."""
    rope = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0}
    rope |= {"mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1e6, "rope_type": "yarn"}
    text = {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072}
    text |= {"initializer_range": 0.02, "intermediate_size": 9216, "max_position_embeddings": 262144}
    text |= {"model_type": "ministral3", "num_attention_heads": 32, "num_hidden_layers": 26, "num_key_value_heads": 8}
    text |= {"rms_norm_eps": 1e-05, "rope_parameters": {**rope, "type": "yarn"}, "sliding_window": None}
    text |= {"use_cache": True, "vocab_size": 131072}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text}
    config = read_config(COMPOSITE.text_part(whole, {}).config)
    assert (config.model_type, config.tie_word_embeddings, config.layer_windows) == ("ministral3", True, (None,) * 26)
    assert (config.rope.rope_type, config.rope.attention_factor) == ("yarn", 1.0)
    assert {shape.growth for shape in config.shapes} == {0.1}


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a text model that Karat lacks": (
        {"text_config": {"model_type": "mistral4"}},
        "text_config.model_type='mistral4' is not supported in a model of the type mistral3; Karat has mistral, minis",
    ),
    "no text model": ({"text_config": None}, "text_config=None: expected an object"),
    "another architecture": (
        {"architectures": ["MistralForCausalLM"]},
        "is not supported for model_type='mistral3': expected ['Mistral3ForConditionalGeneration']",
    ),
    "a key that nobody knows": ({"attention_twist": 2}, "1 unknown key (attention_twist=2)"),
    "a quantised model": ({"quantization_config": {"quant_method": "awq"}}, "quantization method 'awq' is not"),
    "code": ({"auto_map": {"AutoModel": "x.Model"}}, "config.json has auto_map"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_not_declared_is_refused(what: str, tmp_path: Path) -> None:
    changes, words = CHANGES[what]
    raw, hf, _ = drawn("refused")
    folder = write(tmp_path / "model", "modules", raw | changes, hf)
    with pytest.raises(ConfigError) as caught:
        read_config(open_model(folder).config)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["audio_tower.conv.weight", "model.language_model.layers.0.twist.weight", "talk.x"])
def test_a_tensor_of_no_declared_part_is_unexpected(name: str, tmp_path: Path) -> None:
    raw, hf, _ = drawn("unexpected")
    folder = write(tmp_path / "model", "modules", raw, hf)
    with (folder / "model.safetensors").open("rb") as file:
        from safetensors.torch import load

        tensors = load(file.read())
    save_file({**tensors, name: torch.zeros(3)}, folder / "model.safetensors")
    checkpoint = open_model(folder)
    with pytest.raises(CheckpointError, match="1 unexpected"):
        find_weights(read_config(checkpoint.config), checkpoint)


def test_the_guide_shows_it_as_it_is() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"Mistral Small 3\.1's:\n\n```python\n(.*?)```$", guide, re.MULTILINE | re.DOTALL)
    assert (root / "src/karat/models/mistral3.py").read_text(encoding="utf-8").endswith(shown)
