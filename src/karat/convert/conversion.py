"""convert: from a model to a GGUF file, tensor by tensor and in pieces, so that it takes little memory."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from karat.checkpoint import GgufCheckpoint, ModelCheckpoint, Weight
from karat.checkpoint.gguf.form import ROPE_FACTORS, GgufForm, paired_rows
from karat.checkpoint.gguf.rope import NOT_TURNED, STORED_AS_FACTORS, llama3_factors
from karat.checkpoint.gguf.sampling import PREFIX as SAMPLING
from karat.checkpoint.gguf.sampling import sampling_values
from karat.checkpoint.gguf.writer import NewTensor, scalar, write_gguf
from karat.checkpoint.unused import remarks_on_unused
from karat.checkpoint.weights import PLAIN_BYTES
from karat.config import ModelConfig, ProportionalRope
from karat.convert.metadata import Pairs, different_in_llama_cpp, foreign_to_llama_cpp, model_pairs, rope_of
from karat.convert.mix import TypeMix, is_router, type_of
from karat.convert.restating import require_said, restated, with_template
from karat.convert.tokenizer import no_tokenizer_pairs, tokenizer_pairs
from karat.errors import ConfigError, NoTokenizerError, NumericsError, UsageError
from karat.models.decoder import weight_specs
from karat.models.end_tokens import stated_end_ids
from karat.models.families import FAMILIES
from karat.models.registry import find_weights, read_config
from karat.quant import FORMATS
from karat.text.tokenizer_files import read_tokenizer_files

Load = Callable[[], Weight]

_CHUNK_VALUES = 1 << 20
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_REPLACED = ("general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count")


@dataclass(slots=True)
class TensorReport:
    """The report on one tensor of the file, filled in while it is written; the matrices of all experts are one.

    `error` is the root mean square of the change of values over that of the values. `reason` says why the type is not
    the mix's base type; None if it is.
    """

    name: str
    source_dtype: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    reason: str | None = None
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of `convert`: a report on each tensor in the file's order, and warnings of facts that are lost."""

    tensors: list[TensorReport]
    warnings: list[str]


def convert(
    source: ModelCheckpoint,
    path: Path,
    mix: TypeMix,
    *,
    pure: bool = False,
    requantize: bool = False,
    with_sampling: bool = True,
    progress: Callable[[TensorReport, int, int], None] = lambda report, done, total: None,
) -> Conversion:
    """Writes `source` as the GGUF file `path`, its tensors in the types of `mix`.

    `pure` gives all matrices the same type, except that rows that are no whole blocks keep their type. A quantised
    tensor is quantised again only with `requantize`. Without `with_sampling` the file suggests no sampling, and what is
    wrong with generation_config.json is no error; its end tokens count if they can be read. `progress` is called after
    each piece of a tensor, with the bytes done and the bytes of all tensors. What the user says of `source` becomes
    part of the file; variables of the chat template have no place in it. Raises the errors of opening and of writing,
    ConfigError for what GGUF cannot state, UsageError for a quantised source without `requantize`, and NumericsError
    with the tensor's name for values that a type cannot hold. After an error there is no file.
    """
    config = read_config(source.config)
    form = FAMILIES[config.model_type].gguf
    weights = find_weights(config, source)
    reports: list[TensorReport] = []
    tensors: list[NewTensor] = []
    shape_of = _shapes(config)
    for new_name, stacked in _by_stored_name(weights, form).items():
        name, weight = stacked[0].name, stacked[0]
        dtype, reason = _chosen_type(mix, name, weight, config, pure=pure)
        shape = shape_of(stacked)
        if weight.is_quantised and dtype in FORMATS and dtype != weight.dtype and not requantize:
            why = f" ({reason})" if reason else ""
            raise UsageError(
                f"{weight.file}: {name} is quantised already, to {weight.dtype}; quantising it again to {dtype}{why} "
                "loses more: convert the original model, or ask for it (--requantize)"
            )
        report = TensorReport(form.canonical_name(new_name) or name, weight.dtype, dtype, shape, 0, reason)
        ordered = [stored_order(weight, config) for weight in stacked]
        tensors.append(NewTensor(new_name, dtype, shape, partial(_encoded, ordered, report)))
        report.num_bytes = tensors[-1].num_bytes
        reports.append(report)
    total = sum(report.num_bytes for report in reports)
    done = 0
    for number, (tensor, report) in enumerate(zip(tensors, reports, strict=True)):
        tensors[number] = replace(tensor, chunks=partial(_with_progress, tensor.chunks, progress, report, done, total))
        done += report.num_bytes
    if rope_of(config).rope_type in STORED_AS_FACTORS:
        tensors.append(rope_factors(config))
    tensors += stated_tensors(config)
    pairs, warnings = _pairs(source, config, with_sampling=with_sampling)
    pairs = with_template(pairs, source)
    is_quantised = any(report.dtype in FORMATS for report in reports)
    pairs.append(("general.file_type", scalar("UINT32", mix.file_type)))
    if is_quantised:
        pairs.append(("general.quantization_version", scalar("UINT32", 2)))
    write_gguf(path, pairs, tensors)
    try:
        require_said(path, source, config)
    except ConfigError:
        path.unlink()
        raise
    return Conversion(reports, warnings)


