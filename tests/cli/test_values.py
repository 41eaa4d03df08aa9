"""Plain words are read without pydantic, and mean what typer would have made of them."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from karat.cli.app import command
from karat.cli.values import read_plainly

WORDS = [
    "",
    "3",
    "-3",
    " 3",
    "3 ",
    "+3",
    "03",
    "3_0",
    "1e3",
    "0x1",
    "3.5",
    ".5",
    "5.",
    "-0",
    "-0.0",
    "nan",
    "inf",
    "9" * 30,
    "1" * 18,
    "0." + "3" * 30,
    "é",
    "x",
    "True",
    "\uff11",
    "\u0663",
    "a\nb",
    "byte \udc80",
    "1.5e400",
    "0" * 5000 + "1",
]
PROGRAM = """
import sys
from karat.cli import main
code = main(["run", "--temperature", "0.5", "--max-tokens", "3", "--stop", "x", "-q", "-p", "hello"])
heavy = {"pydantic", "rich", "secrets", "tempfile", "karat.cli.bench", "karat.check", "huggingface_hub"}
print("code", code, sorted(heavy & set(sys.modules)))
"""


def parse(words: list[str], *, plainly: bool) -> Any:
    """What a command of every kind of parameter gets from `words`, or the fault that it finds."""
    got: dict[str, Any] = {}
    app = typer.Typer(add_completion=False)

    @app.command()
    def use(
        first: Annotated[str | None, typer.Argument()] = None,
        text: Annotated[str | None, typer.Option()] = None,
        whole: Annotated[int | None, typer.Option()] = None,
        least: Annotated[int, typer.Option(min=1, max=5)] = 2,
        real: Annotated[float, typer.Option()] = 0.5,
        texts: Annotated[list[str] | None, typer.Option()] = None,
        wholes: Annotated[list[int] | None, typer.Option()] = None,
        path: Annotated[Path | None, typer.Option()] = None,
        flag: Annotated[bool, typer.Option("--flag")] = False,
        unset: Annotated[bool | None, typer.Option("--unset")] = None,
    ) -> None:
        got.update(locals())

    made = typer.main.get_command(app)
    if plainly:
        read_plainly(made.params)
    try:
        with made.make_context("use", list(words)) as context:
            context.command.invoke(context)
    except typer.TyperException as fault:
        return type(fault), fault.format_message()
    return {name: (type(value), repr(value)) for name, value in got.items() if name not in ("app", "got")}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("option", ["", "--text", "--whole", "--least", "--real", "--texts", "--wholes", "--path"])
def test_words_mean_what_typer_makes_of_them(option: str) -> None:
    for word in WORDS:
        words = [f"{option}={word}"] if option else ["--", word]
        assert parse(words, plainly=True) == parse(words, plainly=False), (option, word)
    if option.endswith("s"):
        words = [f"{option}=1", f"{option}=2"]
        assert parse(words, plainly=True) == parse(words, plainly=False)


@pytest.mark.parametrize("words", [[], ["--flag", "--unset"], ["--nosuch"], ["a", "b"], ["--whole"]])
def test_what_is_not_given_stays_so(words: list[str]) -> None:
    assert parse(words, plainly=True) == parse(words, plainly=False)


def test_a_start_imports_neither_pydantic_nor_other_commands() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("\ncode 0 []\n"), done.stdout + done.stderr


def test_the_command_asked_for_is_the_same_alone_and_among_all() -> None:
    everything = command().commands
    for name in everything:
        alone = command([name, "--help"])
        assert list(alone.commands) == ([name] if name != "help" else list(everything))
        for one, other in zip(alone.commands[name].params, everything[name].params, strict=True):
            assert (one.opts, one.nargs, one.help) == (other.opts, other.nargs, other.help)
    for args in ([], ["--help"], ["nosuch"], ["--debug", "run"]):
        assert list(command(args).commands) == list(everything)
