"""The commands, put together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from inspect import cleandoc
from itertools import compress
from typing import Annotated, Any

import typer

from karat import __version__
from karat.cli.habits import advice_on_command, translated, unread
from karat.cli.options import Debug, unfolded
from karat.cli.terminal import emit, tell, writing
from karat.cli.values import read_plainly
from karat.config import variables_named
from karat.errors import KaratError, UsageError

_EXAMPLES = """
Examples

  karat run "Once upon a time"             go on with a text
  karat run --chat "Tell me a story about a fox and a lantern."
  karat run org/name --chat "Why is the sky blue?"
  karat chat                               talk
  karat serve                              an OpenAI-compatible server
  karat batch in.jsonl -o out.jsonl        every request of a file
  karat inspect                            what is in a model, and its memory
  karat convert org/name out.gguf --quant Q4_K_M
  karat COMMAND --help                     more on a command
  karat help exit-codes                    what the exit codes mean
"""


_LIKE = 0.8  # as difflib counts: a letter that is wrong, missing or too many in a name of five


class _Plainer:
    """Comes before typer's classes of commands: plain values are read without pydantic, and a failure to write the
    help is that of other output.
    """

    def get_params(self, ctx: typer.Context) -> Any:
        return read_plainly(super().get_params(ctx))  # type: ignore[misc]

    def format_help(self, ctx: typer.Context, *args: Any) -> None:
        _show_no_value_of_flags(self.get_params(ctx))
        with writing():
            super().format_help(ctx, *args)  # type: ignore[misc]


class _Command(_Plainer, typer.core.TyperCommand):  # type: ignore[misc]
    """One command, which also takes what other engines call its options.

    An error about an argument of Python's has the name of the option that gave it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        options = [each for each in self.get_params(ctx) if isinstance(each, typer.core.TyperOption)]
        words = [each.name for each in self.get_params(ctx) if not isinstance(each, typer.core.TyperOption)]
        flags, valued = (
            {name for each in options if each.is_flag is is_flag for name in (*each.opts, *each.secondary_opts)}
            for is_flag in (True, False)
        )
        taken = translated(args, flags, valued, words, ctx.command.name)
        if not {"-q", "--quiet"} & set(args):
            for remark in (*taken.remarks, *filter(None, [unread(variables_named("LLAMA_ARG_"))])):
                tell(f"karat: {remark}")
        answer = f"{taken.advice}; see `{ctx.command_path} --help`"
        if taken.is_wrong:
            raise UsageError(answer)
        try:
            return super().parse_args(ctx, taken.args)
        except typer.TyperException as error:
            if taken.advice is None:
                _keep_what_is_like(error)
                raise
            raise UsageError(answer) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KaratError as error:
            for each in self.get_params(ctx):
                said = f"{each.name}={ctx.params.get(each.name)!r}: "
                if isinstance(each, typer.core.TyperOption) and str(error).startswith(said):
                    rest = (
                        str(error).removeprefix(said).replace("expected None or ", "expected ").replace(", or None", "")
                    )
                    error.args = (f"{each.opts[-1]} {ctx.params[each.name]}: {rest}", *error.args[1:])
                    break
            raise


def _keep_what_is_like(error: Exception) -> None:
    """Of the options that an error proposes, leave those that may be meant: no advice is better than a wrong one."""
    proposed: Sequence[str] = getattr(error, "possibilities", None) or ()
    given, *others = (
        name.lstrip("-").replace("_", "-").lower() for name in (getattr(error, "option_name", ""), *proposed)
    )
    like = [SequenceMatcher(None, given, other).ratio() >= _LIKE for other in others]
    if proposed:
        error.possibilities = [*compress(proposed, like)]  # type: ignore[attr-defined]


class _Group(_Plainer, typer.core.TyperGroup):  # type: ignore[misc]
    """The group of all commands. The name of a command may be two words, as `bench serve`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in _COMMANDS and (advice := advice_on_command(args[0])):
            raise UsageError(f"there is no command {args[0]}: {advice}; see `karat --help`")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, joined(args))


def _show_no_value_of_flags(parameters: Iterable[object]) -> None:
    """Typer would write `<bool>` after a flag, as if it took a value."""
    for parameter in parameters:
        if isinstance(parameter, typer.core.TyperOption) and parameter.is_flag:
            parameter.metavar = ""


def command(args: Sequence[str] = ()) -> typer.core.TyperGroup:
    """The command line as typer parses it: all commands, or only the one that `args` begins with."""
    app = typer.Typer(
        cls=_Group,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=_EXAMPLES,
    )
    app.callback(invoke_without_command=True, help=_flowing(_karat))(_karat)
    first = joined(args)[0] if args else None
    alone = first if first in _COMMANDS and first != "help" else None  # the help shows all commands
    for name in _COMMANDS if alone is None else [alone]:
        place, attribute = _COMMANDS[name]
        module = import_module(f"karat.cli.{place}")
        function: Callable[..., None] = getattr(module, attribute)
        settings = {"allow_extra_args": name in ("run", "trace")}  # these two count words themselves
        flowing = _flowing(function)
        register = app.command(name, cls=_Command, help=flowing, epilog=module.EXAMPLES, context_settings=settings)
        register(unfolded(function))
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def joined(args: Sequence[str]) -> list[str]:
    """The arguments with the two words of a command's name as one."""
    name = " ".join(args[:2])
    return [name, *args[2:]] if len(args) > 1 and name in _COMMANDS else list(args)


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

    MODEL is a folder, a GGUF file, or org/name of the Hugging Face hub; left out, it is the small storyteller that
    comes with Karat.
    """
    if ctx.invoked_subcommand is None:
        ctx.command.make_context("karat", ["--help"])


def _flowing(function: Callable[..., None]) -> str:
    """The docstring with each paragraph on one line, for the help to wrap as wide as the terminal is."""
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


# Of each command its module, and its function there. Modules are imported when their command is asked for.
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "run"),
    "chat": ("chat", "chat"),
    "serve": ("serve", "serve"),
    "batch": ("batch", "batch"),
    "inspect": ("inspect", "inspect"),
    "bench": ("bench", "bench"),
    "bench serve": ("bench_serve", "bench_serve"),
    "bench throughput": ("bench_throughput", "bench_throughput"),
    "convert": ("convert", "convert"),
    "pull": ("pull", "pull"),
    "pack": ("pack", "pack"),
    "check": ("check", "check"),
    "trace": ("trace", "trace"),
    "diagnose": ("diagnose", "diagnose"),
    "verify": ("verify", "verify"),
    "perplexity": ("perplexity", "perplexity"),
    "env": ("env", "env"),
    "help": ("topics", "show_help"),
}
