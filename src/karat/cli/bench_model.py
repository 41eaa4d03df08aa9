"""Options of `karat bench` that say which model is measured."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from karat.cli.options import OverrideOptions
from karat.cli.terminal import note
from karat.config import embedded_model_path
from karat.errors import UsageError

if TYPE_CHECKING:
    from karat.checkpoint.overrides import Overrides


def overrides_of(words: OverrideOptions, *, shape: str | None, peer: object) -> "Overrides":
    """What the user says of the model. UsageError where something else is measured that knows nothing of it."""
    overrides = words.overrides()
    if (told := words.idle_texts("nothing is asked in a chat")) is not None:
        note(told)
    if overrides.changes_model and shape is not None:
        raise UsageError(f"--shape {shape} has no files that --override or --rope-scaling speaks of; leave one out")
    if overrides.changes_model and peer is not None:
        raise UsageError("--peer reads the model's files alone; leave out --override and --rope-scaling, or --peer")
    return overrides


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """Random weights instead of a model."""

    shape: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Random weights instead: a shape of karat bench --shape, such as qwen2.5-0.5b, or tiny.",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Stored type of --shape: bf16 (default), f16, f32, q8_0, q4_0, or a mix such as q4_k_m.",
        ),
    ] = None

    def path(self, model: str | None, stack: ExitStack, *, quiet: bool) -> Path:
        """The folder or file of the model; that of a shape is there until `stack` is closed. UsageError."""
        from karat.checkpoint import resolve

        if self.shape is None:
            if self.weights is not None:
                raise UsageError("--weights says how --shape stores its weights; leave it out")
            return embedded_model_path() if model is None else resolve(model, progress=not quiet)
        if model is not None:
            raise UsageError(f"both a model ({model}) and --shape {self.shape}; give one of them")
        from karat.bench.shapes import write_shape

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="karat-bench-")))
        path = folder / f"{self.shape}-{self.weights or 'bf16'}.gguf"
        write_shape(path, self.shape, self.weights or "bf16")
        return path
