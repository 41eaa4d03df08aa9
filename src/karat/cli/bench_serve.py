"""`karat bench serve`: how a server of OpenAI's protocol does under load, alone or in turns with another."""

import json
from pathlib import Path
from typing import Annotated

import typer

from karat.cli.bench import check_plot, write_plot
from karat.cli.bench_model import ShapeOptions
from karat.cli.bench_serve_options import PromptOptions, TargetOptions, TrafficOptions
from karat.cli.options import OverrideOptions
from karat.cli.terminal import emit
from karat.errors import UsageError

EXAMPLES = """
Examples

  karat bench serve                                the embedded model
  karat bench serve ./model.gguf --concurrency 1 --concurrency 16
  karat bench serve ./model.gguf --peer llama-server ./llama-server
  karat bench serve --shape qwen2.5-0.5b --weights q4_0
  karat bench serve --url http://127.0.0.1:8000 --rate 2 --goodput ttft:500
  karat bench serve --sweep 6 --plot latency.svg
"""


def bench_serve(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Serve it: a folder, a GGUF file, or org/name.")
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS", help="Count requests within ttft, tpot or e2e; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw latency against throughput into FILE, an .svg.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
    *,
    shapes: ShapeOptions,
    targets: TargetOptions,
    traffic: TrafficOptions,
    prompts: PromptOptions,
    words: OverrideOptions,
) -> None:
    """Measure a server of OpenAI's protocol under load: throughput, latencies, goodput, errors by kind.

    Without --url it starts karat serve on MODEL, a folder, a GGUF file, or org/name (default: the embedded model).
    Prompts are drawn anew for each turn, because a prompt that comes again is found in the cache; --warm measures that,
    apart. Latencies count from when a request was due, also where the client was late.

    With --peer both servers get the same requests, in turns. A server that was started here sleeps while it is not its
    turn. Ratios are of the first to the second: the median of all turns, with the least and the most.
    """
    if targets.url is not None and (model is not None or shapes.shape is not None):
        raise UsageError("both a model to serve and --url; give one (--tokenizer names a model, too)")
    check_plot(plot)
    from karat.cli.bench_serve_session import measured
    from karat.cli.bench_serve_table import as_table

    result = measured(model, shapes, targets, traffic, prompts, words, goodput or (), quiet=quiet)
    emit(json.dumps(result, indent=2, ensure_ascii=False) + "\n" if as_json else as_table(result))
    if plot is not None:  # last, because it may still fail
        from karat.bench.load.plot import latency_plot

        write_plot(plot, latency_plot(result))
