"""`karat inspect`: the contents of a model and the memory that it needs, from its configs and headers alone."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.generation import NO_DEFAULTS
from karat.cli.inspect_rows import config_rows, memory_of, memory_text
from karat.cli.options import GenerationConfig, OverrideOptions, generation_source
from karat.cli.terminal import bytes_text, columns, emit
from karat.config import DEFAULT_ACTIVATIONS, FLOAT_BYTES, ModelConfig, embedded_model_path
from karat.errors import TemplateError

if TYPE_CHECKING:
    from karat.checkpoint import ModelCheckpoint, Weight
    from karat.engine.model_loading.llm_options import GenerationSource
    from karat.text import Tokenizer

EXAMPLES = """
Examples

  karat inspect                      the embedded model
  karat inspect ./my-model --tensors
  karat inspect org/name --json | jq .memory
  karat inspect config.json          before a download: whether it runs
  karat inspect model.gguf --tensor-parallel-size 4   and each rank's share
"""

_MAX_CHARS = 80
_LAYER = re.compile(r"\.\d+\.")
_HELLO = [{"role": "user", "content": "Hello"}]


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A folder, a GGUF file, a name on the hub, or a config.json alone."),
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="One line for each tensor, not for each kind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with every tensor.")] = False,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Show also what each of N ranks would hold of every tensor.", show_default=False
        ),
    ] = None,
    generation_config: GenerationConfig = None,
    *,
    words: OverrideOptions,
) -> None:
    """Show a model's configuration, tensors, tokenizer, and the memory it needs.

    Everything is checked as before a run, but no weight is read. A model that cannot run ends in the same error. Of a
    config.json alone: whether such a model runs, and the memory that it would take.
    """
    from karat.checkpoint import resolve
    from karat.cli.inspect_ranks import ranks_of, ranks_text
    from karat.models.opening import open_model

    if model is not None and model.endswith(".json") and Path(model).is_file():
        from karat.cli.inspect_config import as_text, facts_of_config

        told = facts_of_config(Path(model), words.overrides())
        emit(json.dumps(told, indent=2, ensure_ascii=False) + "\n" if as_json else as_text(told))
        return
    checkpoint = open_model(resolve(model) if model is not None else embedded_model_path(), words.overrides())
    facts = gather(checkpoint, generation_source(generation_config))
    if tensor_parallel_size is not None:
        facts["ranks"] = ranks_of(checkpoint, tensor_parallel_size)
    emit(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if as_json else _as_text(facts, tensors))
    if tensor_parallel_size is not None and not as_json:
        emit("\n" + ranks_text(facts["ranks"], tensors))


def gather(checkpoint: "ModelCheckpoint", source: "GenerationSource" = "auto") -> dict[str, Any]:
    """All facts, for JSON. Raises the errors that running the model would raise before it loads weights."""
    from karat.models.opening import passed_over
    from karat.models.registry import find_weights, read_config

    config = read_config(checkpoint.config)
    needed = {weight.name: weight for weight in find_weights(config, checkpoint).values()}  # a tied weight once
    num_parameters = sum(math.prod(weight.shape) for weight in needed.values())
    part_of = {id(weight): part.name for part, unused in checkpoint.unused.items() for weight in unused}
    weights = [*checkpoint.weights.values(), *_others(checkpoint)]
    by_dtype: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "parameters": 0, "bytes": 0})
    for weight in weights:
        row = by_dtype[weight.dtype]
        row["tensors"] += 1
        row["parameters"] += math.prod(weight.shape)
        row["bytes"] += weight.num_bytes
    return {
        "path": str(checkpoint.path),
        "config": asdict(config),
        "generation_config": checkpoint.generation_config,
        "parameters": num_parameters,
        "stored_bytes": sum(weight.num_bytes for weight in weights),
        "stored_by_dtype": by_dtype,
        "tensors": [
            {
                "name": w.name,
                "dtype": w.dtype,
                "shape": w.shape,
                "bytes": w.num_bytes,
                "file": w.file.name,
                "unused": part_of.get(id(w)),
            }
            for w in weights
        ],
        "tokenizer": _tokenizer(checkpoint, config, source),
        **_numbers(config, needed),
        "memory": memory_of(config, num_parameters, sum(map(_held_bytes, needed.values()))),
        **_gguf_facts(checkpoint),
        "overrides": checkpoint.overrides.described(),
        "warnings": checkpoint.warnings,
        "note": passed_over(checkpoint),
    }


def _numbers(config: ModelConfig, needed: "Mapping[str, Weight]") -> dict[str, Any]:
    """What the native executor's linear layers read, and the last numeric contract that changed the model's bits."""
    from karat.models.cut_units import cut_units, experts_by_columns
    from karat.ops.contract import activations_read, contract_of

    types = {weight.dtype for weight in needed.values() if len(weight.shape) > 1}
    by_columns = experts_by_columns(cut_units(config, needed))
    activations = activations_read(types, DEFAULT_ACTIVATIONS)
    return {"activations": activations, "numeric_contract": contract_of(config, types, by_columns, activations)}


def _others(checkpoint: "ModelCheckpoint") -> list["Weight"]:
    """Tensors of the files that are no weights of the model."""
    from karat.checkpoint import GgufCheckpoint

    factors = checkpoint.rope_factors if isinstance(checkpoint, GgufCheckpoint) else None
    unused = [weight for weights in checkpoint.unused.values() for weight in weights]
    return unused if factors is None else [factors, *unused]


def _held_bytes(weight: "Weight") -> int:
    """Bytes of a weight in memory: as in the file, or of float32 if its type has no kernels."""
    from karat.machine.extension import native, unavailable_reason

    if unavailable_reason() is None and weight.dtype not in native().formats():
        return math.prod(weight.shape) * FLOAT_BYTES["float32"]
    return weight.num_bytes


def _gguf_facts(checkpoint: "ModelCheckpoint") -> dict[str, Any]:
    """The metadata of a GGUF file, with arrays by their length and kind."""
    from karat.checkpoint import GgufCheckpoint
    from karat.checkpoint.gguf import GgufArray

    if not isinstance(checkpoint, GgufCheckpoint):
        return {}
    values = checkpoint.metadata.values.items()
    metadata = {key: f"{value.len} {value.kind}" if isinstance(value, GgufArray) else value for key, value in values}
    return {"metadata": metadata}


def _tokenizer(checkpoint: "ModelCheckpoint", config: ModelConfig, source: "GenerationSource") -> dict[str, Any]:
    from karat.engine.model_loading.defaults import defaults_of, turn_end_ids
    from karat.text import Tokenizer

    tokenizer = Tokenizer.of(checkpoint)
    defaults = defaults_of(checkpoint, config, tokenizer, source)

    def tokens(ids: Iterable[int]) -> dict[str, str]:
        return {str(id_): tokenizer.decode([id_], skip_special_tokens=False) for id_ in sorted(ids)}

    return {
        "kind": "byte-level BPE" if tokenizer.is_byte_level else "SentencePiece or other",
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.special_tokens,
        "special_ids": sorted(tokenizer.special_ids),
        "end_tokens": tokens(defaults.end_token_ids),
        "chat_end_tokens": tokens(defaults.end_token_ids | turn_end_ids(tokenizer)),
        **_chat_facts(tokenizer),
        "sampling": defaults.notice or NO_DEFAULTS,
        "notes": (*tokenizer.notes, *tokenizer.remarks),
    }


def _chat_facts(tokenizer: "Tokenizer") -> dict[str, Any]:
    """The length of the chat template and its rendering of a greeting, or the reason why there is none; text needs
    no template.
    """
    source = tokenizer.template_source
    example, error = None, None
    try:
        example = tokenizer.render_chat(_HELLO) if source is not None else None
    except TemplateError as fault:
        error = str(fault)
    chars = None if source is None else len(source)
    return {"chat_template_chars": chars, "chat_example": example, "chat_error": error}


def _as_text(facts: dict[str, Any], all_tensors: bool) -> str:
    by_dtype = facts["stored_by_dtype"].items()
    stored = ", ".join(f"{name} {bytes_text(row['bytes'])} in {row['tensors']} tensors" for name, row in by_dtype)
    parts = [
        [("model", facts["path"]), *config_rows(facts["config"])],
        [
            ("parameters", f"{facts['parameters']:,}"),
            ("stored", stored),
            ("activations", f"{facts['activations']}, by numeric contract {facts['numeric_contract']}"),
        ],
        _tokenizer_rows(facts["tokenizer"]),
    ]
    if "metadata" in facts:
        parts.append([(key, _one_line(value)) for key, value in facts["metadata"].items()])
    parts.append([("override", f"{key}={_one_line(value)}") for key, value in facts["overrides"].items()])
    parts.append([("warning", warning) for warning in facts["warnings"]])
    parts.append([("note", facts["note"])] if facts["note"] is not None else [])
    width = max(len(name) for part in parts[:3] for name, _ in part)
    texts = [columns((name.ljust(width), value) for name, value in part) for part in parts if part]
    texts.append(columns(_tensor_rows(facts["tensors"], all_tensors), right="3"))
    texts.append(memory_text(facts["memory"]))
    return "\n\n".join(texts) + "\n"


def _one_line(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_CHARS and text.isprintable() else json.dumps(text[:_MAX_CHARS]) + "…"


def _tokenizer_rows(tokenizer: dict[str, Any]) -> list[tuple[str, str]]:
    def listed(tokens: dict[str, str]) -> str:
        return ", ".join(f"{token} ({id_})" for id_, token in tokens.items()) or "none"

    chars, example, error = (tokenizer[key] for key in ("chat_template_chars", "chat_example", "chat_error"))
    made = f"makes {example!r} of a greeting" if error is None else f"which cannot greet: {error}"
    roles = ", ".join(f"{role} {token}" for role, token in tokenizer["special_tokens"].items())
    return [
        ("tokenizer", f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens"),
        ("special tokens", roles or "none"),
        ("end tokens", listed(tokenizer["end_tokens"])),
        ("end tokens in a chat", listed(tokenizer["chat_end_tokens"])),
        ("chat template", "none" if chars is None else f"{chars:,} characters, {made}"),
        ("defaults", tokenizer["sampling"]),
        *(("tokenizer note", note) for note in tokenizer["notes"]),
    ]


def _tensor_rows(tensors: Iterable[dict[str, Any]], all_tensors: bool) -> list[tuple[str, ...]]:
    """A line a tensor, or a line for all layers' tensors of one name, type and shape."""
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for tensor in tensors:
        name = tensor["name"] if all_tensors else _LAYER.sub(".*.", tensor["name"])
        unused = "" if tensor["unused"] is None else f"not used: {tensor['unused']}"
        groups[name, tensor["dtype"], " × ".join(map(str, tensor["shape"])), unused].append(tensor["bytes"])
    rows = []
    for (name, dtype, shape, unused), sizes in groups.items():
        count = f"{len(sizes)} tensors" if len(sizes) > 1 else ""
        rows.append((name, dtype, shape, bytes_text(sum(sizes)), ", ".join(filter(None, (count, unused)))))
    return [("tensor", "type", "shape", "bytes", ""), *rows]
