"""The help teaches: every option, every field of SamplingParams, examples that parse; and it is quick.

Covers: karat.cli.app, karat.cli.options, karat.cli.sampling_options.
"""

import dataclasses
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from karat import AsyncLLM
from karat.cli.app import command, joined
from karat.cli.options import Invocation, LoadOptions, ServeOptions
from karat.engine.model_loading.llm_options import Options
from karat.engine.model_loading.load_plan import MAX_STEP_MS
from karat.request import SamplingParams
from karat.server.settings import ServerLimits, ServerSettings
from tests.cli.conftest import Karat, environment

COMMANDS = sorted(command().commands)


def test_the_commands() -> None:
    assert COMMANDS == [
        "batch",
        "bench",
        "bench serve",
        "bench throughput",
        "chat",
        "check",
        "convert",
        "diagnose",
        "env",
        "help",
        "inspect",
        "pack",
        "perplexity",
        "pull",
        "run",
        "serve",
        "trace",
        "verify",
    ]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_an_example_is_in_the_help(name: str, karat_here: Karat) -> None:
    done = karat_here(*name.split(), "--help")
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    options = [option for parameter in command().commands[name].params for option in parameter.opts]
    assert "--debug" in options
    for option in options:
        if option.startswith("-"):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", done.stdout), option
    assert f"karat {name}" in done.stdout.partition("Examples")[2]
    assert "…" not in done.stdout.partition("Examples")[0], "an option is cut off at 80 columns"
    assert "<bool>" not in done.stdout, "a flag has no value"
    assert karat_here("help", *name.split()).stdout == done.stdout


@pytest.mark.parametrize("name", ["bench", "chat", "check", "perplexity", "run", "serve", "trace", "verify"])
def test_what_computes_takes_activations(name: str) -> None:
    assert any("--activations" in parameter.opts for parameter in command().commands[name].params)


def test_every_sampling_parameter_is_an_option_of_run(karat_here: Karat) -> None:
    text = karat_here("run", "--help").stdout
    for field in dataclasses.fields(SamplingParams):
        others = {"skip_special_tokens": "no_skip_special_tokens", "structured_outputs": "json_schema"}
        name = others.get(field.name, field.name)
        assert f"--{name.replace('_', '-')} " in text


@pytest.mark.parametrize(
    ("args", "given"), [((), {}), (("--no-enable-prefix-caching",), {"enable_prefix_caching": False})]
)
def test_arguments_for_the_model(args: tuple[str, ...], given: dict[str, object]) -> None:
    with command().commands["run"].make_context("run", [*args, "x"], obj=Invocation()) as context:
        names = (field.name for field in dataclasses.fields(LoadOptions))
        assert LoadOptions(**{name: context.params[name] for name in names}).given() == given


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_examples_keep_their_lines_at_80_columns(name: str, karat_here: Karat) -> None:
    entry = command().commands[name] if name else command()
    shown = [line.strip() for line in karat_here(*name.split(), "--help", COLUMNS="80").stdout.splitlines()]
    for line in (entry.epilog or "").splitlines():
        assert line.strip() in shown, line


@pytest.mark.parametrize(
    "name",
    [
        "",
        "run",
        "chat",
        "batch",
        "inspect",
        "bench",
        "bench serve",
        "bench throughput",
        "convert",
        "check",
        "trace",
        "perplexity",
    ],
)
def test_every_help_says_that_a_model_may_be_a_gguf_file(name: str, karat_here: Karat) -> None:
    assert "GGUF file" in " ".join(karat_here(*name.split(), "--help").stdout.replace("│", " ").split())


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",), ("help",)])
def test_the_overview(args: tuple[str, ...], karat_here: Karat) -> None:
    done = karat_here(*args)
    assert done.returncode == 0
    for word in (*COMMANDS, "exit-codes", "--version"):
        assert word in done.stdout
    assert "<bool>" not in done.stdout


def test_the_version(karat_here: Karat) -> None:
    import karat

    assert karat_here("--version").stdout == f"karat {karat.__version__}\n"


def example_lines() -> list[str]:
    epilogs = [entry.epilog or "" for entry in (command(), *command().commands.values())]
    return [line.strip() for text in epilogs for line in text.splitlines() if re.search(r"^  .*karat ", line)]


@pytest.mark.drawn(15)
@pytest.mark.parametrize("line", example_lines())
def test_every_example_can_be_parsed(line: str) -> None:
    line = re.split(r"\s{2,}", line)[0]  # the remark after it
    words = shlex.split(re.split(r" [|<] ", line[line.index("karat ") :])[0])[1:]
    if words[0] == "COMMAND":
        words[0] = "run"
    if "--help" in words or words == ["help"]:
        return
    name, *rest = joined(words)
    entry = command().commands[name]
    with entry.make_context(name, rest, obj=Invocation()) as context:
        assert context.command is entry


@pytest.mark.parametrize("args", ["--version", "--help", "run --help"])
def test_it_imports_nothing_heavy(args: str) -> None:
    code = (
        "import sys; from karat.cli import main; main(sys.argv[1:]); "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'tokenizers', 'huggingface_hub', 'jinja2', "
        "'torch', 'msgspec'}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args.split()], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stderr == "[]\n"


def test_defaults_in_the_help_of_serve_and_in_the_docs_are_those_of_the_code() -> None:
    """Every "(default: X)" of the panels Server and Limits, and every row of the table of limits in docs/serving.md."""
    settings, limits = ServerSettings(model_names=("m",)), ServerLimits()
    values: dict[str, object] = {
        **{name: getattr(settings, name) for name in ("host", "port", "default_max_tokens", "ping_s", "drain_s")},
        "queue_timeout_s": inspect.signature(AsyncLLM).parameters["queue_timeout_s"].default,
        "max_queue": inspect.signature(AsyncLLM).parameters["max_queue"].default,
        "max_num_seqs": Options().max_num_seqs,
        "max_step_ms": MAX_STEP_MS,
        "max_connections": limits.connections,
        "max_body_bytes": limits.body_bytes,
        "max_head_bytes": limits.head_bytes,
        "body_timeout_s": limits.body_s,
        "head_timeout_s": limits.head_s,
        "write_timeout_s": limits.write_s,
    }
    assert settings.queue_timeout_s == values["queue_timeout_s"] is None
    told = {}
    for name, hint in get_type_hints(ServeOptions, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            found = re.search(r"\(default: ([^;)]*)", option.help or "")
            if found and option.rich_help_panel in ("Server", "Limits"):
                told[name] = number_of(found[1])
    assert told == values
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `--([a-z-]+)`(?:, `--([a-z-]+)`)? \| ([^|]*) \|", table, re.MULTILINE)
    assert len(rows) > 8
    for first, second, text in rows:
        for option, each in zip(filter(None, (first, second)), text.split(", "), strict=False):
            name = option.replace("-", "_")
            if name in values:
                size = re.match(r"without end|[0-9]+( [MK]iB)?", each.strip())
                assert size and number_of(size[0]) == values[name], f"{option}: {each}"


def number_of(text: str) -> object:
    """16 MiB as bytes, "without end" as None; a text that is no number as it is."""
    if text == "without end":
        return None
    amount, _, unit = text.partition(" ")
    if not amount.isdecimal():
        return text
    return int(amount) * {"": 1, "KiB": 1024, "MiB": 1024**2}[unit]
