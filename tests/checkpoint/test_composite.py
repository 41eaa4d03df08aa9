"""The text part of a folder with several models in it: its names, its keys, and what is declared unused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.checkpoint.composite import Composite, TextPart
from karat.checkpoint.unused import AUDIO, VISION
from karat.checkpoint.weights import Weight
from karat.errors import CheckpointError, ConfigError

FOX = Composite(
    model_type="fox",
    architecture="FoxForConditionalGeneration",
    texts=("llama", "qwen3"),
    parts={"eyes.": VISION, "ears.": AUDIO, "paws.": VISION},
    keys=frozenset({"eye_config", "ear_token_id"}),
    stated=(("head_dim",), ("paws", "claws")),
)
TEXT = {"model_type": "qwen3", "hidden_size": 8, "head_dim": 4, "claws": 5}
TEXT_NAMES = ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight")
HEAD = "lm_head.weight"


def stored(*names: str) -> dict[str, Weight]:
    data = np.zeros(2, np.uint8)
    return {name: Weight(name, "BF16", (1,), data, Path("fox") / "model.safetensors") for name in names}


def part(config: dict[str, Any], *names: str) -> TextPart:
    return FOX.text_part({"model_type": "fox", "text_config": TEXT} | config, stored(*names))


@given(
    names=st.sets(st.sampled_from([*TEXT_NAMES, HEAD]), min_size=1),
    spelling=st.sampled_from(["before", "within", "plain"]),
    others=st.sets(st.sampled_from(["eyes.0.weight", "ears.conv.bias", "paws.x"])),
    prefix=st.sampled_from(["", "model."]),
)
def test_names_are_a_text_models_and_other_parts_are_set_aside(
    names: set[str], spelling: str, others: set[str], prefix: str
) -> None:
    spelled = {
        "before": lambda name: f"language_model.{name}",
        "within": lambda name: name.replace("model.", "model.language_model."),
        "plain": lambda name: name,
    }[spelling]
    text = part({}, *map(spelled, names), *(prefix + name for name in others))
    assert {name: weight.name for name, weight in text.weights.items()} == {name: name for name in names}
    found = {weight.name: kind for kind, weights in text.unused.items() for weight in weights}
    assert found == {prefix + name: AUDIO if name.startswith("ears") else VISION for name in others}


def test_a_name_of_no_part_stays_what_it_is() -> None:
    text = part({}, "eye.weight", "model.eyesight", "language_model.eyes.x", "mtp.fc.weight")
    assert {*text.weights} == {"eye.weight", "model.eyesight", "eyes.x", "mtp.fc.weight"}
    assert not text.unused


def test_two_spellings_of_one_tensor_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"and another tensor are both 'model\.norm\.weight' of the text model"):
        part({}, "language_model.model.norm.weight", "model.language_model.norm.weight")


class TestKeys:
    def test_of_the_text_model_and_of_no_other_part(self) -> None:
        config = {"eye_config": {"x": 1}, "ear_token_id": 7, "architectures": [FOX.architecture], "twist": 3}
        found = part(config, HEAD).config
        assert found == {**TEXT, "twist": 3, "tie_word_embeddings": False}

    def test_the_texts_own_win_but_for_the_ends_of_a_text(self) -> None:
        whole = {"hidden_size": 99, "eos_token_id": [1, 106], "bos_token_id": None, "dtype": "bfloat16"}
        text = TEXT | {"eos_token_id": 1, "bos_token_id": 2, "torch_dtype": "float16"}
        found = part({**whole, "text_config": text}).config
        assert (found["hidden_size"], found["eos_token_id"], found["bos_token_id"]) == (8, [1, 106], 2)
        assert found["torch_dtype"] == "float16" and "dtype" not in found
        assert part(whole).config["dtype"] == "bfloat16"

    def test_the_first_kind_of_text_model_is_the_default(self) -> None:
        assert part({"text_config": {"head_dim": 4, "paws": 4}}).config["model_type"] == "llama"

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"text_config": [1]}, r"text_config=\[1\]: expected an object"),
            ({"text_config": {"model_type": "gemma9"}}, "text_config.model_type='gemma9' is not supported"),
            ({"text_config": {"model_type": None}}, "text_config.model_type=None is not supported"),
            ({"architectures": ["LlamaForCausalLM"]}, "is not supported for model_type='fox'"),
            ({"text_config": {"claws": 5}}, "text_config has no head_dim, whose default in a fox is another"),
            ({"text_config": {"head_dim": 4}}, "text_config has no paws or claws, whose default in a fox"),
        ],
    )
    def test_what_is_refused(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            part(changes)


@pytest.mark.parametrize("whole", [None, True, False, "absent"])
@pytest.mark.parametrize("text", [None, True, False, "absent"])
def test_a_head_in_the_file_is_the_models(whole: object, text: object) -> None:
    """Whatever is stated; without one, the head is the embedding unless that is denied."""
    config: dict[str, Any] = {"text_config": TEXT | ({} if text == "absent" else {"tie_word_embeddings": text})}
    config |= {} if whole == "absent" else {"tie_word_embeddings": whole}
    assert part(config, HEAD).config["tie_word_embeddings"] is False
    stated = [value for value in (whole, text) if isinstance(value, bool)]
    assert part(config).config["tie_word_embeddings"] is (stated[0] if stated else True)
