"""Mixes: the stored type of each tensor, by the rules of llama.cpp's `llama-quantize` without an importance matrix.

Without one, `llama-quantize` does not write Q2_K_S and most IQ types, so Karat has no such mixes.

A mix such as Q4_K_M has a base type for most matrices, and a larger one where an error costs more: the output head (or
the embedding that is tied to it), V and the down projection of some layers, and O in mixes of few bits. Vectors and
routers stay float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from karat.checkpoint.weights import PLAIN_BYTES
from karat.config import ModelConfig
from karat.models.families import FAMILIES
from karat.models.mixtures import MixtureConfig
from karat.quant import FORMATS

# The type for rows that are no whole number of blocks of the wanted type.
_SMALLER_BLOCKS: Mapping[str, str] = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}
_ROUTERS = (".gate.weight", ".router.weight", ".router.proj.weight", ".shared_expert_gate.weight")
_FINER_O_OF_8_EXPERTS = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")


@dataclass(frozen=True, slots=True)
class TypeMix:
    """A mix: the name that `convert` takes, its base type, and its number in general.file_type."""

    name: str
    base: str
    file_type: int


MIXES: Mapping[str, TypeMix] = {
    mix.name: mix
    for mix in (
        TypeMix("F32", "F32", 0),
        TypeMix("F16", "F16", 1),
        TypeMix("BF16", "BF16", 32),
        TypeMix("Q8_0", "Q8_0", 7),
        TypeMix("Q4_0", "Q4_0", 2),
        TypeMix("Q4_1", "Q4_1", 3),
        TypeMix("Q5_0", "Q5_0", 8),
        TypeMix("Q5_1", "Q5_1", 9),
        TypeMix("Q2_K", "Q2_K", 10),
        TypeMix("Q3_K_S", "Q3_K", 11),
        TypeMix("Q3_K_M", "Q3_K", 12),
        TypeMix("Q3_K_L", "Q3_K", 13),
        TypeMix("Q4_K_S", "Q4_K", 14),
        TypeMix("Q4_K_M", "Q4_K", 15),
        TypeMix("Q5_K_S", "Q5_K", 16),
        TypeMix("Q5_K_M", "Q5_K", 17),
        TypeMix("Q6_K", "Q6_K", 18),
        TypeMix("IQ4_NL", "IQ4_NL", 25),
        TypeMix("IQ4_XS", "IQ4_XS", 30),
        TypeMix("MXFP4_MOE", "MXFP4", 38),
    )
}


def type_of(
    mix: TypeMix, name: str, shape: tuple[int, ...], layer: int | None, config: ModelConfig, *, pure: bool = False
) -> str:
    """The stored type of the tensor with this Hugging Face name and shape; `layer` is None outside layers.

    `pure` gives every matrix the base type. Rows that are no whole number of blocks get a type of smaller blocks, or
    F16 where there is none.
    """
    if len(shape) < 2 or not name.endswith(".weight") or is_router(name):
        return "F32"
    wanted = mix.base if pure or mix.base in PLAIN_BYTES else _wanted(mix, name, shape, layer, config)
    if not _divides(shape, wanted):
        wanted = _SMALLER_BLOCKS.get(wanted, "F16")
    return wanted if _divides(shape, wanted) else "F16"


def _wanted(mix: TypeMix, name: str, shape: tuple[int, ...], layer: int | None, config: ModelConfig) -> str:
    if mix.base == "MXFP4":
        return "MXFP4" if ".experts." in name else "Q8_0"
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    if name == head:
        return "Q8_0" if mix.base == "Q8_0" or not _divides(shape, mix.base) else "Q6_K"
    if layer is None:
        return mix.base
    whole = FAMILIES[config.model_type].gguf.whole_of(name)
    part = "v_proj" if name.endswith("in_proj_qkv.weight") else whole.split(".")[-2]  # which has V, too
    if isinstance(config, MixtureConfig) and config.num_experts == 8 and part in ("k_proj", "v_proj", "o_proj"):
        return "Q8_0" if part != "o_proj" else "Q5_K" if mix.name in _FINER_O_OF_8_EXPERTS else mix.base
    wanted = _in_layer(mix, part, layer, config)
    if part == "v_proj" and wanted in ("Q3_K", "Q4_K") and FAMILIES[config.model_type].gguf.finer_values(config):
        return "Q5_K"
    return wanted


def _in_layer(mix: TypeMix, part: str, layer: int, config: ModelConfig) -> str:
    """The type of a part of a layer (v_proj, down_proj …), by the rules for all families.

    They count the layers that have V, and ask the first layer how many heads share one.
    """
    shape, num_layers = config.shape(layer), config.num_layers
    without = FAMILIES[config.model_type].gguf.without_values(config)
    is_shared = 0 not in without and shape.num_heads >= 4 * shape.num_kv_heads
    if part == "v_proj":
        num_layers -= len(without)
        layer -= sum(other < layer for other in without)
    match mix.name, part:
        case "Q2_K", "v_proj":
            return "Q4_K" if is_shared else "Q3_K"
        case "Q2_K", "down_proj" | "o_proj":
            return "Q3_K"
        case "Q3_K_M", "v_proj":
            return "Q5_K" if layer < 2 else "Q4_K"
        case "Q3_K_M", "down_proj":
            return "Q5_K" if layer < num_layers // 16 else "Q4_K"
        case "Q3_K_M", "o_proj":
            return "Q4_K"
        case "Q3_K_L", "v_proj" | "down_proj" | "o_proj":
            return "Q5_K"
        case (("Q3_K_M" | "Q3_K_L"), "qkv_proj"):
            return "Q4_K"
        case (("Q4_K_M" | "Q5_K_M"), "qkv_proj"):
            return "Q5_K" if mix.name == "Q4_K_M" else "Q6_K"
        case "Q4_K_S", "v_proj" if layer < 4:
            return "Q5_K"
        case (("Q4_K_M" | "Q5_K_M"), ("v_proj" | "down_proj")) if _is_sensitive(layer, num_layers):
            return "Q6_K"
        case (("IQ4_NL" | "IQ4_XS"), "v_proj") if is_shared:
            return "Q5_K"
        case (("Q4_K_S" | "IQ4_NL" | "IQ4_XS"), "down_proj") if layer < num_layers // 8:
            return "Q5_K"
    return mix.base


def _divides(shape: tuple[int, ...], dtype: str) -> bool:
    return dtype in PLAIN_BYTES or shape[-1] % FORMATS[dtype].block_size == 0


def _is_sensitive(layer: int, num_layers: int) -> bool:
    """Whether a layer is in the first or the last eighth, or every third between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def is_router(name: str) -> bool:
    """Whether files have this matrix as float32 in all mixes."""
    return name.endswith(_ROUTERS)
