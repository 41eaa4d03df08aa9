"""`karat inspect config.json` of every kind of model in README's table: that it runs, and what memory it takes.

tests/data/released_configs.json has keys as publishers write them, by hand, and the size that each publisher states, in
billions of parameters of the text model. Of a folder that is published quantised it has the bytes of its text model.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from karat.checkpoint.overrides import NO_OVERRIDES
from karat.cli.inspect_config import facts_of_config
from karat.errors import ConfigError
from karat.models.families import COMPOSITES, FAMILIES
from tests.cli.conftest import Karat

FILE = Path(__file__).parents[1] / "data" / "released_configs.json"
RELEASED: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def facts(tmp_path: Path, config: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return facts_of_config(path, NO_OVERRIDES)


@pytest.mark.parametrize("name", RELEASED)
def test_it_says_that_the_model_runs_and_what_it_takes(name: str, tmp_path: Path) -> None:
    config, billions = RELEASED[name]["config"], RELEASED[name]["billions"]
    found = facts(tmp_path, config)
    text = config.get("text_config", config)
    assert text["model_type"] in found["runs"]
    assert found["parameters"] == pytest.approx(billions * 1e9, rel=0.01)
    gigabytes = RELEASED[name].get("gigabytes", 2 * found["parameters"] / 1e9)
    assert ("gigabytes" in RELEASED[name]) == ("quantization_config" in config)
    assert found["memory"]["weight_bytes"] == pytest.approx(gigabytes * 1e9, rel=0.005)
    sizes = found["converted_bytes"]
    assert 2 * found["parameters"] <= sizes["BF16"] <= 2.02 * found["parameters"]
    assert 0.45 * sizes["BF16"] < sizes["Q8_0"] < 0.6 * sizes["BF16"] and sizes["Q4_K_M"] < sizes["Q8_0"]
    last = found["memory"]["contexts"][-1]
    assert last["tokens"] == text.get("max_position_embeddings", 131_072)
    if (
        len({*text.get("layer_types", ["full_attention"])}) == 1
        and "num_attention_heads" in text
        and "linear_key_head_dim" not in text
    ):
        heads = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
        layers = text["num_hidden_layers"] if "full_attn_idxs" not in text else len(text["full_attn_idxs"])
        if not text.get("sliding_window") or not text.get("use_sliding_window", True):
            a_token = 2 * layers * text["num_key_value_heads"] * heads
            assert found["memory"]["kv_bytes_per_token"]["float16"] == 2 * a_token
    assert all(math.isfinite(row["total_bytes"]["float16"]) for row in found["memory"]["contexts"])


def test_every_kind_is_there() -> None:
    stated = [entry["config"] for entry in RELEASED.values()]
    kinds = {config["model_type"] for config in stated}
    kinds |= {config["text_config"]["model_type"] for config in stated if "text_config" in config}
    assert kinds >= FAMILIES.keys() | COMPOSITES.keys()


def test_what_does_not_run_is_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the nearest family that Karat runs is qwen3_moe"):
        facts(tmp_path, {"model_type": "deepseek_v3"})


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_it(as_json: bool, tmp_path: Path, karat_here: Karat) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(RELEASED["Olmo-3-7B-Instruct"]["config"]))
    done = karat_here("inspect", str(path), *(["--json"] if as_json else []))
    assert (done.returncode, done.stderr) == (0, "")
    if as_json:
        assert json.loads(done.stdout)["parameters"] == 7_298_011_136
    else:
        assert "as olmo3 (Olmo3ForCausalLM)" in done.stdout and "7,298,011,136" in done.stdout
        assert "4096 tokens on 24 of 32 layers" in done.stdout and "Q4_K_M 4.4" in done.stdout
