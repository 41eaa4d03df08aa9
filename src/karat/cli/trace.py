"""`karat trace`: what a model computes between token ids and logits, in one file."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.options import Device, HostLayers, OverrideOptions
from karat.cli.terminal import bytes_text, emit, note, require_folder_of
from karat.cli.traced_model import model_named_by
from karat.errors import UsageError

if TYPE_CHECKING:
    from karat.check.model.checked import CheckedModel
    from karat.check.trace.format import Trace
    from karat.checkpoint.overrides import Overrides

EXAMPLES = """
Examples

  karat trace -o ours.trace                    the embedded model, by Karat
  karat trace ./my-model --prompt "Hello"      another model, on this text
  karat trace ./my-model --with hf             the same by transformers
  karat trace model.gguf --with llama.cpp      every result that it names
  karat trace org/name --chunk 16 --decode 4 --layers 0,5-7
  karat trace ./my-model --only-tokens 0,5,17-20,-1
  karat trace ./my-model --validate engine.trace   what another's trace lacks

docs/trace-format.md says how another engine writes one in ten lines of NumPy.
"""

DEFAULT_PROMPT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


def trace(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or org/name.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")] = None,
    source: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="NAME",
            help="Who computes: karat, hf (transformers), llama.cpp (GGUF).",
        ),
    ] = "karat",
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The text to compute.")] = None,
    token_ids: Annotated[str | None, typer.Option("--ids", metavar="I,J", help="Token ids instead of a text.")] = None,
    tokens: Annotated[int | None, typer.Option(metavar="N", help="At most N tokens of the prompt.")] = None,
    chunk: Annotated[int | None, typer.Option(metavar="N", help="Compute the prompt N tokens a step.")] = None,
    decode: Annotated[int, typer.Option(metavar="N", help="Then decode N tokens greedily.")] = 0,
    layers: Annotated[str | None, typer.Option(metavar="I,J-K", help="Only these layers.")] = None,
    heads: Annotated[str | None, typer.Option(metavar="I,J-K", help="Only these heads of scores and weights.")] = None,
    only_tokens: Annotated[
        str | None,
        typer.Option(metavar="I,J-K", help="Write only these tokens, of all that is computed; -1 is the last."),
    ] = None,
    logits: Annotated[int | None, typer.Option(metavar="N", help="Logits of the last N tokens only.")] = None,
    executor: Annotated[str, typer.Option(metavar="NAME", help="Karat's executor.")] = "auto",
    device: Device = None,
    host_layers: HostLayers = None,
    dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="Compute in this type (default: float32).")] = None,
    kv_dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="Keep keys and values in this type.")] = None,
    activations: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Read by weights in blocks: int16 (default), int24 or int8.")
    ] = None,
    validate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write nothing; say what this trace lacks.")
    ] = None,
    *,
    words: OverrideOptions,
) -> None:
    """Record what a model computes: embeddings, projections, RoPE, scores, layer outputs, logits.

    A trace can be compared and diagnosed (karat diagnose), wherever it was made.
    """
    if ctx.args:
        raise UsageError(f"{len(ctx.args) + 1} words, expected MODEL alone; give a text with --prompt, in quotes")
    if validate is not None:
        _validate(model, validate, words.overrides())
        return
    from karat.check.model.checked import open_model

    opened = open_model(model, words.overrides())
    if words.overrides().changes_model and source != "karat":
        raise UsageError(f"--with {source} reads the model's files alone; leave out --override and --rope-scaling")
    from karat.check.record.executors import Steps
    from karat.check.trace.selection import Selection, tokens_of
    from karat.check.trace.selection import only_tokens as with_only
    from karat.check.trace.writing import write_trace

    if source not in ("karat", "hf", "llama.cpp"):
        raise UsageError(f"--with {source}: expected karat, hf or llama.cpp")
    for name, value in (("--chunk", chunk), ("--tokens", tokens), ("--logits", logits)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: expected a number of at least 1")
    if decode < 0:
        raise UsageError(f"--decode {decode}: expected a number of at least 0")
    path = output or Path(f"{opened.path.name}-{source}.trace")
    require_folder_of(path)
    ids = _ids(opened, prompt, token_ids)[:tokens]
    chosen = numbers("--layers", layers)
    selection = Selection(None if chosen is None else frozenset(chosen), numbers("--heads", heads), logits)
    steps = Steps.chunked(ids, chunk, decode)
    kept = None if only_tokens is None else tokens_of(only_tokens, steps.total)
    types: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype, "activations": activations}
    types |= {"device": device, "host_layers": host_layers}
    made = _record(opened, source, steps, selection, executor, types)
    made = made if kept is None else with_only(made, kept)
    whole = token_ids is None and tokens is None
    made = _described(made, opened, (prompt or DEFAULT_PROMPT) if whole else None)
    write_trace(path, made)
    size = sum(array.nbytes for array in made.arrays.values())
    note(f"{made.info.executor}: {len(made.arrays)} arrays of {made.info.num_tokens} tokens, {bytes_text(size)}")
    for line in _signs(made):
        note(line)
    emit(f"{path}\n")


def _record(
    opened: "CheckedModel", source: str, steps: Any, selection: Any, executor: str, types: dict[str, Any]
) -> "Trace":
    dtype, kv_dtype = types["dtype"], types["kv_dtype"]
    of_executor = {name: types[name] for name in ("activations", "device", "host_layers")}
    for name, value in of_executor.items():
        if source != "karat" and value is not None:
            raise UsageError(
                f"--{name.replace('_', '-')}: only Karat's executors have a choice, and --with is {source}; leave it "
                "out"
            )
    if source == "hf":
        try:
            from karat.check.record.hf import load_hf, record_hf
        except ImportError as fault:
            raise UsageError(
                f"--with hf needs torch and transformers ({fault}): pip install torch transformers"
            ) from None
        if opened.path.is_file():
            raise UsageError(f"--with hf: transformers needs a folder, and {opened.path} is a file")
        if kv_dtype is not None:
            raise UsageError("--kv-dtype: transformers' cache has the type of --dtype; leave it out")
        return record_hf(load_hf(str(opened.path), dtype), steps, selection=selection)
    if source == "llama.cpp":
        from karat.check.record.llamacpp import record_llamacpp

        if not opened.path.is_file():
            raise UsageError(f"--with llama.cpp: it needs a GGUF file; make one of {opened.path} with karat convert")
        if dtype is not None or kv_dtype is not None:
            raise UsageError(
                "--dtype, --kv-dtype: llama.cpp computes in the types of the file, with a float32 cache; leave them out"
            )
        return record_llamacpp(opened.path, opened.stored, steps, selection=selection)
    from karat.check.record.executors import record
    from karat.config import FLOAT_BYTES
    from karat.ops.registry import create

    if kv_dtype is not None and kv_dtype not in FLOAT_BYTES:
        raise UsageError(f"--kv-dtype {kv_dtype}: expected one of {', '.join(FLOAT_BYTES)}")
    ops = create(executor, dtype or "float32", of_executor)
    return record(opened.config, opened.checkpoint, ops, steps, selection=selection, kv_dtype=kv_dtype)


def _signs(made: "Trace") -> Iterator[str]:
    """First checks of a trace: sums of attention weights, and the last token's logits over the whole vocabulary."""
    import numpy as np

    weights = [array for name, array in made.arrays.items() if name.endswith("self_attn.weights") and array.size]
    if weights:
        sums = [array.sum(axis=-1, dtype=np.float64) for array in weights]
        yield f"attention weights of a token sum to {min(map(np.min, sums)):.6f} … {max(map(np.max, sums)):.6f}"
    logits = made.arrays.get("lm_head")
    if logits is not None and logits.size:
        row = logits.reshape(-1, logits.shape[-1])[-1]
        first = ", ".join(f"{value:.4f}" for value in row[:5])
        yield (
            f"logits of the last token: {first}, …; smallest {row.min():.4f}, largest {row.max():.4f}, of token "
            f"{int(row.argmax())} of {row.size}"
        )


