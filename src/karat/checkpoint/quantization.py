"""quantization_config of a config.json: how a folder's quantised tensors are to be read, or why they are not read.

    quant_method         what is read
    fp8                  E4M3 with a scale for each block, or for the tensor (DeepSeek, Qwen3 FP8, Ministral 3)
    compressed-tensors   float-quantized: E4M3 with a scale for each row, block or tensor; nvfp4-pack-quantized
    modelopt             FP8: E4M3 with a scale for the tensor; NVFP4

Which matrices are quantised, the tensors themselves say; lists of modules that are not are checked and not needed.
Activations stay float32 whatever a config says of theirs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from karat.checkpoint.neutral import says_nothing
from karat.checkpoint.wording import shown
from karat.errors import ConfigError

KEY = "quantization_config"
_BLOCK_COLUMNS = 128
_OF_FAMILIES = "mxfp4"  # which gpt_oss reads (karat.models.family)
_OTHERWISE = "use the model's unquantised folder with --quantize, or a GGUF file of it"
_LISTS = ("modules_to_not_convert", "ignored_layers", "modules_to_convert", "ignore", "exclude_modules")
# Keys that say how a checkpoint was made, what a runtime does with activations, or which program wrote it.
_ABOUT: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"dequantize", "fmt", "activation_scheme", "weight_block_size", "scale_fmt", "expert_dtype"}),
    "compressed-tensors": frozenset(
        {"format", "config_groups", "quantization_status", "global_compression_ratio", "kv_cache_scheme", "version"}
        | {"sparsity_config", "transform_config"}
    ),
    "modelopt": frozenset({"quant_algo", "config_groups", "producer", "kv_cache_scheme", "kv_cache_quant_algo"}),
}
_ABOUT_WEIGHTS = frozenset(
    {"num_bits", "type", "symmetric", "strategy", "block_structure", "group_size", "dynamic", "actorder"}
    | {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
)


@dataclass(frozen=True, slots=True)
class Narrow:
    """E4M3 numbers. `block` are the rows and columns that share a scale; None: rows, or the whole tensor."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """E2M1 numbers in groups of 16 with a scale each; values are divided by the tensor's scale, or multiplied."""

    divides: bool


def quantization_of(config: Mapping[str, Any]) -> Narrow | Nvfp4 | None:
    """What the tensors of a folder are, of those kinds that every family has.

    None without a quantization_config, and for a method that a family knows (karat.models.family). Raises ConfigError.
    """
    text = config.get("text_config")
    stated = config.get(KEY) or (text.get(KEY) if isinstance(text, dict) else None)
    if not isinstance(stated, dict):
        return None
    method = stated.get("quant_method")
    if not isinstance(method, str) or method not in _ABOUT:
        return None
    for key, value in stated.items():
        if key in _LISTS:
            if value is not None and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
                raise _fault(key, value, "expected a list of modules' names")
        elif key != "quant_method" and key not in _ABOUT[method] and not says_nothing(key, value):
            raise _fault(key, value, f"is not supported with {method}; {_OTHERWISE}")
    return {"fp8": _fine_grained, "compressed-tensors": _compressed, "modelopt": _modelopt}[method](stated)


