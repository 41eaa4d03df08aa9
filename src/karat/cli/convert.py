"""`karat convert`: a model as a GGUF file, quantised if asked."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from karat.cli.options import GenerationConfig, OverrideOptions, generation_source
from karat.cli.progress import Progress
from karat.cli.terminal import bytes_text, columns, emit, note, require_folder_of
from karat.errors import UsageError

if TYPE_CHECKING:
    from karat.convert import TensorReport

EXAMPLES = """
Examples

  karat convert ./my-model --quant Q8_0       writes my-model-Q8_0.gguf
  karat convert org/name name-Q4_K_M.gguf --quant Q4_K_M
  karat convert model-F16.gguf model-Q6_K.gguf --quant Q6_K
"""

_TYPES = """
F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, IQ4_NL, IQ4_XS, MXFP4_MOE, Q4_1, Q4_0, Q3_K_L,
Q3_K_M, Q3_K_S or Q2_K.
"""


def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or a name on the hub.")],
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT.gguf",
            help="The file to write; it must not exist. Left out: NAME-TYPE.gguf in the current folder.",
            show_default=False,
        ),
    ] = None,
    word: Annotated[str | None, typer.Argument(metavar="TYPE", help="As --quant.")] = None,
    quant: Annotated[str | None, typer.Option("--quant", metavar="TYPE", help=_TYPES, show_default=False)] = None,
    pure: Annotated[bool, typer.Option("--pure", help="The same type for all matrices, the head too.")] = False,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Quantise quantised tensors again; this loses more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no report.")] = False,
    generation_config: GenerationConfig = None,
    *,
    words: OverrideOptions,
) -> None:
    """Write a model as a GGUF file.

    Types such as Q4_K_M are llama.cpp's mixes: a larger type where an error costs more. The report says what became
    of each tensor, and by how much its values changed. What --override, --rope-scaling and --chat-template say becomes
    part of the file; it has no place for --template-arg, which is told. A failure leaves no file.
    """
    from karat.checkpoint import resolve
    from karat.convert import MIXES
    from karat.convert import convert as write
    from karat.models.opening import open_model

    if word is not None and quant is not None:
        raise UsageError(f"both {word} and --quant {quant}; give one of them")
    chosen = word or quant
    if chosen is None or (mix := MIXES.get(chosen.upper())) is None:
        raise UsageError(f"--quant {chosen or 'is missing'}: expected one of {', '.join(MIXES)}")
    if out is None:
        out = Path(f"{_name_of(model, MIXES)}-{chosen.upper()}.gguf")
    require_folder_of(out)
    with_sampling = generation_source(generation_config) == "auto"
    if words.template_arg and not quiet:
        note("--template-arg has no effect: a GGUF file has no place for it; say it again where the file is used")
    source = open_model(resolve(model, progress=not quiet), words.overrides())
    progress = Progress(quiet=quiet)

    def tell(report: "TensorReport", done: int, total: int) -> None:
        progress(f"{100 * done // max(total, 1):3} %  {report.name}")

    progress("reading the model")
    try:
        done = write(source, out, mix, pure=pure, requantize=requantize, with_sampling=with_sampling, progress=tell)
    finally:
        progress.clear()
    for warning in done.warnings:
        note(warning)
    if as_json:
        facts = {"path": str(out), "bytes": out.stat().st_size, "tensors": [asdict(tensor) for tensor in done.tensors]}
        emit(json.dumps(facts, indent=2) + "\n")
    elif not quiet:
        emit(_as_text(done.tensors, out))


def _name_of(model: str, types: Collection[str]) -> str:
    """The name of a folder, of a file or on the hub, without the type that it ends with."""
    path = Path(model)
    name = path.name if path.name not in ("", "..") else path.resolve().name
    name = name.partition(":")[0].removesuffix(".gguf")
    before, _, last = name.rpartition("-")
    return before if before and last.upper() in types else name


def _as_text(tensors: Iterable["TensorReport"], out: Path) -> str:
    rows = [
        (
            t.name,
            t.source_dtype,
            t.dtype,
            " × ".join(map(str, t.shape)),
            bytes_text(t.num_bytes),
            _percent(t.error),
            t.reason or "",
        )
        for t in tensors
    ]
    by_type: dict[str, list[Any]] = defaultdict(list)
    for tensor in tensors:
        by_type[tensor.dtype].append(tensor)
    num_values = sum(math.prod(t.shape) for t in tensors)
    bits = 8 * sum(t.num_bytes for t in tensors) / num_values
    summary = ", ".join(f"{len(found)} {dtype}" for dtype, found in by_type.items())
    table = columns([("tensor", "from", "to", "shape", "bytes", "error", ""), *rows], right="45")
    return f"{table}\n\n{out}: {bytes_text(out.stat().st_size)}, {bits:.2f} bits a value; tensors: {summary}\n"


def _percent(error: float) -> str:
    return f"{100 * error:.3g} %" if error else "0"