def _described(made: "Trace", opened: "CheckedModel", prompt: str | None) -> "Trace":
    from dataclasses import replace

    from karat.check.model.weights import digest
    from karat.check.trace.format import Trace

    info = made.info
    found = info.digest or digest(opened.stored)
    return Trace(replace(info, prompt=prompt, model=str(opened.path), digest=found), made.arrays)


def _ids(opened: "CheckedModel", prompt: str | None, token_ids: str | None) -> tuple[int, ...]:
    if token_ids is not None:
        if prompt is not None:
            raise UsageError("--ids and --prompt both say what to compute; give one")
        ids = numbers("--ids", token_ids, ordered=False) or ()
        if not ids or max(ids) >= opened.config.vocab_size:
            raise UsageError(f"--ids {token_ids}: expected ids from 0 to {opened.config.vocab_size - 1}")
        return ids
    from karat.text import Tokenizer

    encoded = tuple(Tokenizer.of(opened.checkpoint).encode(prompt or DEFAULT_PROMPT))
    if not encoded:
        raise UsageError("the prompt has no tokens; give another text")
    return encoded


def numbers(option: str, text: str | None, *, ordered: bool = True) -> tuple[int, ...] | None:
    """Numbers and ranges: "0,5-7". ordered: sorted, each once."""
    if text is None:
        return None
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected numbers and ranges, such as 0,5-7") from None
    return tuple(sorted(set(found))) if ordered else tuple(found)


def _validate(model: str | None, path: Path, overrides: "Overrides") -> None:
    from karat.check.model.checked import open_model
    from karat.check.model.roles import shortened
    from karat.check.replay.validate import validate
    from karat.check.trace.reading import read_trace
    from karat.checkpoint.wording import shown

    made = read_trace(path)
    opened = (model_named_by(made, overrides=overrides) if model is None else None) or open_model(model, overrides)
    found = validate(opened.graph, opened.weights(made.info.dtype), made)
    lines = [f"{path}: {found.num_arrays} arrays, {made.info.num_tokens} tokens", found.resolution]
    for misnamed in found.misnamed:
        meant = f"; is it {misnamed.meant}?" if misnamed.meant else ""
        lines.append(f"misnamed: {shown(misnamed.name)}: {misnamed.why}{meant}")
    if found.unknown:
        lines.append(f"not used, as no result is called so: {', '.join(map(shown, found.unknown))}")
    if found.missing:
        lines.append(f"not there: {shortened(found.missing, opened.graph)}")
    emit("\n".join(lines) + "\n")
    if found.misnamed:
        raise typer.Exit(1)