def held_type(config: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> str | None:
    """The type in memory of a tensor of a text model, as a config.json alone tells it; None: it is not quantised.

    The files may say otherwise: patterns of modules are read as far as `*` goes. Raises ConfigError as
    `quantization_of` does.
    """
    stated = config.get(KEY)
    is_matrix = name.startswith("model.layers.") and len(shape) == 2
    if not isinstance(stated, dict) or not is_matrix or any(fnmatchcase(name, spared) for spared in _spared(stated)):
        return None
    match quantization_of(config):
        case Narrow():
            return "F32" if shape[1] % _BLOCK_COLUMNS else "E4M3"
        case Nvfp4():
            return "F32"
    return "MXFP4" if stated.get("quant_method") == _OF_FAMILIES and ".experts." in name else None


def _spared(stated: Mapping[str, Any]) -> Iterator[str]:
    """Patterns of the names of tensors that are not quantised."""
    for key in _LISTS:
        names = stated.get(key) if key != "modules_to_convert" else None
        for name in names if isinstance(names, list) else ():
            bare = str(name).removeprefix("re:").removeprefix("^").removesuffix("$")
            yield f"*{bare.replace('language_model.', '').replace('.*', '*')}.*"


def unread(config: Mapping[str, Any]) -> str | None:
    """Why a folder is not read whose quantised tensors nobody reads; None where somebody does, or none are stated."""
    text = config.get("text_config")
    stated = config.get(KEY) or (text.get(KEY) if isinstance(text, dict) else None)
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    return refusal(stated) if isinstance(method, str) and method not in (*_ABOUT, _OF_FAMILIES) else None


def refusal(quantization: object) -> str:
    """Why folders of a quantization_config that no family reads are not read, and what to do."""
    method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else quantization
    return f"quantization method {shown(method)} is not supported in a Hugging Face folder; {_OTHERWISE}"


def _fine_grained(stated: Mapping[str, Any]) -> Narrow:
    for key, expected in (("fmt", "e4m3"), ("scale_fmt", "float"), ("expert_dtype", "fp8")):
        if stated.get(key) not in (None, expected):
            raise _fault(key, stated[key], f"expected {expected!r}; {_OTHERWISE}")
    return Narrow(_block("weight_block_size", stated.get("weight_block_size", [128, 128])))  # as in transformers


def _compressed(stated: Mapping[str, Any]) -> Narrow | Nvfp4:
    kind = stated.get("format")
    if kind not in ("float-quantized", "nvfp4-pack-quantized"):
        raise _fault("format", kind, f"expected 'float-quantized' or 'nvfp4-pack-quantized'; {_OTHERWISE}")
    sparsity = stated.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") not in (None, "dense"):
        raise _fault("sparsity_config", sparsity, f"expected none; {_OTHERWISE}")
    if stated.get("transform_config"):
        raise _fault("transform_config", stated["transform_config"], f"expected none; {_OTHERWISE}")
    blocks = {_of_group(name, group, kind) for name, group in _groups(stated).items()}
    if len(blocks) != 1:
        raise _fault("config_groups", stated.get("config_groups"), f"expected weights of one kind; {_OTHERWISE}")
    return Narrow(blocks.pop()) if kind == "float-quantized" else Nvfp4(divides=True)


def _groups(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = stated.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise _fault("config_groups", groups, "expected an object of groups")
    return groups


def _of_group(name: str, group: Mapping[str, Any], kind: str) -> tuple[int, int] | None:
    """The block of a group of modules. ConfigError unless its weights are what `kind` says."""
    weights = group.get("weights")
    where = f"config_groups.{name}"
    own = group.get("format")
    if not isinstance(weights, dict) or own not in (None, kind):
        raise _fault(where, group, f"expected weights in {kind}; {_OTHERWISE}")
    for key, value in weights.items():
        if key not in _ABOUT_WEIGHTS and not says_nothing(key, value):
            raise _fault(f"{where}.weights.{key}", value, f"is not supported; {_OTHERWISE}")
    is_narrow = kind == "float-quantized"
    strategies = ("tensor", "channel", "block") if is_narrow else ("tensor_group", "group")
    expected = {"num_bits": (8,) if is_narrow else (4,), "type": ("float",), "strategy": strategies}
    for key, values in expected.items():
        if weights.get(key) not in values:
            raise _fault(f"{where}.weights.{key}", weights.get(key), f"expected {values[0]!r}; {_OTHERWISE}")
    if weights.get("symmetric", True) is not True or weights.get("dynamic", False) is not False:
        raise _fault(f"{where}.weights", weights, f"expected symmetric weights with scales in the file; {_OTHERWISE}")
    if not is_narrow and weights.get("group_size") != 16:
        raise _fault(f"{where}.weights.group_size", weights.get("group_size"), f"expected 16; {_OTHERWISE}")
    if weights["strategy"] == "block":
        return _block(f"{where}.weights.block_structure", weights.get("block_structure"), required=True)
    return None


def _modelopt(stated: Mapping[str, Any]) -> Narrow | Nvfp4:
    match stated.get("quant_algo"):
        case "FP8":
            return Narrow(None)
        case "NVFP4":
            return Nvfp4(divides=False)
        case algorithm:
            raise _fault("quant_algo", algorithm, f"expected 'FP8' or 'NVFP4'; {_OTHERWISE}")


def _block(key: str, value: object, *, required: bool = False) -> tuple[int, int] | None:
    if value is None and not required:
        return None
    if isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value):
        rows, columns = value
        if columns % _BLOCK_COLUMNS == 0:
            return rows, columns
    raise _fault(key, value, f"expected [rows, columns], with columns a multiple of {_BLOCK_COLUMNS}; {_OTHERWISE}")


def _fault(key: str, value: object, reason: str) -> ConfigError:
    return ConfigError(f"config.json: {KEY}.{key}={shown(value)}: {reason}")