def _by_stored_name(weights: Mapping[str, Weight], form: GgufForm[Any]) -> dict[str, list[Weight]]:
    """Each weight once (a tied head is not a second weight), by the tensor that the file has of it."""
    found: dict[str, list[Weight]] = {}
    for name, weight in weights.items():
        if name == weight.name:
            stored = form.stored_name(name)
            assert stored is not None
            found.setdefault(stored, []).append(weight)
    return found


def _shapes(config: ModelConfig) -> Callable[[Sequence[Weight]], tuple[int, ...]]:
    """The shape of a tensor of the file that has these weights, which are alike."""
    form = FAMILIES[config.model_type].gguf
    others = {spec.source: spec.stored[-1] for spec in weight_specs(config) if spec.stored}

    def shape_of(stacked: Sequence[Weight]) -> tuple[int, ...]:
        shape = others.get(stacked[0].name, stacked[0].shape)
        if form.whole_of(stacked[0].name) != stacked[0].name:
            return sum(weight.shape[0] for weight in stacked), *shape[1:]
        shape = shape if len(stacked) == 1 else (len(stacked), *shape)
        return shape[1:] if form.is_single_row(stacked[0].name) else shape

    return shape_of


def _chosen_type(mix: TypeMix, name: str, weight: Weight, config: ModelConfig, *, pure: bool) -> tuple[str, str | None]:
    match = _LAYER.match(name)
    dtype = type_of(mix, name, weight.shape, int(match[1]) if match else None, config, pure=pure)
    if len(weight.shape) < 2 or dtype == mix.base:
        return dtype, None
    if dtype != "F32" and mix.base in FORMATS and weight.shape[-1] % FORMATS[mix.base].block_size:
        if pure and dtype == "F16" and weight.dtype in PLAIN_BYTES:  # as `--quantize` does
            dtype = weight.dtype
        return dtype, f"rows of {weight.shape[-1]} are no whole blocks of {mix.base}"
    return dtype, f"as {mix.name} has it"


def own_tensors(
    config: ModelConfig, weights: Mapping[str, Weight], dtype_of: Callable[[Weight], str], load: Callable[[str], Weight]
) -> list[NewTensor]:
    """The tensors of a file with the weights' own values, vectors in float32; the matrices of all experts are one.

    A weight is loaded when it is written, as `dtype_of` says.
    """
    form = FAMILIES[config.model_type].gguf
    tensors = []
    shape_of = _shapes(config)
    for stored_name, stacked in _by_stored_name(weights, form).items():
        shape = shape_of(stacked)
        is_float = len(stacked[0].shape) < 2 or is_router(stacked[0].name)
        loads = [partial(load, weight.name) for weight in stacked]
        dtype = "F32" if is_float else dtype_of(stacked[0])
        tensors.append(NewTensor(stored_name, dtype, shape, partial(_as_they_are, config, loads, is_float=is_float)))
    return tensors


