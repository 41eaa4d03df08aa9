"""`karat inspect config.json`: whether a model runs, and what memory it would take, before it is downloaded."""

import math
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.cli.inspect_rows import config_rows, memory_of, memory_text
from karat.cli.terminal import bytes_text, columns
from karat.config import FLOAT_BYTES, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from karat.checkpoint.overrides import Overrides
    from karat.checkpoint.weights import WeightSpec

_MIXES = ("BF16", "Q8_0", "Q4_K_M")  # what `karat convert` may write
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.\d+\.")  # of a layer, whose experts are all stored alike


def facts_of_config(path: Path, overrides: "Overrides") -> dict[str, Any]:
    """All facts, for JSON. ConfigError for a model that does not run."""
    from karat.models.decoder import weight_specs
    from karat.models.families import FAMILIES
    from karat.models.opening import config_alone
    from karat.models.registry import read_config

    raw = config_alone(path, overrides)
    config = read_config(raw)
    specs = {spec.source: spec for spec in weight_specs(config)}
    parameters = sum(math.prod(spec.shape) for spec in specs.values())
    kinds = Counter((_EXPERT.sub(".experts.0.", spec.source), spec.shape) for spec in specs.values())
    stored = {mix: sum(count * _stored_bytes(*kind, mix, config) for kind, count in kinds.items()) for mix in _MIXES}
    held = sum(_held_bytes(spec, raw, config) for spec in specs.values())
    return {
        "path": str(path),
        "runs": f"as {config.model_type} ({FAMILIES[config.model_type].architecture})",
        "config": asdict(config),
        "parameters": parameters,
        "converted_bytes": stored,
        "memory": memory_of(config, parameters, held),
        "overrides": overrides.described(),
    }


def _held_bytes(spec: "WeightSpec", raw: "Mapping[str, Any]", config: ModelConfig) -> int:
    """Bytes of a tensor of the folder in memory."""
    from karat.checkpoint.quantization import held_type
    from karat.quant import FORMATS

    count, dtype = math.prod(spec.shape), held_type(raw, spec.source, spec.shape)
    match dtype:
        case None:
            return count * FLOAT_BYTES[config.dtype or "bfloat16"]
        case "F32":
            return count * FLOAT_BYTES["float32"]
    return FORMATS[dtype].num_bytes(count)


def _stored_bytes(source: str, shape: tuple[int, ...], mix: str, config: ModelConfig) -> int:
    """Bytes of a tensor in a file that `karat convert` makes."""
    from karat.checkpoint.weights import PLAIN_BYTES
    from karat.convert.mix import MIXES, type_of
    from karat.quant import FORMATS

    layer = _LAYER.match(source)
    dtype = type_of(MIXES[mix], source, shape, int(layer[1]) if layer else None, config)
    count = math.prod(shape)
    return FORMATS[dtype].num_bytes(count) if dtype in FORMATS else count * PLAIN_BYTES[dtype]


def as_text(facts: dict[str, Any]) -> str:
    """The same for people."""
    sizes = ", ".join(f"{mix} {bytes_text(size)}" for mix, size in facts["converted_bytes"].items())
    rows = [
        ("model", facts["path"]),
        ("runs", facts["runs"]),
        ("parameters", f"{facts['parameters']:,}"),
        ("converted", sizes),
        *config_rows(facts["config"]),
    ]
    return f"{columns(rows)}\n\n{memory_text(facts['memory'])}\n"
