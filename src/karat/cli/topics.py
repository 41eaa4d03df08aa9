"""`karat help`: a command's help, or a topic that belongs to no single command."""

from typing import Annotated

import typer

from karat.cli.exits import EXIT_CODES
from karat.cli.terminal import columns, emit
from karat.errors import UsageError

EXAMPLES = """
Examples

  karat help run            the same as karat run --help
  karat help exit-codes     what the exit codes mean
"""


def show_help(
    ctx: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="A command, or exit-codes.")] = None,
) -> None:
    """Explain a command, or the exit codes."""
    topic = " ".join(words or ()) or None
    if topic == "exit-codes":
        rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
        emit(columns([("code", "meaning"), *rows], right="0") + "\n")
        return
    root = ctx.find_root()
    commands = root.command.list_commands(root)  # type: ignore[attr-defined]
    if topic not in (None, *commands):
        raise UsageError(f"no help on {topic!r}; there is help on {', '.join(commands)} and exit-codes")
    with root.command.make_context("karat", [*([topic] if topic else []), "--help"], obj=root.obj) as context:
        context.command.invoke(context)