def _as_they_are(config: ModelConfig, loads: Sequence[Load], *, is_float: bool) -> Iterator[NDArray[np.uint8]]:
    for load in loads:
        weight = stored_order(load(), config)
        if is_float:
            yield weight.to_array(np.dtype(np.float32)).astype("<f4", copy=False).reshape(-1).view(np.uint8)
        else:
            yield weight.data


def stored_order(weight: Weight, config: ModelConfig) -> Weight:
    """The weight as GGUF has it. Paired rows from a GGUF file are stored in its order already."""
    form = FAMILIES[config.model_type].gguf
    if not form.is_paired(weight.name):
        return form.as_stored(config, weight)
    if weight.row_order is not None:
        return replace(weight, row_order=None)
    match = _LAYER.match(weight.name)
    assert match, f"{weight.name}: rows are paired in layers alone"
    return replace(weight, row_order=partial(_pairing_rows, weight.shape[0], config.shape(int(match[1])).head_dim))


def _pairing_rows(num_rows: int, head_dim: int) -> NDArray[np.intp]:
    return np.argsort(paired_rows(num_rows, head_dim))


def _encoded(weights: Sequence[Weight], report: TensorReport) -> Iterator[NDArray[np.uint8]]:
    """The bytes of the tensor in the report's type. Fills in the report's error at the end."""
    lost = whole = 0.0
    for weight in weights:
        for values, encoded in _pieces(weight, report):
            if values is not None:
                back = Weight(
                    weight.name, report.dtype, (values.size // weight.shape[-1], weight.shape[-1]), encoded, weight.file
                )
                exact = values.astype(np.float64)
                lost += float(np.square(back.to_array(np.dtype(np.float64)).reshape(-1) - exact).sum())
                whole += float(np.square(exact).sum())
            yield encoded
        weight.release()
    report.error = math.sqrt(lost / whole) if whole else 0.0


def _pieces(weight: Weight, report: TensorReport) -> Iterator[tuple[NDArray[np.float32] | None, NDArray[np.uint8]]]:
    """Values and their bytes in the report's type. Of a weight that has the type already there are no values."""
    data = weight.data
    if weight.dtype == report.dtype:
        yield None, data
        return
    row_len = weight.shape[-1]
    row_bytes = weight.num_bytes // max(math.prod(weight.shape[:-1]), 1)
    rows = max(1, _CHUNK_VALUES // row_len)
    for start in range(0, len(data), rows * row_bytes):
        piece = data[start : start + rows * row_bytes]
        part = replace(weight, shape=(len(piece) // row_bytes * row_len,), stored=piece, row_order=None, made=None)
        if weight.is_quantised:
            part = replace(part, shape=(len(piece) // row_bytes, row_len))
        values = part.to_array(np.dtype(np.float32)).astype(np.float32, copy=False).reshape(-1)
        yield values, _encode(values, report, weight)


def _encode(values: NDArray[np.float32], report: TensorReport, weight: Weight) -> NDArray[np.uint8]:
    try:
        if (format_ := FORMATS.get(report.dtype)) is not None:
            return format_.quantize(values.reshape(-1, format_.block_size)).reshape(-1)
        if not np.isfinite(values).all():
            raise NumericsError("a value is not finite")
        match report.dtype:
            case "F32":
                return values.astype("<f4").view(np.uint8)
            case "F16":
                with np.errstate(over="ignore"):
                    halves = values.astype("<f2")
                if not np.isfinite(halves).all():
                    raise NumericsError(f"{values[~np.isfinite(halves)][0]:.6g} is beyond float16: take BF16 or F32")
                return halves.view(np.uint8)
            case _:
                return _to_bfloat16(values).view(np.uint8)
    except NumericsError as fault:
        raise NumericsError(f"{weight.file}: {report.name}: {fault}") from fault


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Finite float32 numbers rounded to bfloat16 (to nearest, ties to even), as 16 bits. NumericsError if too large."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    result = rounded.astype("<u2")
    if ((result & 0x7F80) == 0x7F80).any():
        raise NumericsError("a value is beyond bfloat16: take F32")
    return result


def _with_progress(
    chunks: Callable[[], Iterable[NDArray[np.uint8]]],
    progress: Callable[[TensorReport, int, int], None],
    report: TensorReport,
    done: int,
    total: int,
) -> Iterator[NDArray[np.uint8]]:
    """The chunks; `progress` is called after each. `done` bytes came before the first."""
    for chunk in chunks():
        yield chunk
        done += len(chunk)
        progress(report, done, total)


def rope_factors(config: ModelConfig) -> NewTensor:
    """The tensor rope_freqs.weight [head_dim / 2] with the RoPE factors of a scaling that is stored as such."""
    rope = rope_of(config)
    head_dim = next((each for each in config.shapes if each.rope == rope), config.shape(0)).head_dim
    if rope.rope_type == "factors":
        factors = np.array(rope.factors, "<f4")
    elif isinstance(rope, ProportionalRope):
        turned = np.arange(head_dim // 2) < rope.turned_pairs(head_dim)
        factors = np.where(turned, 1, NOT_TURNED).astype("<f4")
    else:
        factors = llama3_factors(
            rope.theta,
            head_dim,
            rope.factor,
            rope.low_freq_factor,
            rope.high_freq_factor,
            rope.original_max_position_embeddings,
        ).astype("<f4")
    return NewTensor(ROPE_FACTORS, "F32", factors.shape, lambda: [factors.view(np.uint8)])


def stated_tensors(config: ModelConfig) -> list[NewTensor]:
    """The tensors that hold numbers of the configuration: factors of a longrope, and what a form says is `repeated`."""
    form, arrays = FAMILIES[config.model_type].gguf, {}
    for name, factors in form.rope_factors(config).items():
        arrays[name] = np.array(factors, "<f4")
    for layer, shape in enumerate(config.shapes):
        for stored, key in form.repeated.items():
            number = 1.0 if key is None else getattr(config, key)
            arrays[f"blk.{layer}.{stored}.weight"] = np.full(shape.head_dim, number, "<f4")
    return [NewTensor(name, "F32", each.shape, partial(list, [each.view(np.uint8)])) for name, each in arrays.items()]


def _pairs(source: ModelCheckpoint, config: ModelConfig, *, with_sampling: bool) -> tuple[Pairs, list[str]]:
    unused = remarks_on_unused(source.unused)
    if isinstance(source, GgufCheckpoint):
        left_out = {*_REPLACED, "general.alignment"}
        pairs = []
        if unused:  # the layers that predict further tokens are left out
            arch = FAMILIES[config.model_type].gguf.architecture
            left_out |= {f"{arch}.block_count", f"{arch}.nextn_predict_layers"}
            pairs = [(f"{arch}.block_count", scalar("UINT32", config.num_layers))]
        kept = [pair for pair in restated(source, config) if pair[0] not in left_out]
        if not with_sampling:
            kept = [pair for pair in kept if not pair[0].startswith(SAMPLING)]
        return [*kept, *pairs], unused
    stated = source.generation_config
    if source.generation_fault is not None and with_sampling:
        raise source.generation_fault
    if not with_sampling:
        try:
            stated_end_ids(stated, config, None, source.generation_source)
        except ConfigError:
            stated = None
    pairs = model_pairs(config, source.path.resolve().name)
    try:
        files = read_tokenizer_files(source.path)
    except NoTokenizerError as fault:
        of_tokenizer, warnings = no_tokenizer_pairs(config, stated)
        warnings.append(f"the file has no tokenizer: {fault}")
    else:
        of_tokenizer, warnings = tokenizer_pairs(files, config, stated)
    warnings += unused
    if (reason := foreign_to_llama_cpp(config)) is not None:
        warnings.append(f"Karat reads the file, but llama.cpp does not: {reason}")
    if (difference := different_in_llama_cpp(config)) is not None:
        warnings.append(difference)
    sampling, lost = sampling_values((stated or {}) if with_sampling else {})
    if lost:
        warnings.append(f"GGUF does not carry {', '.join(lost)} of generation_config.json")
    return [*pairs, *((key, scalar(kind, value)) for key, kind, value in sampling), *of_tokenizer], warnings
