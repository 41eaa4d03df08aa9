"""The commands, put together."""

from collections.abc import Callable, Iterable
from inspect import cleandoc
from typing import Annotated, Any

import typer

from karat import __version__
from karat.cli import bench, chat, check, convert, diagnose, env, inspect, perplexity, pull, run, topics, trace
from karat.cli.options import Debug, unfolded
from karat.cli.terminal import emit, writing

_EXAMPLES = """
Examples

  karat run "Once upon a time"             go on with a text
  karat run --chat "Tell me a story about a fox and a lantern."
  karat run org/name --chat "Why is the sky blue?"
  karat chat                               talk
  karat inspect                            what is in a model, and its memory
  karat convert org/name out.gguf --quant Q4_K_M
  karat COMMAND --help                     more on a command
  karat help exit-codes                    what the exit codes mean
"""


class _Command(typer.core.TyperCommand):
    """Its help, which rich writes, fails as all other output does, and shows flags without a value."""

    def format_help(self, ctx: typer.Context, *args: Any) -> None:  # type: ignore[override]
        _show_no_value_of_flags(self.get_params(ctx))
        with writing():
            super().format_help(ctx, *args)


class _Group(typer.core.TyperGroup):
    """The same for the help of them all."""

    def format_help(self, ctx: typer.Context, *args: Any) -> None:  # type: ignore[override]
        _show_no_value_of_flags(self.get_params(ctx))
        with writing():
            super().format_help(ctx, *args)


def _show_no_value_of_flags(parameters: Iterable[object]) -> None:
    """Typer would write `<bool>` after a flag, as if it took a value."""
    for parameter in parameters:
        if isinstance(parameter, typer.core.TyperOption) and parameter.is_flag:
            parameter.metavar = ""


def command() -> typer.core.TyperGroup:
    """The whole command line, as typer parses it."""
    app = typer.Typer(
        cls=_Group,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=_EXAMPLES,
    )
    app.callback(invoke_without_command=True, help=_flowing(_karat))(_karat)
    for name, function, examples in _COMMANDS:
        settings = {"allow_extra_args": name == "run"}  # its words are counted by karat.cli.sources, with a remedy
        flowing = _flowing(function)
        register = app.command(name, cls=_Command, help=flowing, epilog=examples, context_settings=settings)
        register(unfolded(function))
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def _show_version(value: bool) -> None:
    if value:
        emit(f"karat {__version__}\n")
        raise typer.Exit


def _karat(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Debug = False,
) -> None:
    """Run language models whose answers can be trusted.

    MODEL is a folder, or org/name of the Hugging Face hub; left out, it is the small storyteller that comes with Karat.
    """
    if ctx.invoked_subcommand is None:
        ctx.command.make_context("karat", ["--help"])


def _flowing(function: Callable[..., None]) -> str:
    """The docstring with each paragraph on one line, for the help to wrap as wide as the terminal is."""
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("run", run.run, run.EXAMPLES),
    ("chat", chat.chat, chat.EXAMPLES),
    ("inspect", inspect.inspect, inspect.EXAMPLES),
    ("bench", bench.bench, bench.EXAMPLES),
    ("convert", convert.convert, convert.EXAMPLES),
    ("pull", pull.pull, pull.EXAMPLES),
    ("check", check.check, check.EXAMPLES),
    ("trace", trace.trace, trace.EXAMPLES),
    ("diagnose", diagnose.diagnose, diagnose.EXAMPLES),
    ("perplexity", perplexity.perplexity, perplexity.EXAMPLES),
    ("env", env.env, env.EXAMPLES),
    ("help", topics.show_help, topics.EXAMPLES),
)
