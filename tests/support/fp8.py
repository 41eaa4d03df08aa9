"""Folders with FP8 and NVFP4 as they are published, made by torch of float32 tensors, and what they stand for.

Nothing of Karat's is in it: numbers are torch.float8_e4m3fn's, and values are products in float64.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_QUANTISED = re.compile(r"(?:_proj|in_proj_\w+)(?:\.weight)?")
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
Parts = tuple[dict[str, Tensor], Tensor]  # tensors of a folder by the ending of their names; the values in float64

FLOAT_QUANTIZED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": None,
    "kv_cache_scheme": None,
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            "output_activations": None,
            "weights": {
                "num_bits": 8,
                "type": "float",
                "strategy": "channel",
                "symmetric": True,
                "dynamic": False,
                "group_size": None,
                "block_structure": None,
                "actorder": None,
                "observer": "minmax",
                "observer_kwargs": {},
            },
        }
    },
}
NVFP4_PACKED = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "nvfp4-pack-quantized",
            "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "dynamic": "local"},
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "symmetric": True,
                "dynamic": False,
                "group_size": 16,
            },
        }
    },
}


def _rounded(values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of E4M3, and the products with their scales, which have the shape of values."""
    codes = (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, codes.double() * scale.double()


def blocks(values: Tensor, side: int = 128) -> Parts:
    rows, columns = values.shape[-2:]
    padded = torch.nn.functional.pad(values.abs(), (0, -columns % side, 0, -rows % side))
    grid = padded.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))
    scale = grid.amax(dim=(-1, -3)).clamp_min(1e-9) / 448
    whole = scale.repeat_interleave(side, -1).repeat_interleave(side, -2)[..., :rows, :columns]
    codes, exact = _rounded(values, whole)
    return {"": codes, "_scale_inv": scale}, exact


def whole(values: Tensor) -> Parts:
    """One scale a matrix, in bfloat16, and that of static activations: Ministral 3's."""
    scale = (values.abs().amax(dim=(-1, -2)) / 400).to(torch.bfloat16)
    codes, exact = _rounded(values, scale.float()[..., None, None].expand(values.shape))
    return {"": codes, "_scale_inv": scale, "@activation_scale": torch.tensor(0.02)}, exact


def rows(values: Tensor) -> Parts:
    scale = (values.abs().amax(dim=-1, keepdim=True).clamp_min(1e-9) / 448).to(torch.bfloat16)
    codes, exact = _rounded(values, scale.float().expand(values.shape))
    return {"": codes, "_scale": scale}, exact


def modelopt(values: Tensor) -> Parts:
    scale = values.abs().amax(dim=(-1, -2)) / 448
    codes, exact = _rounded(values, scale[..., None, None].expand(values.shape))
    return {"": codes, "_scale": scale, "@input_scale": torch.tensor(0.02), "@k_scale": torch.tensor(1.0)}, exact


def _halves(values: Tensor, of_matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """NVFP4: bytes, scales of groups of 16, and values without the scale of the matrix."""
    grouped = (values.double() / of_matrix[..., None, None]).unflatten(-1, (-1, 16))
    scale = (grouped.abs().amax(dim=-1) / 6).clamp(2.0**-6, 448).to(torch.float8_e4m3fn)
    wanted = grouped / scale.double()[..., None]
    codes = (wanted.abs()[..., None] - _E2M1).abs().argmin(dim=-1)
    exact = _E2M1[codes] * wanted.sign() * scale.double()[..., None]
    codes = (codes + 8 * wanted.signbit()).to(torch.uint8).flatten(-2)
    return codes[..., ::2] | codes[..., 1::2] << 4, scale, exact.flatten(-2)


def nvfp4(values: Tensor) -> Parts:
    of_matrix = values.double().abs().amax(dim=(-1, -2)).float() / (6 * 448)
    packed, scale, exact = _halves(values, of_matrix.double())
    exact = exact * of_matrix.double()[..., None, None]
    return {"": packed, "_scale": scale, "_scale_2": of_matrix, "@input_scale": torch.tensor(0.02)}, exact


def nvfp4_packed(values: Tensor) -> Parts:
    divisor = (6 * 448) / values.double().abs().amax(dim=(-1, -2)).float()
    packed, scale, exact = _halves(values, 1 / divisor.double())
    exact = exact / divisor.double()[..., None, None]
    return {"_packed": packed, "_scale": scale, "_global_scale": divisor.reshape(*values.shape[:-2], 1)}, exact


KINDS: Mapping[str, tuple[dict[str, Any], Callable[[Tensor], Parts]]] = {
    "blocks": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
        | {"modules_to_not_convert": ["lm_head", "model.embed_tokens"]},
        blocks,
    ),
    "tensor": (
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False}
        | {"modules_to_not_convert": ["model.vision_tower", "lm_head"]},
        whole,
    ),
    "rows": (FLOAT_QUANTIZED, rows),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8", "producer": {"name": "modelopt"}}, modelopt),
    "NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, nvfp4),
    "NVFP4 packed": (NVFP4_PACKED, nvfp4_packed),
}


def quantised(tensors: Mapping[str, Tensor], kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Tensors of a folder, the values of those of the model that are quantised in it, and its quantization_config."""
    config, make = KINDS[kind]
    stored: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or not _QUANTISED.search(name) or (kind.startswith("NVFP4") and tensor.shape[-1] % 16):
            stored[name] = tensor.contiguous()
            continue
        parts, values[name] = make(tensor.float())
        for ending, part in parts.items():
            place = name.removesuffix(".weight") + "." + ending[1:] if ending.startswith("@") else name + ending
            stored[place] = part.contiguous()
    return stored, values, config
