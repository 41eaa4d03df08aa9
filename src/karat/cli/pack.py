"""`karat pack`: a model's matrices as kernels read them, in a file that is mapped from then on."""

from pathlib import Path
from typing import Annotated

import typer

from karat.cli.options import OverrideOptions
from karat.cli.progress import Progress
from karat.cli.terminal import bytes_text, emit, note

EXAMPLES = """
Examples

  karat pack ./my-model.gguf --packed-cache ~/packed
  karat run ./my-model.gguf --packed-cache ~/packed "Once upon a time"
  karat pack ./my-model.gguf --packed-cache ~/packed --verify
"""


def pack(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or a name on the hub.")],
    packed_cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of packed files (default: karat/packed in the user's cache)."),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Quantise matrices on the way: q8_0 or q4_0.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Write nothing: hash all matrices of the file, and say whether they are right."),
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no hint.")] = False,
    *,
    words: OverrideOptions,
) -> None:
    """Write the matrices of a model once, as kernels read them.

    Commands with the same --packed-cache map the file: the first token comes at once when its pages are in memory,
    processes share these, and experts that nobody chooses are never read. No bit of an answer changes. If the model's
    own files have changed since, the packed one is written anew. A failure leaves no file.
    """
    from karat.checkpoint import resolve
    from karat.config import packed_cache_path
    from karat.engine.model_loading.llm_options import Options
    from karat.engine.model_loading.packing import plan_packing
    from karat.engine.model_running import Preparation
    from karat.models.opening import open_model
    from karat.models.registry import read_config
    from karat.ops.registry import create

    Options(quantize=quantize)  # type: ignore[arg-type]  # checks it
    checkpoint = open_model(resolve(model, progress=not quiet), words.overrides())
    if (told := words.idle_texts("a packed file has matrices alone")) is not None and not quiet:
        note(told)
    progress = Progress(quiet=quiet)

    def tell(done: int, total: int) -> None:
        progress(f"{100 * done // max(total, 1):3} %  {bytes_text(done)} of {bytes_text(total)}")

    try:
        plan = plan_packing(
            packed_cache or packed_cache_path(),
            read_config(checkpoint.config),
            checkpoint,
            create("native"),
            Preparation(quantize, quiet=verify),
            quantize=quantize,
        )
        packed = plan.verified() if verify else plan.written(tell)
    finally:
        progress.clear()
    emit(f"{packed.path}\n")
    if not quiet:
        done = ", all of them as they were packed" if verify else f"; --packed-cache {packed.path.parent} maps them"
        note(f"{bytes_text(packed.num_bytes)} of matrices{done}")
