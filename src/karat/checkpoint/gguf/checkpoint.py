"""A model as one GGUF file, or as the parts of a split."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from karat.checkpoint.files import member
from karat.checkpoint.gguf.config import (
    Forms,
    idle_ends,
    known_keys,
    override,
    passed_over,
    read_config,
    read_model_type,
    warnings,
)
from karat.checkpoint.gguf.form import LONG_ROPE, ROPE_FACTORS, GgufForm
from karat.checkpoint.gguf.header import MAX_TENSORS, GgufHeader, TensorInfo, read_header
from karat.checkpoint.gguf.layers import one_for_all_layers, read_layers
from karat.checkpoint.gguf.repeated import read_repeated
from karat.checkpoint.gguf.sampling import read_sampling
from karat.checkpoint.gguf.values import Metadata
from karat.checkpoint.overrides import NO_OVERRIDES, Overrides
from karat.checkpoint.unused import Unused, remarks_on_unused, set_aside, unused_in_folder
from karat.checkpoint.weights import Weight
from karat.checkpoint.wording import listed, shown
from karat.errors import CheckpointError, ConfigError

MAX_PARTS = 1000
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True, eq=False)
class GgufCheckpoint:
    """A Checkpoint: the file as given, its metadata, the equivalent config.json, and its memory-mapped weights.

    Weights have Hugging Face's names, shapes and order of rows. `rope_factors`, a tensor that folders do not have, is
    in the config already. `unused` are the tensors of layers that predict further tokens. `warnings` are to be shown
    when the model is loaded. metadata and config are as the user's `overrides` leave them. `passed_over` are keys that
    nobody knows, whose values say nothing.
    """

    path: Path
    metadata: Metadata
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    weights: Mapping[str, Weight]
    rope_factors: Weight | None
    warnings: tuple[str, ...]
    overrides: Overrides = NO_OVERRIDES
    unused: Unused = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @property
    def generation_source(self) -> str:
        """The name of the keys that `generation_config` comes from."""
        return "general.sampling"

    @property
    def generation_fault(self) -> None:
        """Nothing: keys that cannot be read are an error of the file."""


def read_gguf(path: Path, forms: Forms, overrides: Overrides = NO_OVERRIDES) -> GgufCheckpoint:
    """Opens and checks a GGUF model of one of the families in `forms` (by model_type).

    `path` is a file, or the first part of a split; the other parts are in the same folder. Reads the headers, the
    RoPE factors and tensors that repeat a number. Raises ConfigError for an unsupported model, UsageError for overrides
    that do not fit it, CheckpointError for everything else.
    """
    headers = _read_parts(path)
    metadata, settled = override(headers[0].metadata, overrides.hf_overrides)
    try:
        model_type = read_model_type(metadata, forms)
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from fault
    stored = _all_tensors(path, headers)
    if not stored:
        raise CheckpointError(f"{path}: has no tensors: it is a vocabulary; expected a model")
    factors = stored.pop(ROPE_FACTORS, None)
    long_rope = {name: stored.pop(name) for name in LONG_ROPE if name in stored}
    form = forms[model_type]
    try:
        layers = read_layers(metadata, form.architecture)
        layers.check(stored, form.architecture)
        used, unused = set_aside(stored, layers.part_of)
        once = read_repeated(used, form)
        weights = _named(path, used, form)
        arch = form.architecture
        free = {f"{arch}.{key}": name for key, name in form.by_layer.items()}
        numbers, different = one_for_all_layers(metadata, known_keys(arch), layers, free)
        stated = read_config(numbers, model_type, form, layers, weights, factors, long_rope) | different | once
        config = overrides.of_config(stated, settled)
        weights, without_readers = set_aside(weights, unused_in_folder(config))
        unused |= without_readers
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from fault
    for name, weight in weights.items():  # `assign` refuses rows that are no heads
        if (order := form.row_order(name, weight.shape[0], config)) is not None:
            weights[name] = replace(weight, row_order=order)
    told = warnings(numbers, model_type, forms, weights.values())
    told = [*remarks_on_unused(unused), *told, *idle_ends(numbers, config["vocab_size"]), *overrides.remarks(config)]
    sampling = read_sampling(metadata)
    others = tuple(passed_over(numbers, form))
    return GgufCheckpoint(path, metadata, config, sampling, weights, factors, tuple(told), overrides, unused, others)


def _read_parts(path: Path) -> list[GgufHeader]:
    """The headers of all parts; `path` is the first."""
    first = read_header(path)
    count = first.metadata.get(int, "split.count", 1)
    if count in (0, 1):
        return [first]
    match = _PART.fullmatch(path.name)
    number = first.metadata.get(int, "split.no", 0)
    if match is None or number != 0 or int(match[2]) != 1 or int(match[3]) != count or not 1 < count <= MAX_PARTS:
        raise CheckpointError(
            f"{path}: is part {number + 1} of {count} of a split; expected the first part, under the name that the "
            f"split gave it, like model-00001-of-{min(count, MAX_PARTS):05}.gguf: give that file"
        )
    files = []
    for part in range(2, count + 1):
        name = f"{match[1]}-{part:05}-of-{count:05}.gguf"
        if (file := member(path.parent, name) or _beside_target(path, name)) is None:
            raise CheckpointError(
                f"{path}: is the first of {count} parts; expected {shown(name)} beside it: fetch it too"
            )
        files.append(file)
    headers = [first]
    num_tensors = len(first.tensors)
    for part, file in enumerate(files, 2):
        headers.append(_read_further_part(file, part, first))
        num_tensors += len(headers[-1].tensors)
        if num_tensors > MAX_TENSORS:
            raise CheckpointError(f"{file}: brings the tensors of all parts to more than {MAX_TENSORS}; expected fewer")
    return headers


def _beside_target(path: Path, name: str) -> Path | None:
    """The part `name` beside the file that the link `path` leads to, which must have the same name."""
    target = path.resolve()
    return member(target.parent, name) if path.is_symlink() and target.name == path.name else None


def _read_further_part(file: Path, part: int, first: GgufHeader) -> GgufHeader:
    """The header of a further part without its metadata: the first part's metadata are the model's.

    Raises CheckpointError unless the part states its own number and the count of parts. Its architecture and its number
    of tensors in all parts may be absent, but must not differ from the first part's.
    """
    header = read_header(file)
    count = first.metadata.get(int, "split.count")
    stated = (header.metadata.get(int, "split.no"), header.metadata.get(int, "split.count"))
    if stated != (part - 1, count):
        raise CheckpointError(
            f"{file}: states split.no and split.count {stated}; expected {(part - 1, count)}: fetch it again"
        )
    for key in ("general.architecture", "split.tensors.count"):
        own, expected = header.metadata.values.get(key), first.metadata.values.get(key)
        if own is not None and own != expected:
            raise CheckpointError(
                f"{file}: states {key}={shown(own)}; expected {shown(expected)}, as {first.path.name} has it: the "
                "parts are of different splits: fetch all of them again"
            )
    return replace(header, metadata=Metadata(str(file), {}, {}))


def _all_tensors(path: Path, headers: list[GgufHeader]) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for header in headers:
        data = np.frombuffer(header.buffer, np.uint8)
        for info in header.tensors.values():
            if info.name in weights:
                raise CheckpointError(
                    f"{header.path}: has the tensor {shown(info.name)}, which {weights[info.name].file.name} has "
                    "already; the parts are of different splits: fetch all of them again"
                )
            weights[info.name] = _weight(info, data, header.path)
    expected = headers[0].metadata.optional(int, "split.tensors.count")
    if len(headers) > 1 and expected is not None and len(weights) != expected:
        raise CheckpointError(
            f"{path}: states {expected} tensors in all parts, which have {len(weights)}: fetch all of them again"
        )
    return weights


def _weight(info: TensorInfo, data: Any, file: Path) -> Weight:
    return Weight(info.name, info.dtype, info.shape, data[info.begin : info.end], file)


def _named(path: Path, stored: Mapping[str, Weight], form: GgufForm[Any]) -> dict[str, Weight]:
    """The weights by their Hugging Face names."""
    weights, unknown = {}, []
    for name, weight in stored.items():
        if (canonical := form.canonical_name(name)) is None:
            unknown.append(f"{shown(name)} {list(weight.shape)}")
        else:
            shape = (1, *weight.shape) if form.is_single_row(canonical) else weight.shape
            weights[canonical] = Weight(canonical, weight.dtype, shape, weight.stored, weight.file)
    if unknown:
        raise CheckpointError(
            f"{path}: has {len(unknown)} tensors that no {form.architecture} model has: {listed(unknown)}; each would "
            "change the result, so none is ignored; take another file of the model, or report it"
        )
    return weights
