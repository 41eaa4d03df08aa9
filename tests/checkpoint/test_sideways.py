"""Experts as gpt-oss' folders store them: floats that lie on their side, and MXFP4 in blocks and scales."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from karat.checkpoint.slices import sliced
from karat.checkpoint.weights import Weight
from karat.errors import CheckpointError, ConfigError
from karat.models.decoder import weight_specs
from karat.models.opening import open_model
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS
from tests.support.parallel import config_of
from tests.support.sideways import sideways, upright
from tests.support.weights import mxfp4_of

EXPERTS, INNER, HIDDEN = 5, 96, 64
PLACE = "model.layers.0.mlp.experts."
CONFIG = config_of(
    "gpt_oss",
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_local_experts=EXPERTS,
    num_attention_heads=2,
    head_dim=8,
    vocab_size=60,
)


def values_by_name(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {s.source: rng.standard_normal(s.shape, np.float32) for s in weight_specs(read_config(CONFIG))}


def stored_of(values: dict[str, NDArray[np.float32]], *, blocks: bool) -> dict[str, Any]:
    """The tensors of a folder."""
    if not blocks:
        return sideways(values)
    plain: dict[str, Any] = dict(upright(values))
    for name in ("gate_up_proj", "down_proj"):
        rows = plain.pop(PLACE + name)
        packed = mxfp4_of(rows.reshape(-1, 32)).reshape(*rows.shape[:2], -1, 17)
        columns = np.concatenate([packed[..., 1:] & 15, packed[..., 1:] >> 4], axis=-1)
        plain[f"{PLACE}{name}_blocks"] = columns[..., ::2] | columns[..., 1::2] << 4
        plain[f"{PLACE}{name}_scales"] = np.ascontiguousarray(packed[..., 0])
    return plain


def folder(path: Path, tensors: dict[str, Any], **changes: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(tensors, path / "model.safetensors")
    return path


def weights_of(path: Path) -> dict[str, Weight]:
    opened = open_model(path)
    return find_weights(read_config(opened.config), opened)


def test_floats_are_the_rows_of_each_expert(tmp_path: Path) -> None:
    values = values_by_name(1)
    found = weights_of(folder(tmp_path / "model", stored_of(values, blocks=False)))
    assert found.keys() == values.keys()
    for name, weight in found.items():
        np.testing.assert_array_equal(weight.to_array(np.dtype(np.float32)), values[name], err_msg=name)
        np.testing.assert_array_equal(weight.rows(1, 2).to_array(np.dtype(np.float32)), values[name][1:2])
        settled = weight.settled()
        assert settled.made is None and settled.num_bytes == settled.stored.nbytes


def test_mxfp4_has_ggml_s_blocks(tmp_path: Path) -> None:
    values = values_by_name(2)
    path = folder(
        tmp_path / "model", stored_of(values, blocks=True), quantization_config={"quant_method": "mxfp4", "extra": []}
    )
    for name, weight in weights_of(path).items():
        if ".experts." in name and name.endswith(".weight"):
            assert weight.dtype == "MXFP4"
            blocks = mxfp4_of(values[name].reshape(-1, 32))
            np.testing.assert_array_equal(weight.data.reshape(-1, 17), blocks, err_msg=name)
            np.testing.assert_array_equal(
                weight.to_array(np.dtype(np.float32)).reshape(-1, 32), FORMATS["MXFP4"].dequantize(blocks)
            )
        else:
            np.testing.assert_array_equal(weight.to_array(np.dtype(np.float32)), values[name], err_msg=name)


def test_nothing_is_read_before_it_is_needed_and_ranks_get_whole_experts(tmp_path: Path) -> None:
    found = weights_of(folder(tmp_path / "model", stored_of(values_by_name(3), blocks=False)))
    for spec in weight_specs(read_config(CONFIG)):
        if ".experts." in spec.source:
            weight = found[spec.source]
            assert weight.made is not None and sliced(weight, spec) is weight


@pytest.mark.parametrize("lost", ["gate_up_proj_scales", "down_proj_blocks", "down_proj_bias"])
def test_a_missing_part_is_named(lost: str, tmp_path: Path) -> None:
    tensors = stored_of(values_by_name(4), blocks=True)
    del tensors[PLACE + lost]
    with pytest.raises(CheckpointError, match=lost if lost != "down_proj_bias" else r"experts\.0\.down_proj\.bias"):
        weights_of(folder(tmp_path / "model", tensors))


def test_other_quantised_folders_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", stored_of(values_by_name(5), blocks=True))
    with pytest.raises(ConfigError, match="quantization method 'awq'"):
        read_config(CONFIG | {"quantization_config": {"quant_method": "awq"}})
    with pytest.raises(ConfigError, match="quantization method 'mxfp4'"):
        read_config(config_of("llama") | {"quantization_config": {"quant_method": "mxfp4"}})
    assert weights_of(path)
