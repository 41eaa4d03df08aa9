"""A config that states endless texts or sizes is refused in a short line, and before anything is made of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from karat.checkpoint.gguf.rope import read_rope_scaling
from karat.checkpoint.gguf.values import Metadata
from karat.checkpoint.mismatch import likely_reason
from karat.errors import ConfigError
from karat.models.families import FAMILIES
from karat.models.opening import open_model
from karat.models.registry import passed_over, read_config
from tests.engine.tiny import write_model
from tests.models.test_config import YARN, raw_config

MAX_CHARS = 2000
LONG = "x" * 2**20
NONSENSE: list[Any] = [LONG, [LONG] * 3, {LONG: LONG}, ["full_attention"] * 100_000, 10**39, -(10**39)]


def refusal(raw: dict[str, Any]) -> str:
    """What is said; nothing where it is right, such as a large id."""
    try:
        read_config(raw)
    except ConfigError as error:
        return str(error)
    return ""


def message(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(raw)
    return str(caught.value)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_messages_end_whatever_a_key_holds(family: str) -> None:
    keys = [
        *raw_config(family),
        "torch_dtype",
        "dtype",
        "layer_types",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "quantization_config",
        "partial_rotary_factor",
        "not_a_key",
    ]
    harmless = {"architectures", "use_cache", "initializer_range", "attention_dropout", "pretraining_tp"}
    for key in set(keys) - harmless:
        for value in NONSENSE:
            assert len(refusal(raw_config(family, **{key: value}))) < MAX_CHARS, key
    assert len(message(raw_config(family, architectures=[LONG]))) < MAX_CHARS
    assert len(message(raw_config(family, **{LONG + str(i): LONG for i in range(9)}))) < MAX_CHARS
    assert len(message(raw_config(family, quantization_config={"quant_method": LONG}))) < MAX_CHARS


@pytest.mark.parametrize("key", ["rope_type", "type", "factor", "original_max_position_embeddings", "truncate", LONG])
def test_messages_end_whatever_rope_holds(key: str) -> None:
    for value in (LONG, [LONG]):
        assert len(message(raw_config("llama", rope_scaling={"rope_type": "yarn", **YARN, key: value}))) < MAX_CHARS
    both = {"rope_parameters": {"rope_type": LONG}, "rope_scaling": {"rope_type": LONG + "y"}}
    assert len(message(raw_config("llama", **both))) < MAX_CHARS
    told = passed_over(raw_config("llama", dtype=LONG, torch_dtype=LONG))
    assert len(told) == 2 and all(len(each) < MAX_CHARS for each in told)


def test_messages_end_whatever_a_gguf_file_scales_by() -> None:
    with pytest.raises(ConfigError) as caught:
        read_rope_scaling(Metadata("a.gguf", {"llama.rope.scaling.type": LONG}, {}), "llama")
    assert len(str(caught.value)) < MAX_CHARS


def test_reasons_end_whatever_tensors_are_called() -> None:
    assert len(likely_reason(["model.norm.weight"], [f"{LONG}.model.norm.weight"], any_misshapen=False)) < MAX_CHARS
    assert len(likely_reason([f"{LONG}.norm.weight"], ["norm.weight"], any_misshapen=False)) < MAX_CHARS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "max_position_embeddings"]
)
def test_a_number_beyond_64_bits_is_a_config_error(family: str, key: str) -> None:
    assert f"{key}=9223372036854775808: expected an integer" in message(raw_config(family, **{key: 2**63}))


@pytest.mark.parametrize("num_layers", [1000, 2 * 10**8, 2**31, 2**63, 10**39])
def test_more_layers_than_tensors_are_refused_before_a_list_of_them_is_made(tmp_path: Path, num_layers: int) -> None:
    write_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": num_layers}))
    with pytest.raises(ConfigError, match=re.escape(f"num_hidden_layers={num_layers}, and there are 27 tensors")):
        open_model(tmp_path)
